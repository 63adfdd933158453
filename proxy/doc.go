// Package proxy is the client side of kmirror's node ids: one connection serves everything that the listener of a broker
// gets. What concerns partitions that we lead, or this node itself, is answered here; all else goes as untouched bytes to
// a real broker, over a connection that belongs to this client alone.
//
// Decisions that don't follow from Kafka's protocol:
//
//   - Order. Replies leave in the order of the requests, as with brokers. The reader executes what we answer ourselves, one
//     at a time; forwarded requests are written upstream at once and their replies streamed to the client when their turn
//     comes, so a reply is never held in memory. A reader that waits for its turn reads nothing: back pressure.
//   - Refusal. Produce to a mirror topic fails partition by partition with POLICY_VIOLATION (or 134), which all clients take
//     as final; partitions of other topics in the same request get NOT_LEADER_OR_FOLLOWER, since nothing of such a request is
//     written. With acks=0 the connection is closed, as brokers do.
//   - Consumers. A consumer of a partition that we lead is sent to an in-sync real replica (KIP-392). Fetch versions below 11
//     can't be sent away: they are asked of such a replica in version 11 and the answer is encoded anew.
//   - DescribeProducers of a mirror partition is asked of an in-sync replica: brokers answer it as followers too (seen with
//     4.4.0). Should one not, the error is POLICY_VIOLATION with a text, not NOT_LEADER, which admin clients would retry
//     until they time out.
//   - Share groups can't read what we lead: INVALID_REQUEST with a text.
//   - Requests between brokers or to controllers that no listener advertises close the connection, as with brokers.
//   - SASL is relayed. On a SASL listener nothing but ApiVersions is answered before the broker upstream has answered a
//     DescribeCluster of ours on this client's connection, which brokers do for authenticated connections only.
//   - Gateway. A Gateway's connections belong to one broker, with which they end. Their replies are streamed like all others, except those
//     that can name a broker's address; of a reply with records only the end is looked at, and of a large one, whose size is with the client
//     by then, addresses are blanked in place.
//   - Memory. What requests hold is counted over all connections and bounded (see Memory): a connection for which there is no room waits,
//     and a client that sends slowly meanwhile is cut off, so that a few can't stop all.
//   - Peers. A broker that is known by its certificate can't be shown to another broker, so a listener's Peer judges it, and what it asks
//     beyond replication goes on under our certificate.
//
// docs/architecture.md says what is in which file.
package proxy
