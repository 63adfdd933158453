// Package protocol turns bytes into Kafka messages and back, and does nothing else: frames, headers of all versions,
// the list of API keys that ApiVersions answers are built from, and Kafka's ids. Bodies are kmsg's. What kmsg lacks
// has packages of its own below this one: kraft for the metadata log, kip1279 for cluster mirroring.
package protocol
