package e2e

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"kmirror/internal/testkafka"
	"kmirror/protocol/kraft"
)

// Users of a secure pair: kmirror's at the destination, its mirror's at the source.
const (
	kmirrorUser = testkafka.GuestUser
	mirrorUser  = "mirror"
)

// securePair starts a source of one node and a destination of three brokers, one of them the controller. Each has an authority of its
// own, an authorizer, and the one user that kmirror has there, with just the rights that docs/operations.md lists. Shims in front of the
// destination, and mirrors of the source, log in as those. settings are the destination's.
func securePair(t *testing.T, settings map[string]string) (src, dst *testkafka.Cluster) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	return secureCluster(t, testkafka.Options{Name: "src"}, mirrorUser, "Rights at the source"),
		secureCluster(t, testkafka.Options{Name: "dst", Brokers: 3, Combined: 1, Properties: settings}, kmirrorUser, "Rights at the destination")
}

func secureCluster(t *testing.T, o testkafka.Options, user, rights string) *testkafka.Cluster {
	t.Helper()
	sec := testkafka.NewSecurity(t)
	c := testkafka.Start(t, sec.Secure(o))
	addUsers(t, c, user)
	grant(t, c, user, documented(t, rights)...)
	return c
}

// addUsers gives users a password, and no rights.
func addUsers(t *testing.T, c *testkafka.Cluster, users ...string) {
	t.Helper()
	if err := c.Security().AddUser(timeout(t, 30*time.Second), c, users...); err != nil {
		t.Fatal(err)
	}
}

// security is the part of a configuration that depends on how the destination is secured: client properties in YAML, and the
// protocols of the two listeners, followed by their certificate.
type security struct{ legs, client, repl string }

// secured makes that part; name is the certificate's.
func secured(tb testing.TB, dst *testkafka.Cluster, name string) security {
	tb.Helper()
	sec := dst.Security()
	if sec == nil {
		return security{client: "PLAINTEXT", repl: "PLAINTEXT"}
	}
	certificate, key, err := sec.Certificate(name)
	if err != nil {
		tb.Fatal(err)
	}
	client, err := sec.References(kmirrorUser)
	if err != nil {
		tb.Fatal(err)
	}
	login, err := sec.PlainReferences(kmirrorUser)
	repl := "SASL_PLAINTEXT"
	if err == nil && dst.Mutual() {
		login, err = sec.PeerProperties(kmirrorUser)
		repl = fmt.Sprintf("SSL, tls: {certificate: %q, key: %q, ca: %q}, allow: [\"User:CN=brokers\"]", certificate, key, sec.CA())
	}
	if err != nil {
		tb.Fatal(err)
	}
	var legs string
	for key, props := range map[string]map[string]string{"client": client, "controller_client": login, "replication_client": login} {
		text, err := json.Marshal(props) // is YAML as well
		if err != nil {
			tb.Fatal(err)
		}
		legs += fmt.Sprintf("  %s: %s\n", key, text)
	}
	return security{legs: legs, client: fmt.Sprintf("SASL_SSL, tls: {certificate: %q, key: %q}", certificate, key), repl: repl}
}

// loginLines are the properties of a mirror with which it logs in to its source; none where that is not secure.
func loginLines(tb testing.TB, src *testkafka.Cluster) (lines []string) {
	tb.Helper()
	if src.Security() == nil {
		return nil
	}
	props, err := src.Security().References(mirrorUser)
	if err != nil {
		tb.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(props)) {
		lines = append(lines, key+"="+props[key])
	}
	return lines
}

// as is a client of a secure cluster that has the rights of a user only, and begins at an address.
func as(t *testing.T, c *testkafka.Cluster, user, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(slices.Concat(c.Security().Opts(user), []kgo.Opt{kgo.SeedBrokers(addr),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100 * time.Millisecond)}, opts)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// sessionLife is for how long a login is good in TestSecure.
const sessionLife = 8 * time.Second

// TestSecure mirrors from a cluster to another, both with TLS, SASL and an authorizer, with the rights that docs/operations.md lists.
func TestSecure(t *testing.T) {
	t.Parallel()
	// Brokers want everybody to log in again soon, each other and kmirror too.
	src, dst := securePair(t, map[string]string{"connections.max.reauth.ms": fmt.Sprint(sessionLife.Milliseconds())})
	createTopic(t, src, "orders", 2, nil)
	createTopic(t, src, "spare", 1, nil)
	createTopic(t, dst, "local", 2, nil)
	produce(t, client(t, src), "orders", 2, 500, 200)
	produce(t, client(t, src), "spare", 1, 10, 200)
	yaml, trace := traced(t)
	s := newShim(t, dst, yaml)
	s.create(src, brisk)
	s.mirror("orders", "spare")
	s.caughtUp(src, 3, time.Minute, "orders", "spare")
	produce(t, client(t, src), "orders", 2, 500, 200)
	s.caughtUp(src, 3, 30*time.Second, "orders")
	sameSegments(t, src, dst, "orders", 2, 3)
	s.must("verify", "--mirror", "m")
	b := &secureBed{src: src, dst: dst, s: s, trace: trace}
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"clients", b.clients}, {"traced", b.traced}, {"no rights", b.strangers}, {"followers", b.followers}, {"sessions", b.sessions}, {"Kerberos", b.kerberos},
		{"kept in step", b.inStep},
		{"certificate renewed", b.renewed}, {"killed and restarted", b.restarted},
		{"failed over", b.failedOver}, {"retired", b.retired},
	} {
		t.Run(step.name, func(t *testing.T) {
			s.tb = t
			step.run(t)
		})
		if s.tb = t; t.Failed() {
			return // each begins where the one before it ended
		}
	}
	for line := range strings.Lines(mustRead(t, s.log)) {
		if strings.Contains(line, "AUTHORIZATION_FAILED") {
			t.Errorf("a right is missing: %s", line)
		}
	}
}

// secureBed is a secure pair with topics "orders" and "spare" that are mirrored and one "local" that is not.
type secureBed struct {
	src, dst *testkafka.Cluster
	s        *shim
	trace    string // the file that it is traced to
}

// clients: one reads the mirror topic as a group and one writes to it, both with the right to, and both begin at kmirror.
func (b *secureBed) clients(t *testing.T) {
	addUsers(t, b.dst, "reader", "writer")
	grant(t, b.dst, "reader", acl{"TOPIC", "orders", "READ"}, acl{"GROUP", "readers", "READ"})
	grant(t, b.dst, "writer", acl{"TOPIC", "orders", "WRITE"})
	if n := b.read(t, 2000); n != 2000 {
		t.Errorf("a group read %d records of 2000", n)
	}
	reader := kadm.NewClient(as(t, b.dst, "reader", b.s.client))
	eventually(t, 30*time.Second, "last stable offsets", func() error {
		offs, err := reader.ListCommittedOffsets(timeout(t, 10*time.Second), "orders")
		if err == nil {
			err = offs.Error()
		}
		return err
	})
	err := as(t, b.dst, "writer", b.s.client).ProduceSync(timeout(t, 20*time.Second),
		&kgo.Record{Topic: "orders", Value: []byte("no")}).FirstErr()
	if !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("produce to the mirror topic: %v", err)
	}
	if err := as(t, b.dst, "nobody", b.s.client).Ping(timeout(t, 10*time.Second)); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("a user who is not there: %v", err)
	}
}

// read has group "readers" read up to n records, from where it stood, and returns how many it got.
func (b *secureBed) read(t *testing.T, n int) (got int) {
	t.Helper()
	cl := as(t, b.dst, "reader", b.s.client, kgo.ConsumerGroup("readers"), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ctx := timeout(t, time.Minute)
	for got < n && ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		fetches.EachError(func(topic string, p int32, err error) {
			if ctx.Err() == nil {
				t.Errorf("%s-%d: %v", topic, p, err)
			}
		})
		got += fetches.NumRecords()
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		t.Errorf("commit: %v", err)
	}
	cl.Close()
	return got
}

// followers: only who has CLUSTER_ACTION is served as a replica, also where that is all it has, by each way to log in that is relayed to
// a broker. A password that is not right gets nowhere.
func (b *secureBed) followers(t *testing.T) {
	const user = testkafka.FollowerUser
	password := b.dst.Security().Password(user)
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} { // a request may name a user once
		altered, err := kadm.NewClient(client(t, b.dst)).AlterUserSCRAMs(timeout(t, 20*time.Second), nil,
			[]kadm.UpsertSCRAM{{User: user, Mechanism: mechanism, Iterations: 4096, Password: password}})
		if err == nil {
			err = altered.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ways := map[string]func(password string) sasl.Mechanism{
		"PLAIN":         func(p string) sasl.Mechanism { return plain.Auth{User: user, Pass: p}.AsMechanism() },
		"SCRAM-SHA-256": func(p string) sasl.Mechanism { return scram.Auth{User: user, Pass: p}.AsSha256Mechanism() },
		"SCRAM-SHA-512": func(p string) sasl.Mechanism { return scram.Auth{User: user, Pass: p}.AsSha512Mechanism() },
	}
	for name, way := range ways {
		eventually(t, 30*time.Second, name+" with a password", func() error { // brokers learn of it one by one
			if err := replicaFetch(t, b.s.repl, kgo.SASL(way(password))); !errors.Is(err, kerr.ClusterAuthorizationFailed) {
				return fmt.Errorf("a replica without rights: %v", err)
			}
			return nil
		})
		if err := replicaFetch(t, b.s.repl, kgo.SASL(way("wrong"))); !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Errorf("%s with a wrong password: %v", name, err)
		}
	}
	grant(t, b.dst, user, acl{"CLUSTER", "kafka-cluster", "CLUSTER_ACTION"})
	for name, way := range ways {
		if err := replicaFetch(t, b.s.repl, kgo.SASL(way(password))); err != nil {
			t.Errorf("%s with CLUSTER_ACTION: %v", name, err)
		}
	}
}

// replicaFetch fetches nothing as a replica, over a connection of its own, and returns what it is answered.
func replicaFetch(t *testing.T, addr string, opts ...kgo.Opt) error {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(addr), kgo.RequestRetries(0))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaState.ID, req.SessionEpoch = 9999, -1
	resp, err := cl.SeedBrokers()[0].Request(timeout(t, 10*time.Second), req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.FetchResponse).ErrorCode)
}

// renewed: clients see a certificate that was renewed, without a restart.
func (b *secureBed) renewed(t *testing.T) {
	serial := func() string {
		nc, err := tls.Dial("tcp", b.s.client, &tls.Config{InsecureSkipVerify: true}) // only looked at
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		return nc.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	old := serial()
	if _, _, err := b.dst.Security().Certificate("kmirror-9001"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the new certificate", func() error {
		if serial() == old {
			return errors.New("the old one is served")
		}
		return nil
	})
}

// without runs a command of kmirror that needs no running process, with its configuration.
func (b *secureBed) without(t *testing.T, args ...string) {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(timeout(t, time.Minute), bin, append(args, "--config", b.s.config)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", args, err, out)
	}
}

// restarted: kmirror dies and comes back, with its state and its leadership. A topic is taken from it meanwhile.
func (b *secureBed) restarted(t *testing.T) {
	b.s.kill()
	b.without(t, "unlock", "--topics", "spare", "--force", "--yes")
	writable(t, b.dst, "spare", "unlocked")
	b.without(t, "serve", "--check")
	b.s.start()
	produce(t, client(t, b.src), "orders", 2, 100, 200)
	b.s.caughtUp(b.src, 3, time.Minute, "orders")
	sameSegments(t, b.src, b.dst, "orders", 2, 3)
	if n := b.read(t, 200); n != 200 {
		t.Errorf("a group that goes on read %d records of 200", n)
	}
	revoke(t, b.src, "app", "TOPIC") // the process before it has created it at the destination
	awaitACLs(t, b.dst, "app", 0)
}

// failedOver: writers have the topic, and the group reads on.
func (b *secureBed) failedOver(t *testing.T) {
	took := b.s.verb("failover", "orders,spare") // of the latter only our ids are taken out
	leads(t, b.dst, "orders", 3, 30*time.Second)
	err := as(t, b.dst, "writer", b.s.client).ProduceSync(timeout(t, 20*time.Second),
		&kgo.Record{Topic: "orders", Value: []byte("yes")}).FirstErr()
	if err != nil {
		t.Errorf("produce after failover: %v", err)
	}
	if n := b.read(t, 1); n != 1 {
		t.Errorf("a group read %d records of 1", n)
	}
	t.Logf("failed over in %s", took)
}

// inStep: partitions, configs, groups and ACLs of the source arrive, and kmirror sees transactions of others.
func (b *secureBed) inStep(t *testing.T) {
	adm, there := kadm.NewClient(client(t, b.src)), kadm.NewClient(client(t, b.dst))
	ctx := timeout(t, 2*time.Minute)
	grown, err := adm.UpdatePartitions(ctx, 3, "orders")
	if err == nil {
		err = grown.Error()
	}
	setConfigs(t, b.src, "orders", map[string]string{"retention.ms": "86400000"})
	offs := kadm.Offsets{}
	offs.AddOffset("orders", 0, 10, -1)
	if err = errors.Join(err, adm.CommitAllOffsets(ctx, "app", offs)); err != nil {
		t.Fatal(err)
	}
	grant(t, b.src, "app", acl{"TOPIC", "orders", "READ"})
	eventually(t, 30*time.Second, "the source's metadata", func() error {
		got, err := there.FetchOffsets(ctx, "app")
		if err == nil {
			err = knowsACLs(t, b.dst, b.dst.Bootstrap(testkafka.ClientListener)[0], "app", 1)
		}
		d, e := replicasOf(t, b.dst, "orders")
		if err = errors.Join(err, e); err != nil {
			return err
		}
		at, committed := got.Lookup("orders", 0)
		if retention := topicConfigs(t, b.dst, "orders")["retention.ms"]; !committed || at.At != 10 || len(d.Partitions) != 3 || retention != "86400000" {
			return fmt.Errorf("group at %d (%v), %d partitions, retention.ms %q", at.At, committed, len(d.Partitions), retention)
		}
		return nil
	})
	cl := client(t, b.dst, kgo.TransactionalID("others"), kgo.DefaultProduceTopic("local"))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, &kgo.Record{Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	seen := kadm.NewClient(as(t, b.dst, kmirrorUser, b.dst.Bootstrap(testkafka.ClientListener)[0]))
	eventually(t, 30*time.Second, "the transaction among those that kmirror sees", func() error { // coordinators may still load what they know
		list, err := seen.ListTransactions(ctx, nil, nil)
		if _, ok := list["others"]; err == nil && !ok {
			err = fmt.Errorf("%v", list.TransactionalIDs())
		}
		return err
	})
	if err := cl.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Error(err)
	}
}

// retired: kmirror leaves for good, and takes a config of its node ids with it that a reassignment left there.
func (b *secureBed) retired(t *testing.T) {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r, c := kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, "9001"
	c.Name, c.Value = "leader.replication.throttled.rate", new("1000000")
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	controller, err := kgo.NewClient(append(b.dst.Security().PlainOpts(testkafka.AdminUser), kgo.SeedBrokers(b.dst.Controllers()[0]))...)
	if err != nil {
		t.Fatal(err)
	}
	defer controller.Close()
	resp, err := controller.SeedBrokers()[0].Request(timeout(t, 10*time.Second), req)
	if err == nil {
		err = kerr.ErrorForCode(resp.(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Log(b.s.must("retire", "--node-ids", "9001,9002", "--yes"))
	select {
	case err := <-b.s.done:
		if b.s.cmd = nil; err != nil {
			t.Errorf("kmirror ended with %v", err)
		}
	case <-time.After(patience(30 * time.Second)):
		t.Fatal("kmirror still runs")
	}
	img := imageOf(t, b.dst)
	for id := range img.Brokers {
		if id > 9000 {
			t.Errorf("node id %d is registered", id)
		}
	}
	if left := img.Configs[kraft.ConfigResource{Type: kraft.ConfigBroker, Name: "9001"}]; len(left) > 0 {
		t.Errorf("configs of node id 9001 are left: %v", left)
	}
}
