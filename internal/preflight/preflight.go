// Package preflight tells what stands in the way of kmirror before anything is registered. It asks, reads the metadata log as an
// observer, and sends requests that change nothing: those that only validate, have nothing in them, or name what does not exist.
package preflight

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/filters"
	"kmirror/protocol/kraft"
)

// Levels of a Finding. What is Fail keeps kmirror from working, what is Warn takes a part of it away or wants to be known.
const (
	OK   = "ok"
	Warn = "warn"
	Fail = "FAIL"
)

// Finding is one line of the report. Hint says what to do, empty where it is OK.
type Finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
}

// Report is all that was found. Unreachable: a cluster gave no answer, so that most was not looked at.
type Report struct {
	Findings    []Finding `json:"findings"`
	Unreachable bool      `json:"unreachable"`
}

func (r *Report) ok(check, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{Check: check, Level: OK, Detail: fmt.Sprintf(format, args...)})
}

func (r *Report) add(level, check, hint, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{Check: check, Level: level, Detail: fmt.Sprintf(format, args...), Hint: hint})
}

// unreachable notes that somebody gave no answer.
func (r *Report) unreachable(check string, err error) {
	r.Unreachable = true
	r.add(Fail, check, "check addresses, which are those of brokers and not of controllers, security settings and the network", "%v", err)
}

// Config of Run. Opts are of connections to brokers by bootstrap addresses; Controller and Replication are without addresses.
type Config struct {
	ClusterID           string // pin, optional
	NodeIDs             []int32
	Controllers         []string
	Opts                []kgo.Opt
	Controller          []kgo.Opt
	Replication         []kgo.Opt
	Listeners           []Listener
	InterBrokerListener string
	CheckListeners      func(*kraft.Image) error
	UpstreamTLS         func() *tls.Config // of forwarded connections
	KafkaVersion        string             // that the destination has, or is to have; optional
	Source              []kgo.Opt
	SourceFilters       *filters.Filters
	Certificates        []Certificate
}

// limit bounds one step.
const limit = 15 * time.Second

// Run looks at everything. It stops early only where a cluster is not reached.
func Run(ctx context.Context, c Config) (*Report, error) {
	r := &Report{Findings: []Finding{}}
	if c.KafkaVersion != "" {
		r.kafkaVersion(c.KafkaVersion)
	}
	r.expiry(c.Certificates, time.Now())
	cluster, err := r.destination(ctx, c)
	if err == nil && c.Source != nil {
		err = r.source(ctx, c, cluster)
	}
	return r, err
}

// newClient makes a client that gives up soon.
func newClient(opts []kgo.Opt, more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(slices.Concat(opts, []kgo.Opt{kgo.DialTimeout(5 * time.Second), kgo.RetryTimeout(8 * time.Second),
		kgo.RequestRetries(2), kgo.DisableClientMetrics()}, more)...)
}

// ask sends one request to the first of the seeds that answers, with the time of one step.
func ask[R kmsg.Response](ctx context.Context, cl *kgo.Client, req kmsg.Request) (out R, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var errs []error
	for _, seed := range cl.SeedBrokers() {
		resp, err := seed.Request(ctx, req)
		if err == nil {
			return resp.(R), nil
		}
		errs = append(errs, err)
	}
	return out, fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), errors.Join(errs...))
}

// apiVersions asks for versions and features as brokers want to be asked.
func apiVersions() *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kmirror", "1"
	return req
}

// some joins names, and counts what is beyond a few.
func some(names []string) string {
	slices.Sort(names)
	if n := len(names); n > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), n-5)
	}
	return strings.Join(names, ", ")
}
