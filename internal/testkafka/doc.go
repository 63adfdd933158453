// Package testkafka runs real Apache Kafka clusters on loopback for tests, the demo and the bench.
//
// Maven fetches the jars once into a cache outside the repository (the user's cache directory, or KMIRROR_CACHE). The
// first use of a version also keeps there what would otherwise be paid for at every start: the files that Kafka's own
// StorageTool formats a node with, and a class data archive of the JVM, which halves the CPU time a broker needs to come
// up. Neither touches the jars; JarsUnmodified compares them with the published checksums listed in this package.
//
// Every node is one JVM in its own process group that dies with this process. Nodes are stopped, killed, paused, wiped
// and restarted one by one and keep their ports. Start is for tests: the cluster ends with the test, and a fault logged
// by a controller, a partition that a follower gave up, or a node that died by itself fails it. Launch is for programs.
package testkafka
