package fetch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/wait"
	"kmirror/protocol"
)

const (
	// refreshEvery is how often source metadata is looked at when nothing asks for it.
	refreshEvery = 10 * time.Second
	// requestLimit bounds every request to the source that is not a long poll.
	requestLimit = 15 * time.Second
	// metadataLimit bounds requests for metadata, which may go to a broker that hangs while others answer.
	metadataLimit = 4 * time.Second
	// goneAfter answers in a row without the topic, over Config.goneFor, mean that it is gone: a broker that just started, or
	// whose controller is away, may not know it yet.
	goneAfter = 3
)

// mirror reads one source cluster.
type mirror struct {
	l   *Leader
	cfg MirrorConfig
	log *slog.Logger

	refreshKick, loadKick chan struct{}

	mu       sync.Mutex
	ctx      context.Context // nil before start and after stop
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	parts    map[*partition]struct{}
	clients  map[int]*kgo.Client // by fetcher id; catchUp has its own connections
	fetchers map[fetcherKey]*fetcher
	throttle limiter
}

// catchUp is the fetcher id of reads below the window.
const catchUp = -1

// fetcherKey names a fetcher within a mirror: connections are not shared between fetcher ids.
type fetcherKey struct {
	id     int
	broker int32
}

func newMirror(l *Leader, cfg MirrorConfig) (*mirror, error) {
	if cfg.Name == "" {
		return nil, fmt.Errorf("mirror without a name")
	}
	cfg.Fetchers = max(cfg.Fetchers, 1)
	if cfg.WaitMax <= 0 {
		cfg.WaitMax = DefaultWaitMax
	}
	cfg.MinBytes = max(cfg.MinBytes, 1)
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.ResponseMaxBytes <= 0 {
		cfg.ResponseMaxBytes = DefaultResponseMaxBytes
	}
	m := &mirror{
		l: l, cfg: cfg, log: l.log.With("mirror", cfg.Name),
		refreshKick: make(chan struct{}, 1), loadKick: make(chan struct{}, 1),
		parts: map[*partition]struct{}{}, clients: map[int]*kgo.Client{}, fetchers: map[fetcherKey]*fetcher{},
	}
	m.throttle.rate.Store(cfg.BytesPerSecond)
	return m, nil
}

// start runs the mirror until stop, or until ctx ends and stop is called.
func (m *mirror) start(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, m.cancel = context.WithCancel(ctx)
	m.ctx = ctx
	m.wg.Go(func() { m.runRefresh(ctx) })
	m.wg.Go(func() { m.runLoad(ctx) })
}

// stop ends and joins all goroutines and closes the connections.
func (m *mirror) stop() {
	m.mu.Lock()
	if m.cancel != nil {
		m.cancel()
	}
	m.ctx = nil
	m.mu.Unlock()
	m.wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.clients {
		c.Close()
	}
	clear(m.clients)
	clear(m.fetchers)
}

// client returns the client of a fetcher id.
func (m *mirror) client(id int) (*kgo.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[id]; c != nil {
		return c, nil
	}
	if m.ctx == nil {
		return nil, context.Canceled
	}
	opts := append([]kgo.Opt{kgo.ClientID("kmirror")}, m.cfg.Opts...)
	opts = append(opts, kgo.RequestRetries(0), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.BrokerMaxReadBytes(max(100<<20, m.cfg.ResponseMaxBytes+m.cfg.ResponseMaxBytes/2)))
	c, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("source client of mirror %s: %w", m.cfg.Name, err)
	}
	m.clients[id] = c
	return c, nil
}

// reconnect has everything asked by way of the source's own addresses again.
func (m *mirror) reconnect() {
	m.mu.Lock()
	old := m.clients
	m.clients = map[int]*kgo.Client{}
	m.mu.Unlock()
	for _, c := range old {
		c.Close()
	}
}

func (m *mirror) add(p *partition) {
	m.mu.Lock()
	m.parts[p] = struct{}{}
	m.mu.Unlock()
	m.kickRefresh()
}

func (m *mirror) remove(p *partition) {
	m.mu.Lock()
	delete(m.parts, p)
	m.mu.Unlock()
}

func (m *mirror) partitions() []*partition {
	m.mu.Lock()
	defer m.mu.Unlock()
	ps := make([]*partition, 0, len(m.parts))
	for p := range m.parts {
		ps = append(ps, p)
	}
	return ps
}

func (m *mirror) kickRefresh() { kick(m.refreshKick) }
func (m *mirror) kickLoad()    { kick(m.loadKick) }

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// runRefresh is the only one that asks the source for metadata, so that there is one request in flight however many
// partitions want one (sarama #782). Between two requests lies a growing wait while they don't bring what is wanted.
func (m *mirror) runRefresh(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	fails := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-m.refreshKick:
		}
		parts := m.partitions()
		if len(parts) == 0 {
			continue
		}
		if m.refresh(ctx, parts) {
			fails = 0
		} else {
			fails++
			m.kickRefresh()
		}
		// Good answers also keep a distance, in case those who ask are not helped by them.
		if !wait.For(ctx, backoff(max(fails, 1))) {
			return
		}
	}
}

// refresh asks for the metadata of all topics and places the partitions; false when some are left without a leader.
func (m *mirror) refresh(ctx context.Context, parts []*partition) bool {
	req := kmsg.NewPtrMetadataRequest()
	seen := map[string]bool{}
	for _, p := range parts {
		if name := p.name(); !seen[name] {
			seen[name] = true
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = kmsg.StringPtr(name)
			req.Topics = append(req.Topics, t)
		}
	}
	resp, err := m.metadata(ctx, req)
	now := time.Now()
	if err != nil {
		if ctx.Err() == nil {
			for _, p := range parts {
				p.unreachable(err, now)
			}
		}
		return false
	}
	topics := map[string]*kmsg.MetadataResponseTopic{}
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.Topic != nil {
			topics[*t.Topic] = t
		}
	}
	all, load, wrong := true, false, m.checkCluster(resp)
	for _, p := range parts {
		placed, wantsLoad := m.place(p, topics[p.name()], resp.Version >= 10, wrong, now)
		all, load = all && placed, load || wantsLoad
	}
	if wrong != nil {
		m.reconnect() // who has come to a cluster asks the brokers that it names, wherever the addresses lead by then
	}
	if load {
		m.kickLoad()
	}
	return all
}

// metadata asks through every client there is, one after the other: each keeps its own list of broker addresses.
func (m *mirror) metadata(ctx context.Context, req *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataLimit)
	defer cancel()
	c, err := m.client(0)
	if err != nil {
		return nil, err
	}
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	others := make([]*kgo.Client, 0, len(m.clients))
	for id, other := range m.clients {
		if id != 0 {
			others = append(others, other)
		}
	}
	m.mu.Unlock()
	for _, other := range others {
		if _, err := req.RequestWith(ctx, other); err != nil {
			m.log.Debug("metadata for another connection", "error", err)
		}
	}
	return resp, nil
}

func (p *partition) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.topic
}

// unreachable notes that the source does not answer. What is being fetched goes on.
func (p *partition) unreachable(err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.src.broker < 0 || p.src.err != nil {
		p.fail(fmt.Errorf("source does not answer: %w", err), now)
	}
}

// place takes what metadata says of a partition and gives it to the fetcher of its source leader. placed is false when
// there is no leader to read from, load tells that the history is still to be read. wrong is why all that metadata says counts for nothing.
func (m *mirror) place(p *partition, t *kmsg.MetadataResponseTopic, ids bool, wrong error, now time.Time) (placed, load bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.src.mir != m || p.src.fatal != nil {
		return true, false
	}
	if err := cmp.Or(wrong, p.checkTopic(t, ids)); err != nil {
		p.src.gen++
		if p.src.fet != nil {
			p.src.fet.remove(p)
			p.src.fet = nil
		}
		p.src.broker = -1
		if err != ErrSourceGone && err != ErrSourceRecreated {
			p.src.missing = 0
			p.fail(err, now)
			return false, false
		}
		if p.src.missing == 0 {
			p.src.missingSince = now
		}
		p.src.missing++
		if p.src.missing >= goneAfter && (err == ErrSourceRecreated || now.Sub(p.src.missingSince) >= p.l.cfg.goneFor) {
			p.failForGood(err)
			return true, false
		}
		p.fail(err, now)
		return false, false
	}
	p.src.missing = 0
	for i := range t.Partitions {
		if mp := &t.Partitions[i]; mp.Partition == p.id.Partition {
			p.learnLeader(mp.Leader, mp.LeaderEpoch)
			if mp.Leader < 0 {
				p.fail(fmt.Errorf("source partition has no leader: %w", kerr.LeaderNotAvailable), now)
			}
			return m.assignFetcher(p) && mp.Leader >= 0, p.src.needLoad
		}
	}
	p.fail(fmt.Errorf("source topic has no partition %d", p.id.Partition), now)
	return false, false
}

// checkCluster refuses metadata of a cluster that is not the mirror's source: its topics may have the same names, and other records.
func (m *mirror) checkCluster(resp *kmsg.MetadataResponse) error {
	if m.cfg.ClusterID == "" || resp.ClusterID == nil || *resp.ClusterID == m.cfg.ClusterID {
		return nil
	}
	return fmt.Errorf("%w: bootstrap.servers lead to %s, the mirror was made for %s", ErrWrongCluster, *resp.ClusterID, m.cfg.ClusterID)
}

// checkTopic decides whether the topic that metadata shows is the one that the mirror was set up for.
func (p *partition) checkTopic(t *kmsg.MetadataResponseTopic, ids bool) error {
	switch {
	case t == nil || t.ErrorCode == kerr.UnknownTopicOrPartition.Code || t.ErrorCode == kerr.UnknownTopicID.Code:
		return ErrSourceGone
	case t.ErrorCode != 0 && t.ErrorCode != kerr.LeaderNotAvailable.Code:
		return fmt.Errorf("source metadata: %w", kerr.ErrorForCode(t.ErrorCode))
	case ids && !p.assign.SourceTopicID.IsZero() && p.assign.SourceTopicID != protocol.UUID(t.TopicID):
		return ErrSourceRecreated
	}
	return nil
}

// assignFetcher moves a partition to the fetcher of its source leader; the partition is locked.
func (m *mirror) assignFetcher(p *partition) bool {
	if p.src.broker < 0 {
		return false
	}
	id := int(p.id.Topic[15]^p.id.Topic[14]) + int(p.id.Partition)
	key := fetcherKey{id % m.cfg.Fetchers, p.src.broker}
	if p.src.fet != nil && p.src.fet.key == key {
		p.src.fet.kick()
		return true
	}
	if p.src.fet != nil {
		p.src.fet.remove(p)
	}
	p.src.fet = m.fetcher(key)
	if p.src.fet == nil {
		return false
	}
	p.src.fet.add(p)
	return true
}

// fetcher returns the running fetcher of a key, nil when the mirror is not running.
func (m *mirror) fetcher(key fetcherKey) *fetcher {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.fetchers[key]
	if f == nil && m.ctx != nil {
		f = newFetcher(m, key)
		m.fetchers[key] = f
		ctx := m.ctx
		m.wg.Go(func() { f.run(ctx) })
	}
	return f
}

// limiter spreads bytes over time; a rate of 0 is no limit.
type limiter struct {
	rate atomic.Int64
	mu   sync.Mutex
	due  time.Time
}

// take returns how long to wait after n bytes.
func (b *limiter) take(n int, now time.Time) time.Duration {
	rate := b.rate.Load()
	if rate <= 0 || n <= 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.due.Before(now) {
		b.due = now
	}
	b.due = b.due.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return b.due.Sub(now)
}

// pace returns how long to wait after n bytes, by the mirror's own bound and the one for all.
func (m *mirror) pace(n int, now time.Time) time.Duration {
	return max(m.throttle.take(n, now), m.l.throttle.take(n, now))
}

// bounds are the most bytes to ask for in a response, and of one partition. Under a throttle they are what half a second allows: each
// answer tells where the source's log ends, so with long waits between them lags would be those of long ago.
func (m *mirror) bounds() (response, partition int32) {
	response = m.cfg.ResponseMaxBytes
	for _, rate := range []int64{m.throttle.rate.Load(), m.l.throttle.rate.Load()} {
		if rate > 0 {
			response = int32(min(int64(response), max(rate/2, 1)))
		}
	}
	return response, min(m.cfg.MaxBytes, response)
}
