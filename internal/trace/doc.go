// Package trace makes the bytes of Kafka connections readable: it cuts frames, matches responses with requests, decodes
// whatever version of whatever API kmsg knows, and prints it. It is pure: bytes come in by Stream.Feed, Messages go out to a
// function, and nothing here opens a connection or a file. What carries the bytes is below: relay, a proxy, and pcap, captures.
//
// The way of a message: Stream (frames, matching, principal; cheap, runs where the bytes pass) -> Decoder (bodies, topics,
// errors, batches) -> Filter -> Printer. Reporter does the last three; Stats counts.
//
// Secrets are hidden in one place each: values of messages in render.go, records in batches.go. Bytes fields that are not
// known for harmless are never shown, only counted.
package trace
