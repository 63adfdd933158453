package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

const (
	// compatUser is who clients log in as, other than those of administrators.
	compatUser = "app"
	// compatCount is the number of records of a round trip.
	compatCount = 300
)

// compatClient is a row of the table.
type compatClient struct {
	name, did string
	// missing says at which versions of Kafka there is nothing to try, and why.
	missing map[string]string
	run     func(b *compatBed, t *testing.T) error
}

// compatBed is a secure cluster behind a gateway that clients know only.
type compatBed struct {
	version string
	dst     *testkafka.Cluster
	s       *shim
	ns      *namespace
	addr    string // of the gateway
	tools   *toolbox
	table   *compatTable
	bins    compatPrograms

	admins, users string // properties files for Kafka's tools
	strayed       int    // packets to loopback, before any client ran
}

// TestCompatibility has every client work through the gateway, where it can, from a network from which nothing else is reachable,
// and writes docs/compatibility.md.
func TestCompatibility(t *testing.T) {
	if os.Getenv("KMIRROR_COMPAT") == "" {
		t.Skip("takes minutes; make compat runs it")
	}
	testkafka.EnsureKcat(t)
	lanes := [][]compatClient{javaClients(), otherClients()}
	ns := newNamespace(t)
	last := compatClient{name: "all of the above",
		did: "no client has sent a packet to a broker's own address, and none is reachable from where clients are",
		run: (*compatBed).noLeak}
	table := &compatTable{versions: []string{testkafka.Latest, testkafka.Oldest},
		names: map[string]string{}, cells: map[string]map[string]compatCell{}}
	for _, lane := range lanes {
		table.clients = append(table.clients, lane...)
	}
	table.network = "Clients have a network namespace of their own, from which only kmirror's gateway is reachable: an address that leaks leads nowhere."
	if ns == nil {
		table.network = "Clients were in the brokers' own network, so this run would not notice an address that leaks."
		const unseen = "clients were not in a network of their own"
		last.missing = map[string]string{testkafka.Latest: unseen, testkafka.Oldest: unseen}
	}
	table.clients = append(table.clients, last)
	bins := buildCompatPrograms(t)
	for _, version := range table.versions {
		t.Run(version, func(t *testing.T) {
			b := newCompatBed(t, version, ns)
			b.table, b.bins = table, bins
			var wg sync.WaitGroup
			for _, lane := range lanes {
				wg.Go(func() {
					for _, c := range lane {
						b.try(t, c)
					}
				})
			}
			wg.Wait()
			b.try(t, last)
			if err := b.s.stop(); err != nil {
				t.Errorf("SIGTERM: %v", err)
			}
		})
	}
	table.write(t, "../../docs/compatibility.md")
}

// newCompatBed starts a cluster with delegation tokens and a second mechanism, and kmirror in front of it, without a mirror.
func newCompatBed(t *testing.T, version string, ns *namespace) *compatBed {
	t.Helper()
	b := &compatBed{version: version, ns: ns}
	listener := "listener.name." + strings.ToLower(testkafka.ClientListener) + "."
	passwords := fmt.Sprintf(`org.apache.kafka.common.security.plain.PlainLoginModule required user_%s="%s";`, compatUser,
		compatUser+"-plain")
	b.dst = secureCluster(t, testkafka.Options{Name: "compat", Version: version, Brokers: 3, Properties: map[string]string{
		listener + "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN", listener + "plain.sasl.jaas.config": passwords,
		"delegation.token.secret.key": "compat-secret",
	}}, kmirrorUser, "Rights at the destination")
	addUsers(t, b.dst, compatUser)
	grant(t, b.dst, compatUser, acl{"TOPIC", "*", "ALL"}, acl{"GROUP", "*", "ALL"}, acl{"TRANSACTIONAL_ID", "*", "ALL"},
		acl{"CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE"})
	sec := b.dst.Security()
	host := ns.address()
	yaml, first := gatewayYAML(t, host)
	if ns != nil {
		certificate, key, err := sec.Certificate("gateway", host)
		if err != nil {
			t.Fatal(err)
		}
		if ns.keeper == nil {
			yaml = strings.Replace(yaml, "127.0.0.1:", host+":", 1)
		}
		ns.forward(t, first, gatewayPorts)
		yaml = strings.Replace(yaml, "{name", fmt.Sprintf("{tls: {certificate: %q, key: %q}, name", certificate, key), 1)
	}
	b.addr = fmt.Sprintf("%s:%d", host, first)
	b.s = newShim(t, b.dst, yaml)
	var err, err2 error
	b.admins, err = sec.WriteProperties("admins.properties", sec.Properties(testkafka.AdminUser))
	b.users, err2 = sec.WriteProperties("users.properties", sec.Properties(compatUser))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if ns != nil {
		if b.strayed, err = ns.strayed(timeout(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	b.tools = &toolbox{version: version, ns: ns}
	t.Cleanup(b.tools.close)
	return b
}

// try runs a client and notes what came of it.
func (b *compatBed) try(t *testing.T, c compatClient) {
	if why := c.missing[b.version]; why != "" {
		b.table.put(c.name, b.version, compatCell{missing: why})
		return
	}
	cell := compatCell{err: errors.New("ended early, see the test's output")}
	t.Run(c.name, func(t *testing.T) {
		defer func() { b.table.put(c.name, b.version, cell) }()
		begin := time.Now()
		err := c.run(b, t)
		if err != nil {
			t.Error(err)
		}
		if !t.Failed() || err != nil {
			cell = compatCell{err: err, took: time.Since(begin)}
		}
	})
}

// noLeak is about the run as a whole. It comes last.
func (b *compatBed) noLeak(t *testing.T) error {
	n, err := b.ns.strayed(timeout(t, 10*time.Second))
	if err != nil {
		return err
	}
	if n != b.strayed {
		return fmt.Errorf("clients have sent %d packets to loopback: they were told of a broker's own address", n-b.strayed)
	}
	if err := b.closed(t); err != nil {
		return err
	}
	if n, err = b.ns.strayed(timeout(t, 10*time.Second)); err == nil && n == b.strayed {
		err = errors.New("who went to a broker's own address was not noticed, so the watch sees nothing")
	}
	return err
}

// ends wants a topic to hold n records, at the cluster itself.
func (b *compatBed) ends(t *testing.T, topic string, n int64) error {
	var sum int64
	for _, end := range endOffsets(t, b.dst, topic) {
		sum += end
	}
	if sum != n {
		return fmt.Errorf("%s ends at %d in all, want %d", topic, sum, n)
	}
	return nil
}

// committed wants a group to have committed n records, at the cluster itself.
func (b *compatBed) committed(t *testing.T, group string, n int64) error {
	offsets, err := kadm.NewClient(client(t, b.dst)).FetchOffsets(timeout(t, 20*time.Second), group)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return err
	}
	var sum int64
	offsets.Each(func(o kadm.OffsetResponse) { sum += max(0, o.At) })
	if sum != n {
		return fmt.Errorf("group %s has committed %d records, want %d", group, sum, n)
	}
	return nil
}

// visible wants n records of a topic, all with a value, to be visible to who reads what is committed, at the cluster itself.
func (b *compatBed) visible(t *testing.T, topic, value string, n int) error {
	got := readFranz(t, b.dst, n, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for _, r := range got {
		if value != "" && r.value != value {
			return fmt.Errorf("%s: a record %q is visible", topic, r.value)
		}
	}
	if len(got) != n {
		return fmt.Errorf("%s: %d records are visible, want %d", topic, len(got), n)
	}
	return nil
}

// whole wants records, by partition and offset, to be k0 to kn-1 with their values, without a gap in a partition.
func whole(got map[tpOffset]string, n int) error {
	keys, last := map[string]bool{}, map[int32]int64{}
	for at, record := range got {
		key, value, _ := strings.Cut(record, "=")
		if strings.Replace(key, "k", "v", 1) != value {
			return fmt.Errorf("a record %q", record)
		}
		keys[key] = true
		last[at.partition] = max(last[at.partition], at.offset+1)
	}
	var sum int64
	for _, end := range last {
		sum += end
	}
	if len(got) != n || len(keys) != n || sum != int64(n) {
		return fmt.Errorf("%d records with %d keys up to %d, want %d of each", len(got), len(keys), sum, n)
	}
	return nil
}

type tpOffset struct {
	partition int32
	offset    int64
}

// numberedLines are the lines k0:v0 and so on.
func numberedLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d:v%d\n", i, i)
	}
	return b.String()
}

// file writes what a tool reads and returns its path.
func (b *compatBed) file(name, text string) (string, error) {
	path := filepath.Join(b.s.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}
