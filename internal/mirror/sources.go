package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
)

// sources holds one ordinary client per mirror for what is asked of its source, and one of the destination. Clients are made
// when they are needed first.
type sources struct {
	destOpts []kgo.Opt
	// sent is told of each request, by the side that it goes to. Optional.
	sent func(side string)
	log  *slog.Logger

	mu      sync.Mutex
	clients map[string]client
}

type client struct {
	digest string
	kgo    *kgo.Client
}

func newSources(destOpts []kgo.Opt, sent func(side string), log *slog.Logger) *sources {
	return &sources{destOpts: destOpts, sent: sent, log: log, clients: map[string]client{}}
}

// The two sides of a mirror, as requests are counted.
const (
	sourceSide      = "source"
	destinationSide = "destination"
)

// requests is a hook that counts what a client sends.
type requests struct{ sent func() }

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (r requests) OnBrokerWrite(kgo.BrokerMetadata, int16, int, time.Duration, time.Duration, error) {
	r.sent()
}

func (s *sources) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		c.kgo.Close()
	}
	clear(s.clients)
}

// destination returns an admin client of the destination.
func (s *sources) destination() (*kadm.Client, error) {
	cl, err := s.destinationClient()
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(cl), nil
}

// destinationClient is what destination wraps, for requests to one broker.
func (s *sources) destinationClient() (*kgo.Client, error) {
	return s.get("", "", func() ([]kgo.Opt, error) { return s.destOpts, nil })
}

// source returns an admin client of a mirror's source; a changed definition gets a new one.
func (s *sources) source(name string, config map[string]string) (*kadm.Client, error) {
	cl, err := s.sourceClient(name, config)
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(cl), nil
}

// definition returns a mirror's definition; an error where there is none.
func (m *Manager) definition(mirror string) (coordinator.Mirror, error) {
	def, ok := m.cfg.Store.Mirror(mirror)
	if !ok {
		return def, fmt.Errorf("mirror %q is not defined", mirror)
	}
	return def, nil
}

// sourceClient returns the client of a mirror's source that source wraps.
func (s *sources) sourceClient(name string, config map[string]string) (*kgo.Client, error) {
	return s.get("mirror "+name, connections(config), func() ([]kgo.Opt, error) { return sourceOpts(config, s.log.With("mirror", name)) })
}

// clusterOf asks a mirror's source for its cluster id, which also shows that it answers: kadm's BrokerMetadata may be what the client
// heard a while ago.
func (s *sources) clusterOf(ctx context.Context, name string, config map[string]string) (string, error) {
	cl, err := s.sourceClient(name, config)
	if err != nil {
		return "", err
	}
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	resp, err := req.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil || resp.ClusterID == nil {
		return "", err
	}
	return *resp.ClusterID, nil
}

func (s *sources) get(key, digest string, opts func() ([]kgo.Opt, error)) (*kgo.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.clients[key]; ok {
		if c.digest == digest {
			return c.kgo, nil
		}
		c.kgo.Close()
		delete(s.clients, key)
	}
	o, err := opts()
	if err != nil {
		return nil, err
	}
	o = append(slices.Clone(o), kgo.MetadataMinAge(100*time.Millisecond), kgo.RetryTimeout(10*time.Second))
	if s.sent != nil {
		side := sourceSide
		if key == "" {
			side = destinationSide
		}
		o = append(o, kgo.WithHooks(requests{func() { s.sent(side) }}))
	}
	cl, err := kgo.NewClient(o...)
	if err != nil {
		return nil, err
	}
	s.clients[key] = client{digest, cl}
	return cl, nil
}

// forget closes the client of a mirror that is no more, or whose client has come to another cluster. Who uses it meets an error.
func (s *sources) forget(mirror string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.clients["mirror "+mirror]; ok {
		c.kgo.Close()
		delete(s.clients, "mirror "+mirror)
	}
}

// sourceOpts turns a mirror's properties into client options; log is of stores that can't be read again.
func sourceOpts(config map[string]string, log *slog.Logger) ([]kgo.Opt, error) {
	opts, _, err := clientconf.Options(config, log)
	return opts, err
}

// connections is a digest of what connections to a source are made of: what only says what is synced changes nothing about them.
func connections(config map[string]string) string {
	rest := maps.Clone(config)
	for _, k := range filters.Keys {
		delete(rest, k)
	}
	return digest(rest)
}

// digest is equal for equal configurations.
func digest(config map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(config)) {
		fmt.Fprintf(&b, "%q=%q;", k, config[k])
	}
	return b.String()
}

// syncMirrors makes the data path know the mirrors that are defined, and forget others.
func (m *Manager) syncMirrors() {
	live := map[string]coordinator.Mirror{}
	for _, d := range m.cfg.Store.Mirrors() {
		live[d.Name] = d
	}
	for name := range m.added {
		if _, ok := live[name]; !ok {
			m.cfg.Data.RemoveMirror(name)
			delete(m.added, name)
		}
	}
	for name, d := range live {
		dig := connections(d.Config)
		if m.added[name] == dig {
			continue
		}
		opts, err := sourceOpts(d.Config, m.log.With("mirror", name))
		if err == nil {
			if _, changed := m.added[name]; changed {
				m.cfg.Data.RemoveMirror(name)
			}
			err = m.cfg.Data.AddMirror(name, opts, withCluster(d))
		}
		if err != nil {
			m.mu.Lock()
			news := m.lastErr["mirror "+name] != err.Error()
			m.lastErr["mirror "+name] = err.Error()
			m.mu.Unlock()
			if news {
				m.log.Error("mirror can't be run", "mirror", name, "err", err)
			}
			continue
		}
		m.added[name] = dig
	}
}

// withCluster returns the properties of a mirror with its source's cluster id among them, whoever gave that.
func withCluster(d coordinator.Mirror) map[string]string {
	config := maps.Clone(d.Config)
	config[sourceClusterConfig] = d.SourceClusterID
	return config
}

// sourceClusterConfig is the KIP's property for the cluster id of a mirror's source.
const sourceClusterConfig = "mirror.source.cluster.id"

// dynamicConfigs returns the configs that were set on topics themselves (not broker defaults), by topic.
func dynamicConfigs(ctx context.Context, cl *kadm.Client, topics []string) (map[string]map[string]string, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	rs, err := cl.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, r := range rs {
		if r.Err != nil {
			return nil, fmt.Errorf("configs of %s: %w", r.Name, r.Err)
		}
		out[r.Name] = map[string]string{}
		for _, c := range r.Configs {
			if c.Source == kmsg.ConfigSourceDynamicTopicConfig && c.Value != nil {
				out[r.Name][c.Key] = *c.Value
			}
		}
	}
	return out, nil
}

// brokerDefaults asks a real broker of the destination for default.replication.factor and min.insync.replicas.
func brokerDefaults(ctx context.Context, cl *kadm.Client, broker int32) (rf, minISR int, err error) {
	rs, err := cl.DescribeBrokerConfigs(ctx, broker)
	if err != nil {
		return 0, 0, err
	}
	minISR = 1
	for _, r := range rs {
		if r.Err != nil {
			return 0, 0, r.Err
		}
		for _, c := range r.Configs {
			n, err := strconv.Atoi(c.MaybeValue())
			switch {
			case err != nil || n < 1:
			case c.Key == "default.replication.factor":
				rf = n
			case c.Key == minISRConfig:
				minISR = n
			}
		}
	}
	if rf == 0 {
		return 0, 0, fmt.Errorf("broker %d names no default.replication.factor", broker)
	}
	return rf, minISR, nil
}
