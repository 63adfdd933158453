// Package kip1279 holds the messages of KIP-1279 (Cluster Mirroring) as the first complete public tree numbered them, and
// the records of its __mirror_state topic. LastMirroredEpochs is of the generation before, ReadMirrorOffsets and RecoverMirrorTopics
// are of the one after. Stock brokers know none of them, and Kafka 4.4 gives key 94 to another API, so they are spoken on kmirror's own
// admin listener only.
//
// Every message has version 0, which is flexible. One walk function per struct serves both directions, so that encoding
// and decoding can't drift apart. What kmirror adds rides in tagged fields from FirstOwnTag up: a peer that knows only the
// KIP skips them. Tagged fields that are not known here survive decoding and encoding.
package kip1279
