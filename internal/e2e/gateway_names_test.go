package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"kmirror/internal/testkafka"
)

// TestGatewayNames: behind one TLS port clients find each broker by its name, and nobody else anything.
func TestGatewayNames(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	const l = "listener.name.client."
	dst := secureCluster(t, testkafka.Options{Name: "dst", Brokers: 2, Properties: map[string]string{ // kcat's SCRAM is refused by today's brokers
		l + "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN", l + "plain.sasl.jaas.config": fmt.Sprintf(
			`org.apache.kafka.common.security.plain.PlainLoginModule required user_%s=%q;`, testkafka.AdminUser, namesPassword)}},
		kmirrorUser, "Rights at the destination")
	createTopic(t, dst, "rw", 2, nil)
	certificate, key, err := dst.Security().Certificate("gateway", "*.kafka.test")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameBed{dst: dst, addr: fmt.Sprintf("127.0.0.1:%d", freePort(t)), dialed: map[string]bool{}}
	n.s = newShim(t, dst, fmt.Sprintf(`gateway: [{name: CLIENT, bootstrap: %q, advertised_host: all.kafka.test, sni: {broker: "b{id}.kafka.test"}, `+
		`tls: {certificate: %q, key: %q}}]`, n.addr, certificate, key))
	_, n.port, _ = net.SplitHostPort(n.addr)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{{"franz-go", n.franz}, {"Java", n.java}, {"kcat", n.kcat}, {"a broker restarts", n.restart}, {"other names", n.others}} {
		t.Run(step.name, step.run)
	}
	if err := n.s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// namesPassword is the admin's with PLAIN.
const namesPassword = "names-secret"

// nameBed is a destination behind a gateway that tells its brokers apart by server name.
type nameBed struct {
	dst        *testkafka.Cluster
	s          *shim
	addr, port string

	mu     sync.Mutex
	dialed map[string]bool
}

// dial connects to a name, which no resolver knows: all of them are the gateway.
func (n *nameBed) dial(ctx context.Context, name string) (*tls.Conn, error) {
	pem, err := os.ReadFile(n.dst.Security().CA())
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", n.addr)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(nc, &tls.Config{ServerName: name, RootCAs: pool})
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return secure, nil
}

func (n *nameBed) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	sec := n.dst.Security()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers("all.kafka.test:"+n.port), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.SASL(scram.Auth{User: testkafka.AdminUser, Pass: sec.Password(testkafka.AdminUser)}.AsSha512Mechanism()),
		kgo.Dialer(func(ctx context.Context, _, addr string) (net.Conn, error) {
			n.mu.Lock()
			n.dialed[addr] = true
			n.mu.Unlock()
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return n.dial(ctx, host)
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// names are the brokers' and the bootstrap addresses.
func (n *nameBed) names() (list []string) {
	for _, name := range []string{"all", "b1", "b2", "b9001", "b9002"} {
		list = append(list, name+".kafka.test:"+n.port)
	}
	return list
}

func (n *nameBed) franz(t *testing.T) {
	produce(t, n.client(t), "rw", 2, 100, 100)
	cl := n.client(t, kgo.ConsumerGroup("franz"), kgo.ConsumeTopics("rw"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, got := timeout(t, time.Minute), 0
	for got < 200 && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(*kgo.Record) { got++ })
	}
	if err := cl.CommitUncommittedOffsets(ctx); got != 200 || err != nil {
		t.Errorf("the group got %d records, %v", got, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr := range n.dialed {
		if !slices.Contains(n.names(), addr) {
			t.Errorf("dialled %s", addr)
		}
	}
	for _, addr := range n.names()[:3] {
		if !n.dialed[addr] {
			t.Errorf("%s was not dialled: %v", addr, n.dialed)
		}
	}
}

// hosts is a file with the names of the brokers and of the bootstrap address.
func (n *nameBed) hosts(t *testing.T) string {
	t.Helper()
	hosts := filepath.Join(t.TempDir(), "hosts")
	var lines strings.Builder
	for _, addr := range n.names() {
		host, _, _ := net.SplitHostPort(addr)
		fmt.Fprintln(&lines, "127.0.0.1", host)
	}
	if err := os.WriteFile(hosts, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return hosts
}

// java: names come from a file, and there is no resolver for any other.
func (n *nameBed) java(t *testing.T) {
	hosts, sec := n.hosts(t), n.dst.Security()
	file, err := sec.WriteProperties("names.properties", sec.Properties(testkafka.AdminUser))
	if err != nil {
		t.Fatal(err)
	}
	run := func(in, class string, args ...string) string {
		cmd := testkafka.Tool(timeout(t, time.Minute), "", class,
			append(args, "--bootstrap-server", "all.kafka.test:"+n.port, "--command-config", file)...)
		cmd.Env, cmd.Stdin = append(os.Environ(), "JAVA_TOOL_OPTIONS=-Djdk.net.hosts.file="+hosts), strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", class, err)
		}
		return string(out)
	}
	run("a\nb\nc\n", "org.apache.kafka.tools.ConsoleProducer", "--topic", "rw")
	out := run("", "org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", "rw", "--from-beginning", "--max-messages", "203",
		"--command-property", "group.protocol=consumer")
	if !strings.Contains(out, "Processed a total of 203 messages") {
		t.Errorf("the consumer says\n%.3000s", out)
	}
}

// kcat: librdkafka finds the brokers by their names, in a mount namespace whose file of hosts has them.
func (n *nameBed) kcat(t *testing.T) {
	testkafka.EnsureKcat(t)
	hosts, sec := n.hosts(t), n.dst.Security()
	within := []string{"unshare", "-rm", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, hosts}
	if out, err := exec.Command(within[0], append(within[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("a mount namespace can't be made (it takes root, or user namespaces): %v %s", err, out)
	}
	run := func(in string, args ...string) string {
		args = slices.Concat(within[1:], []string{"kcat"}, testkafka.KcatPatience, []string{"-b", "all.kafka.test:" + n.port,
			"-X", "security.protocol=sasl_ssl", "-X", "sasl.mechanisms=PLAIN", "-X", "sasl.username=" + testkafka.AdminUser,
			"-X", "sasl.password=" + namesPassword, "-X", "ssl.ca.location=" + sec.CA()}, args)
		cmd := exec.CommandContext(timeout(t, time.Minute), within[0], args...)
		cmd.Stdin = strings.NewReader(in)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("kcat %v: %v %s", args[len(args)-1], err, &errs)
		}
		return string(out)
	}
	listed := run("", "-L")
	for _, name := range n.names()[1:3] {
		if !strings.Contains(listed, name) {
			t.Errorf("%s is not listed in\n%s", name, listed)
		}
	}
	for partition := range 2 { // each has its broker
		run("x\ny\n", "-P", "-t", "rw", "-p", strconv.Itoa(partition))
	}
	got := run("", "-C", "-t", "rw", "-o", "beginning", "-e", "-q")
	if strings.Count(got, "x\ny\n") != 2 {
		t.Errorf("kcat reads %d lines, and not twice what it wrote", strings.Count(got, "\n"))
	}
}

func (n *nameBed) restart(t *testing.T) {
	onlyInLong(t)
	stopBroker(t, n.dst, 2)
	startBroker(t, n.dst, 2)
	eventually(t, 30*time.Second, "broker 2 under its name", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		nc, err := n.dial(ctx, "b2.kafka.test")
		if err == nil {
			nc.Close()
		}
		return err
	})
	produce(t, n.client(t), "rw", 2, 10, 100)
}

func (n *nameBed) others(t *testing.T) {
	for _, name := range []string{"b3.kafka.test", "b01.kafka.test", "kafka.test", "localhost"} {
		nc, err := n.dial(timeout(t, 30*time.Second), name)
		if err == nil {
			nc.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", name, err)
		}
	}
	eventually(t, 30*time.Second, "the log names what is served", func() error {
		if !strings.Contains(mustRead(t, n.s.log), "served are all.kafka.test and, for brokers that are registered with listener CLIENT, b{id}.kafka.test") {
			return errors.New("it does not")
		}
		return nil
	})
}
