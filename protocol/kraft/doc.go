// Package kraft reads Kafka's metadata log: its records as values, and the image of the cluster that they add up to.
//
// A caller takes committed batches in order, skips control batches (leader changes, voters, snapshot header and
// footer), and hands the values of each other batch to Image.Apply. A snapshot is the same applied to Empty.
//
// What is easily got wrong:
//   - a partition change that names a leader bumps the leader epoch, also when it names the leader there is; every
//     partition change bumps the partition epoch;
//   - ClearElrRecord bumps the partition epoch of the partitions that have an ELR or last known ELR, and of no others;
//   - null lists in a change mean unchanged, empty ones empty; the cordoned directories of a broker likewise, but an
//     empty list of log directories means unchanged;
//   - snapshots of real nodes may hold configs of topics that were deleted: a config without its topic is no error, and a
//     topic made anew under that name has them.
package kraft
