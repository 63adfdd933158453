// Package unlock gives mirror topics back to their cluster without kmirror serve and without the source: break-glass for when
// kmirror itself is lost. It is an ordinary admin client of the destination, decides by what it sees there, and can be run
// again at any moment: what is done is not done twice.
//
// The order of the steps is not free (facts 10 and 12 of docs/kafka-facts.md):
//
//  1. Reassignments that were left unfinished are cancelled: a new one would neither complete nor clear them.
//  2. max.message.bytes gets its true value. min.insync.replicas still makes writes that all replicas must acknowledge, and
//     transaction markers, fail with an error that is tried again; with only the size limit left coordinators would take
//     markers for hopeless.
//  3. Replica lists are cut down to the in-sync real brokers. A reassignment to others would not complete. Leadership that is
//     still with kmirror moves, and the controller clears the eligible leader replicas.
//  4. min.insync.replicas gets its true value, only once no partition of the topic has eligible leader replicas: a change
//     while there are some leaves a stale entry in the controller of 4.4.0, which makes it resign much later.
//  5. Real brokers that were not in sync come back into the lists, those that are alive.
package unlock
