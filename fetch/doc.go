// Package fetch is the data path: it leads partitions of the destination with the logs of another cluster.
//
// A fetcher per source broker reads partitions as a consumer does (fetcher.go, answer.go) into a window per partition
// (window.go) that all followers of the partition are served from (serve.go, poll.go), so that three replicas cost one
// read. Record bytes are never copied: a source response is cut into chunks, and a follower's answer is written from
// slices of them (reply.go). Followers below a window get reads of their own (catchup.go).
//
// Before anything is answered the source's whole history of leader epochs is read (load.go, epochs.go): followers whose
// logs are not a part of it are told where to truncate. Until every in-sync replica has been seen in the leader epoch
// nobody is told a high watermark (isr.go), since followers take whatever they are told.
//
// A pause or stop freezes the log where its longest in-sync replica ends and brings the others there (drain.go); a stop then
// ends it with batches of our own (tail.go).
//
// The source's metadata is followed by one goroutine per mirror (mirror.go). The destination's metadata image decides what
// is led, under which epochs and ISRs; assignments decide what it is (leader.go, partition.go).
package fetch
