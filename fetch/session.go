package fetch

import (
	"container/list"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// maxSessions bounds the fetch sessions kept: a follower has one per fetcher thread and node id of ours.
const maxSessions = 1000

// Tags of a Fetch partition in KIP-1279's drafts (MirrorLeaderEpoch), from protocol.MirrorFetchVersion on. The request's value is what
// the follower was last told, 0 in the beginning; that it is there is all that counts.
const (
	tagMirrorEpochRequest  = 2
	tagMirrorEpochResponse = 3
)

// mailbox wakes a parked fetch. A nil mailbox belongs to a follower that has none.
type mailbox struct {
	parked       atomic.Bool
	urgent, soon chan struct{}
}

func newMailbox() *mailbox {
	return &mailbox{urgent: make(chan struct{}, 1), soon: make(chan struct{}, 1)}
}

func (b *mailbox) isParked() bool { return b != nil && b.parked.Load() }

func (b *mailbox) wake() {
	if b.isParked() {
		kick(b.urgent)
	}
}

func (b *mailbox) wakeSoon() {
	if b.isParked() {
		kick(b.soon)
	}
}

func (b *mailbox) drain() {
	for _, c := range []chan struct{}{b.urgent, b.soon} {
		select {
		case <-c:
		default:
		}
	}
}

// asked is one partition that a follower fetches, as its session remembers it (FetchSession.CachedPartition).
type asked struct {
	topic protocol.UUID
	name  string // set for versions without topic ids, and learnt from the image
	index int32

	offset, logStart       int64
	lastEpoch, leaderEpoch int32
	maxBytes               int32
	// mirrorEpoch: the newest request that named the partition carried MirrorLeaderEpoch, so answers in a version that has it do.
	mirrorEpoch bool
	// toldHW and toldStart are what was last answered, -1 before that and after an error.
	toldHW, toldStart int64
	// served: the newest answer held data.
	served bool

	p *partition
}

func (a *asked) set(rp *kmsg.FetchRequestTopicPartition, version int16) {
	a.offset, a.logStart = rp.FetchOffset, rp.LogStartOffset
	a.lastEpoch, a.leaderEpoch = rp.LastFetchedEpoch, rp.CurrentLeaderEpoch
	a.maxBytes = rp.PartitionMaxBytes
	a.mirrorEpoch = false
	if version < protocol.MirrorFetchVersion {
		return
	}
	rp.UnknownTags.Each(func(tag uint32, v []byte) {
		if tag == tagMirrorEpochRequest && len(v) == 4 {
			a.mirrorEpoch = int32(binary.BigEndian.Uint32(v)) >= 0
		}
	})
}

type askedKey struct {
	topic protocol.UUID
	name  string
	index int32
}

// session is a follower's incremental fetch session (KIP-227).
type session struct {
	id, epoch int32
	replica   int32
	node      int32
	byID      bool
	// parts is the order in which partitions are served: those that got data go to the end.
	parts []*asked
	index map[askedKey]*asked
	box   *mailbox
	// busy: a fetch of this session is under way.
	busy bool
	use  *list.Element
}

// sessions holds all sessions, the one used longest ago first.
type sessions struct {
	mu   sync.Mutex
	byID map[int32]*session
	lru  *list.List
}

func newSessions() *sessions { return &sessions{byID: map[int32]*session{}, lru: list.New()} }

// view is what one request is to be answered for.
type view struct {
	parts []*asked
	box   *mailbox
	// incremental answers hold only what changed.
	incremental bool
	sess        *session
}

// begin finds or makes the session of a request. code is the answer's error, 0 for none.
func (s *sessions) begin(req *kmsg.FetchRequest, replica, node int32) (view, int16) {
	if req.SessionEpoch <= 0 { // 0 opens a session, -1 closes it or does without
		s.drop(req.SessionID)
		v := view{parts: askedOf(req), box: newMailbox()}
		if req.SessionEpoch == 0 {
			v.sess = s.create(&v, replica, node, req.Version >= 13)
		}
		return v, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.byID[req.SessionID]
	switch {
	case sess == nil || sess.replica != replica || sess.node != node:
		return view{}, kerr.FetchSessionIDNotFound.Code
	case sess.busy || sess.epoch != req.SessionEpoch:
		return view{}, kerr.InvalidFetchSessionEpoch.Code
	case sess.byID != (req.Version >= 13):
		return view{}, kerr.FetchSessionTopicIDError.Code
	}
	sess.update(req)
	if len(sess.parts) == 0 {
		s.remove(sess)
		return view{box: newMailbox(), incremental: true}, 0
	}
	sess.epoch = nextSessionEpoch(sess.epoch)
	sess.busy = true
	s.lru.MoveToBack(sess.use)
	return view{parts: sess.parts, box: sess.box, incremental: true, sess: sess}, 0
}

func nextSessionEpoch(e int32) int32 {
	if e == math.MaxInt32 {
		return 1
	}
	return e + 1
}

// end lets the next request of the session in.
func (s *sessions) end(sess *session) {
	s.mu.Lock()
	sess.busy = false
	s.mu.Unlock()
}

func (s *sessions) create(v *view, replica, node int32, byID bool) *session {
	sess := &session{
		epoch: 1, replica: replica, node: node, byID: byID, parts: v.parts, box: v.box, busy: true,
		index: make(map[askedKey]*asked, len(v.parts)),
	}
	for _, a := range v.parts {
		sess.index[sess.key(a.topic, a.name, a.index)] = a
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.byID) >= maxSessions {
		s.remove(s.lru.Front().Value.(*session))
	}
	for sess.id == 0 || s.byID[sess.id] != nil {
		sess.id = rand.Int32N(math.MaxInt32)
	}
	s.byID[sess.id] = sess
	sess.use = s.lru.PushBack(sess)
	return sess
}

func (s *sessions) drop(id int32) {
	if id == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.byID[id]; sess != nil {
		s.remove(sess)
	}
}

func (s *sessions) remove(sess *session) {
	delete(s.byID, sess.id)
	s.lru.Remove(sess.use)
}

// key leaves out what the session's version does not name topics by.
func (sess *session) key(topic protocol.UUID, name string, index int32) askedKey {
	if sess.byID {
		return askedKey{topic: topic, index: index}
	}
	return askedKey{name: name, index: index}
}

// update takes over what an incremental request adds, changes and forgets.
func (sess *session) update(req *kmsg.FetchRequest) {
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			rp := &t.Partitions[j]
			k := sess.key(t.TopicID, t.Topic, rp.Partition)
			a := sess.index[k]
			if a == nil {
				a = &asked{topic: t.TopicID, name: t.Topic, index: rp.Partition, toldHW: -1, toldStart: -1}
				sess.index[k] = a
				sess.parts = append(sess.parts, a)
			}
			a.set(rp, req.Version)
		}
	}
	forgot := false
	for i := range req.ForgottenTopics {
		t := &req.ForgottenTopics[i]
		for _, index := range t.Partitions {
			k := sess.key(t.TopicID, t.Topic, index)
			if sess.index[k] != nil {
				delete(sess.index, k)
				forgot = true
			}
		}
	}
	if !forgot {
		return
	}
	kept := sess.parts[:0]
	for _, a := range sess.parts {
		if sess.index[sess.key(a.topic, a.name, a.index)] == a {
			kept = append(kept, a)
		}
	}
	clear(sess.parts[len(kept):])
	sess.parts = kept
}

// rotate moves the partitions that were served with data behind the others.
func (sess *session) rotate() {
	n := 0
	for _, a := range sess.parts {
		if a.served {
			n++
		}
	}
	if n == 0 || n == len(sess.parts) {
		return
	}
	order := make([]*asked, len(sess.parts))
	first, last := order[:0], order[len(sess.parts)-n:][:0]
	for _, a := range sess.parts {
		if a.served {
			last = append(last, a)
		} else {
			first = append(first, a)
		}
	}
	sess.parts = order
}

// askedOf lists the partitions of a request that names all it wants.
func askedOf(req *kmsg.FetchRequest) []*asked {
	n := 0
	for i := range req.Topics {
		n += len(req.Topics[i].Partitions)
	}
	all := make([]asked, n)
	parts := make([]*asked, 0, n)
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			a := &all[len(parts)]
			*a = asked{topic: t.TopicID, name: t.Topic, index: t.Partitions[j].Partition, toldHW: -1, toldStart: -1}
			a.set(&t.Partitions[j], req.Version)
			parts = append(parts, a)
		}
	}
	return parts
}
