package fetch

import (
	"encoding/binary"
	"net"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// Versions of Fetch that followers may use.
const (
	minFetchVersion = 11
	maxFetchVersion = protocol.MirrorFetchVersion
)

// Reply is a Fetch answer whose record bytes are slices of the windows: they stay valid whatever the windows do, and must
// not be written to.
type Reply struct {
	// head is all that is not records, beginning with the size prefix; piece i of records stands before head[cuts[i]].
	head    []byte
	cuts    []int
	records [][]byte
	size    int
}

// Buffers returns the whole answer, size prefix and response header included, to be written at once. It may be called
// once.
func (r *Reply) Buffers(corr int32) net.Buffers {
	binary.BigEndian.PutUint32(r.head, uint32(r.size-4))
	binary.BigEndian.PutUint32(r.head[4:], uint32(corr))
	out := make(net.Buffers, 0, 2*len(r.records)+1)
	at := 0
	for i, rec := range r.records {
		if r.cuts[i] > at {
			out = append(out, r.head[at:r.cuts[i]])
			at = r.cuts[i]
		}
		out = append(out, rec)
	}
	if at < len(r.head) {
		out = append(out, r.head[at:])
	}
	return out
}

// Size is the number of bytes of all buffers.
func (r *Reply) Size() int { return r.size }

// encode writes an answer of a version, session id and error of the whole request, with the records that bufs holds.
func encode(version int16, code int16, sessionID int32, answers []answer, bufs [][]byte) *Reply {
	flex := version >= 12
	dst := make([]byte, 8, 64+96*len(answers))
	if flex {
		dst = append(dst, 0)
	}
	dst = kbin.AppendInt32(dst, 0) // throttle
	dst = kbin.AppendInt16(dst, code)
	dst = kbin.AppendInt32(dst, sessionID)
	r := &Reply{}
	if len(bufs) > 0 {
		r.records = make([][]byte, 0, len(bufs))
		r.cuts = make([]int, 0, len(bufs))
	}
	dst = appendLen(dst, countTopics(answers), flex)
	for i := 0; i < len(answers); {
		n := i + 1
		for n < len(answers) && sameTopic(answers[n].a, answers[i].a) {
			n++
		}
		if version >= 13 {
			dst = append(dst, answers[i].a.topic[:]...)
		} else if flex {
			dst = kbin.AppendCompactString(dst, answers[i].a.name)
		} else {
			dst = kbin.AppendString(dst, answers[i].a.name)
		}
		dst = appendLen(dst, n-i, flex)
		for ; i < n; i++ {
			dst = r.appendPartition(dst, &answers[i], bufs, version)
		}
		if flex {
			dst = append(dst, 0)
		}
	}
	if flex {
		dst = append(dst, 0)
	}
	r.head = dst
	r.size += len(dst)
	return r
}

func sameTopic(a, b *asked) bool { return a.topic == b.topic && a.name == b.name }

func countTopics(answers []answer) int {
	n := 0
	for i := range answers {
		if i == 0 || !sameTopic(answers[i-1].a, answers[i].a) {
			n++
		}
	}
	return n
}

func appendLen(dst []byte, n int, flex bool) []byte {
	if flex {
		return kbin.AppendUvarint(dst, uint32(n+1))
	}
	return kbin.AppendInt32(dst, int32(n))
}

func (r *Reply) appendPartition(dst []byte, ans *answer, bufs [][]byte, version int16) []byte {
	flex := version >= 12
	dst = kbin.AppendInt32(dst, ans.a.index)
	dst = kbin.AppendInt16(dst, ans.code)
	dst = kbin.AppendInt64(dst, ans.hw)
	dst = kbin.AppendInt64(dst, -1) // last stable offset: followers find their own
	dst = kbin.AppendInt64(dst, ans.start)
	if flex {
		dst = append(dst, 0)
	} else {
		dst = kbin.AppendInt32(dst, -1)
	}
	dst = kbin.AppendInt32(dst, -1) // preferred read replica
	dst = appendLen(dst, ans.size, flex)
	for _, b := range bufs[ans.lo:ans.hi] {
		r.records = append(r.records, b)
		r.cuts = append(r.cuts, len(dst))
		r.size += len(b)
	}
	if !flex {
		return dst
	}
	tags, mirrorEpoch := byte(0), version >= protocol.MirrorFetchVersion && ans.mirrorEpoch >= 0
	if ans.diverging {
		tags++
	}
	if mirrorEpoch {
		tags++
	}
	dst = append(dst, tags)
	if ans.diverging {
		dst = append(dst, 0, 13)
		dst = kbin.AppendInt32(dst, ans.div.Epoch)
		dst = kbin.AppendInt64(dst, ans.div.EndOffset)
		dst = append(dst, 0)
	}
	if mirrorEpoch {
		dst = append(dst, tagMirrorEpochResponse, 4)
		dst = kbin.AppendInt32(dst, ans.mirrorEpoch)
	}
	return dst
}

// replicaOf returns who fetches, in whichever field the version has it.
func replicaOf(req *kmsg.FetchRequest) (id int32, epoch int64) {
	if req.Version >= 15 {
		return req.ReplicaState.ID, req.ReplicaState.Epoch
	}
	return req.ReplicaID, -1
}
