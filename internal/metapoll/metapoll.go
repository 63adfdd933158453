// Package metapoll knows the brokers of a cluster by asking them for Metadata again and again, which every version of Kafka answers,
// with KRaft or ZooKeeper, to everybody who may log in. It knows of nothing else: no topics, and one listener, that of the bootstrap
// servers, since Metadata tells of the listener only that it came to.
package metapoll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/quiet"
	"kmirror/internal/wait"
	"kmirror/protocol/kraft"
)

const (
	// DefaultEvery is how often brokers are asked.
	DefaultEvery = 2 * time.Second
	// doubtAfter is when they are asked again after an answer that takes something away, or moves it.
	doubtAfter = 200 * time.Millisecond
	// slowest is how far apart the attempts get while nobody answers.
	slowest = 10 * time.Second
	// askLimit bounds how long one broker may take.
	askLimit = 5 * time.Second
	// staleAfter is how old the last answer may be at which Ready is content.
	staleAfter = 30 * time.Second
)

// Config of a Poller. Bootstrap and Listener are required.
type Config struct {
	// Opts are of the connections, without addresses, Bootstrap the addresses to begin with. They are asked for good, like those that
	// brokers advertise.
	Opts      []kgo.Opt
	Bootstrap []string
	// Listener is the name that the brokers' addresses get in images, SecurityProtocol Kafka's id of what is spoken there.
	Listener         string
	SecurityProtocol int16
	// ClusterID pins the cluster; empty: the first that answers.
	ClusterID string
	// Every is how often brokers are asked, DefaultEvery if 0.
	Every time.Duration
	// OnCluster is told the cluster's id once it is known. Optional.
	OnCluster func(id string)
	Log       *slog.Logger
}

// MismatchError says that the first broker that answered is not of the cluster that is pinned.
type MismatchError struct{ Server, Got, Want string }

// Error names both clusters.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s is of cluster %s, cluster_id pins %s", e.Server, e.Got, e.Want)
}

// Poller is a kraft.ImageSource that holds brokers only. A broker that no answer names is Fenced in it, and left out after five minutes.
// While nobody answers, what was known last stays. It works while Run runs.
type Poller struct {
	cfg   Config
	cl    *kgo.Client
	quiet *quiet.Log
	seeds []string // those to ask: brokers, then what else is in Bootstrap. Run's, as all up to view are
	known int      // how many of the seeds are brokers
	turn  int      // which of them is asked next
	view  view

	mu       sync.Mutex
	img      *kraft.Image
	changed  chan struct{}
	cluster  string
	answered time.Time // the last answer that was taken; zero before
	// refused is why the last answer was not taken, nil after one that was.
	refused error
}

// New validates c and connects to nothing. Close releases what it holds.
func New(c Config) (*Poller, error) {
	if len(c.Bootstrap) == 0 || c.Listener == "" {
		return nil, errors.New("metapoll: addresses and the name of a listener are needed")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Every = cmp.Or(c.Every, DefaultEvery)
	s := &Poller{cfg: c, seeds: slices.Clone(c.Bootstrap), cluster: c.ClusterID, img: kraft.Empty(), changed: make(chan struct{}),
		quiet: quiet.New(c.Log, quiet.Interval, nil)}
	var err error
	s.cl, err = kgo.NewClient(append([]kgo.Opt{kgo.ClientID("kmirror"), kgo.DialTimeout(askLimit), kgo.DisableClientMetrics(),
		kgo.SeedBrokers(c.Bootstrap...)}, c.Opts...)...)
	return s, err
}

// Close ends the connections. Run must have returned.
func (s *Poller) Close() { s.cl.Close() }

// Image implements kraft.ImageSource.
func (s *Poller) Image() *kraft.Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.img
}

// Changed implements kraft.ImageSource.
func (s *Poller) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Ready is nil while brokers are known and answer.
func (s *Poller) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.refused != nil:
		return s.refused
	case s.answered.IsZero():
		return errors.New("no broker has answered yet")
	case time.Since(s.answered) > staleAfter:
		return fmt.Errorf("no broker has answered since %s", s.answered.UTC().Format(time.RFC3339))
	}
	return nil
}

// Run asks until ctx ends, or until it finds that the pinned cluster is not there: *MismatchError. It must be called once only.
func (s *Poller) Run(ctx context.Context) error {
	pause := s.cfg.Every
	for {
		doubt, err := s.ask(ctx)
		var mismatch *MismatchError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &mismatch) && s.Image().Offset < 0:
			return err
		case err != nil:
			s.quiet.Warn("ask", "no broker of the destination tells what brokers there are; those known last stay", "err", err)
			pause = min(2*pause, max(slowest, s.cfg.Every))
		case doubt:
			pause = min(doubtAfter, s.cfg.Every)
		default:
			pause = s.cfg.Every
		}
		if !wait.For(ctx, time.Duration(float64(pause)*(0.75+rand.Float64()/2))) {
			return nil
		}
	}
}

// ask has one of the brokers answer, the next one first, and works its answer in. It reports whether that has to be confirmed. Addresses
// of the configuration that are no brokers' own come last: they may lead to any of them, also twice to the same.
func (s *Poller) ask(ctx context.Context) (doubt bool, err error) {
	seeds, brokers := s.cl.SeedBrokers(), s.known
	var errs []error
	for i := range seeds {
		at := i
		if i < brokers {
			at = s.turn % brokers
			s.turn = at + 1
		}
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
		asking, cancel := context.WithTimeout(ctx, askLimit)
		resp, err := seeds[at].Request(asking, req)
		cancel()
		if err == nil {
			doubt, err = s.take(s.seeds[at], resp.(*kmsg.MetadataResponse), time.Now())
		}
		if err == nil || ctx.Err() != nil {
			return doubt, err
		}
		errs = append(errs, fmt.Errorf("%s: %w", s.seeds[at], err))
	}
	return false, errors.Join(errs...)
}

// take works an answer in, unless it is of another cluster.
func (s *Poller) take(server string, resp *kmsg.MetadataResponse, now time.Time) (doubt bool, err error) {
	if resp.ClusterID != nil { // brokers before 0.10.1 don't tell
		if err := s.sameCluster(server, *resp.ClusterID); err != nil {
			return false, err
		}
	}
	changes, doubt := s.view.take(resp.Brokers, s.endpoint, now)
	for _, c := range changes {
		s.cfg.Log.Info(c.what, "broker", c.id, "address", c.at.String(), "told_by", server)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = nil
	if len(s.view.brokers) == 0 {
		return doubt, errors.New("knows of no broker")
	}
	s.answered = now
	if len(changes) > 0 {
		s.img = s.view.image(s.img.Offset + 1)
		close(s.changed)
		s.changed = make(chan struct{})
		s.reseed()
	}
	return doubt, nil
}

// sameCluster refuses an answer from another cluster than the first: addresses change hands.
func (s *Poller) sameCluster(server, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cluster != "" && s.cluster != id && s.answered.IsZero():
		s.refused = &MismatchError{server, id, s.cluster}
		return s.refused
	case s.cluster != "" && s.cluster != id:
		s.refused = fmt.Errorf("%s is of cluster %s, the gateway began in front of %s: what it tells is not taken", server, id, s.cluster)
		s.quiet.Warn("cluster "+server, "a broker is of another cluster", "err", s.refused,
			"hint", "correct destination.bootstrap_servers, or restart kmirror if the cluster was replaced")
		return s.refused
	case s.answered.IsZero() && s.cfg.OnCluster != nil:
		s.cfg.OnCluster(id)
	}
	s.cluster = id
	return nil
}

// reseed has all addresses asked from now on: those that are known, and those of the configuration.
func (s *Poller) reseed() {
	var seeds []string
	for _, b := range s.img.Brokers {
		seeds = append(seeds, s.view.brokers[b.ID].at().String())
	}
	slices.Sort(seeds)
	brokers := len(seeds)
	for _, at := range s.cfg.Bootstrap {
		if !slices.Contains(seeds, at) {
			seeds = append(seeds, at)
		}
	}
	if slices.Equal(seeds, s.seeds) && brokers == s.known {
		return
	}
	if err := s.cl.UpdateSeedBrokers(seeds...); err != nil {
		s.quiet.Warn("seeds", "an address of a broker can't be asked", "err", err)
		return
	}
	s.seeds, s.known = seeds, brokers
}

// endpoint is an address of a broker as images have it.
func (s *Poller) endpoint(host string, port uint16) kraft.Endpoint {
	return kraft.Endpoint{Name: s.cfg.Listener, Host: host, Port: port, SecurityProtocol: s.cfg.SecurityProtocol}
}
