package coordinator

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/quiet"
	"kmirror/protocol/kip1279"
)

// How several processes share __mirror_state.
//
// Each of its partitions has one owner at a time, who alone writes to it. An owner takes a partition by a *claim*: it has the
// transaction coordinator raise the producer epoch of the partition's transactional id, and appends an owner record with that
// producer id and epoch. From there on the partition's leader refuses whatever the owner before sends
// (INVALID_PRODUCER_EPOCH), so a claim needs nobody's consent to be safe. Once the new owner has read its own claim it has read
// all that came before, and accepts writes.
//
// Who is to claim what is a matter of order only. A consumer group spreads the partitions over its members; what belongs to a
// member that does not answer is claimed by another at once, without waiting for its session to end; and before the group has
// come together, a process claims what nobody who answers has claimed.

// cluster is this process among the others. Its methods are safe for concurrent use.
type cluster struct {
	self   Member
	group  string
	topic  string
	n      int32
	log    *slog.Logger
	often  *quiet.Log // what each partition may have to say at the same time
	table  *table
	live   Liveness
	stands Standing
	peer   Peer
	client *kgo.Client
	sender *sender
	shards []*shard
	closed <-chan struct{} // the store's
	// vanish is set by tests: the process ends without a word to the group.
	vanish bool
	// touch tells the users of the Store that members or owners changed.
	touch func()

	mu      sync.Mutex
	changed chan struct{}
	// loaded: the claims that were there at the start have been read.
	loaded bool
	claims []claim // the newest of each partition, by what has been read
	read   []int64 // by partition: the offset after the last record that was read
	view   *view   // nil until the group has come together
	// beat is when the group last said that we belong to it; lost: it said that we do not, and we are not back.
	beat   time.Time
	misses int // questions to the group that were not answered since
	lost   bool
	// spared are processes that do not answer and claim all the same: they are not taken for dead until then.
	spared map[string]time.Time
}

// claim is what the owner record of a partition says; the zero value is no claim.
type claim struct {
	owner      Member
	generation int32
	producer   int64
	epoch      int16
	offset     int64
}

func (c claim) known() bool { return c.owner.ProcessID != "" }

// claimJSON is the value of an owner record.
type claimJSON struct {
	ProcessID  string    `json:"process_id"`
	Admin      string    `json:"admin"`
	NodeIDs    []int32   `json:"node_ids"`
	Generation int32     `json:"generation"`
	Producer   int64     `json:"producer_id"`
	Epoch      int16     `json:"producer_epoch"`
	Since      time.Time `json:"since"`
}

// view is what the group agreed upon.
type view struct {
	generation int32
	members    []Member
	owner      map[int32]int // index of members, by partition
}

const (
	// graceBeat is how old the last word of the group may be for a claim that rests on it. A process that was stopped for a while
	// asks first whether it still belongs.
	graceBeat = 4 * time.Second
	// sparedFor is how long a process is spared that claims although it does not answer us.
	sparedFor = 10 * time.Second
)

func newCluster(s *Store, client *kgo.Client, life context.Context) *cluster {
	c := &cluster{
		self: s.cfg.Self, group: groupPrefix + s.cfg.Topic, topic: s.cfg.Topic, n: s.partitions, log: s.log,
		often: quiet.New(s.log, quiet.Interval, nil), table: s.table,
		live: s.cfg.Liveness, stands: s.cfg.Standing, peer: s.cfg.Peer, client: client, sender: newSender(life, client, s.cfg.Topic, s.log),
		touch:   s.table.touch,
		changed: make(chan struct{}), claims: make([]claim, s.partitions), read: make([]int64, s.partitions),
		spared: map[string]time.Time{}, vanish: s.cfg.vanish, closed: s.closed,
	}
	for p := range c.n {
		c.shards = append(c.shards, newShard(p))
	}
	return c
}

// signal wakes those who wait for a change. Called with mu held.
func (c *cluster) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// took takes in a record as it is read from the topic; those that are no owner records are the table's.
func (c *cluster) took(r *kgo.Record) {
	k, err := kip1279.DecodeStateKey(r.Key)
	if err != nil || k.Type != kip1279.RecordOwner || r.Partition >= c.n {
		return
	}
	cl, err := decodeClaim(r.Value)
	if err != nil {
		c.log.Warn("owner record is not readable and left alone", "partition", r.Partition, "offset", r.Offset, "err", err)
		return
	}
	cl.offset, cl.owner.Self = r.Offset, cl.owner.ProcessID == c.self.ProcessID
	c.mu.Lock()
	before := c.claims[r.Partition]
	c.claims[r.Partition] = cl
	if c.loaded && !cl.owner.Self && before.owner.Self && !c.live.Alive(cl.owner) {
		if !time.Now().Before(c.spared[cl.owner.ProcessID]) {
			c.log.Warn("another process owns partitions and does not answer; see admin.advertised of both",
				"process", cl.owner.ProcessID, "admin", cl.owner.Admin)
		}
		c.spared[cl.owner.ProcessID] = time.Now().Add(sparedFor)
	}
	c.signal()
	c.mu.Unlock()
	if !cl.owner.Self {
		c.shards[r.Partition].drop("another process claimed it", c.log)
	}
	c.touch()
}

func decodeClaim(value []byte) (claim, error) {
	if value == nil {
		return claim{}, nil
	}
	v, err := kip1279.DecodeStateValue(kip1279.RecordOwner, value)
	if err != nil {
		return claim{}, err
	}
	var j claimJSON
	if err := json.Unmarshal(v.(*kip1279.JSONValue).JSON, &j); err != nil {
		return claim{}, err
	}
	return claim{
		owner:      Member{ProcessID: j.ProcessID, Admin: j.Admin, NodeIDs: j.NodeIDs},
		generation: j.Generation, producer: j.Producer, epoch: j.Epoch,
	}, nil
}

// load is told once that all that was in the topic at the start has been read.
func (c *cluster) load() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded = true
	c.signal()
}

func (c *cluster) isLoaded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loaded
}

// progress notes how far a partition has been read.
func (c *cluster) progress(ends map[int32]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, end := range ends {
		if p < c.n {
			c.read[p] = max(c.read[p], end)
		}
	}
	c.signal()
}

// reached waits until the record at an offset has been read.
func (c *cluster) reached(ctx context.Context, partition int32, offset int64) error {
	for {
		c.mu.Lock()
		read, changed := c.read[partition], c.changed
		c.mu.Unlock()
		if read > offset {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// alive is what is known of a process. Called with mu held.
func (c *cluster) alive(m Member) bool {
	return m.Self || c.live.Alive(m) || time.Now().Before(c.spared[m.ProcessID])
}

// target returns who owns a partition, or is to own it next; false while that is not known.
func (c *cluster) target(partition int32) (Member, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.targetLocked(partition)
}

func (c *cluster) targetLocked(partition int32) (Member, bool) {
	if !c.loaded {
		return Member{}, false
	}
	cl := c.claims[partition]
	claimed := cl.known() && c.alive(cl.owner)
	switch {
	case c.lost, !c.stands.Registered():
		// What others claimed stands; whether we may claim, the group will say, or the controller.
		return cl.owner, claimed && !cl.owner.Self
	case c.view != nil:
		i, ok := c.view.owner[partition]
		if !ok || !c.alive(c.view.members[i]) {
			break
		}
		m := c.view.members[i]
		if m.Self && claimed && !cl.owner.Self && (cl.generation > c.view.generation || !c.view.has(cl.owner)) {
			return cl.owner, true // the owner knows of a newer agreement than we do
		}
		return m, true
	}
	if claimed {
		return cl.owner, true
	}
	if c.view == nil {
		return c.self, true
	}
	living := slices.DeleteFunc(slices.Clone(c.view.members), func(m Member) bool { return !c.alive(m) })
	if len(living) == 0 {
		return c.self, true
	}
	return living[int(partition)%len(living)], true
}

func (v *view) has(m Member) bool {
	return slices.ContainsFunc(v.members, func(o Member) bool { return o.ProcessID == m.ProcessID })
}

// mayClaim reports whether what we know is fresh enough to claim a partition, and the generation it rests on.
func (c *cluster) mayClaim(partition int32) (generation int32, before claim, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, known := c.targetLocked(partition); !known || !m.Self {
		return 0, claim{}, false
	}
	if c.view == nil {
		return -1, c.claims[partition], true
	}
	return c.view.generation, c.claims[partition], time.Since(c.beat) < graceBeat
}

// agreed takes in what the group agreed upon; nil: it said that we are no member.
func (c *cluster) agreed(v *view) {
	c.mu.Lock()
	if c.lost = v == nil && (c.view != nil || c.lost); v == nil {
		c.view = nil
	} else {
		slices.SortFunc(v.members, func(a, b Member) int { return strings.Compare(a.ProcessID, b.ProcessID) })
		c.view, c.beat, c.misses = v, time.Now(), 0
	}
	c.signal()
	c.mu.Unlock()
	if v == nil {
		for _, s := range c.shards {
			s.drop("the group let this process go", c.log)
		}
	}
	c.touch()
}

// belongs notes that the group still counts us in.
func (c *cluster) belongs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beat, c.misses = time.Now(), 0
}

// members returns the members of the group, or this process alone.
func (c *cluster) members() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return []Member{c.self}
	}
	return slices.Clone(c.view.members)
}

// others returns whom to watch: the members, and whoever claimed a partition.
func (c *cluster) others() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]Member{}
	if c.view != nil {
		for _, m := range c.view.members {
			seen[m.ProcessID] = m
		}
	}
	for _, cl := range c.claims {
		if _, ok := seen[cl.owner.ProcessID]; !ok && cl.known() {
			seen[cl.owner.ProcessID] = cl.owner
		}
	}
	delete(seen, c.self.ProcessID)
	out := make([]Member, 0, len(seen))
	for _, m := range seen {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.ProcessID, b.ProcessID) })
	return out
}
