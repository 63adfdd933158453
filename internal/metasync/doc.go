// Package metasync keeps a mirror's metadata in step with its source (KIP-1279, MirrorMetadataManager): the topics themselves, their
// configs, offsets of consumer and share groups, and ACLs. It runs for each mirror in the process that is its metadata coordinator,
// and changes nothing but what belongs to that mirror's own topics.
package metasync
