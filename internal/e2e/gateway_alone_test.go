package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// aloneGateway makes a kmirror that is a gateway and nothing else, in front of the addresses, where dst is, with TLS and a login of a user
// where that is secure.
func aloneGateway(t *testing.T, dst *testkafka.Cluster, user, host string, servers ...string) (s *shim, first int) {
	t.Helper()
	s = &shim{tb: t, dst: dst, dir: t.TempDir(), http: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	s.config, s.log = filepath.Join(s.dir, "kmirror.yaml"), filepath.Join(s.dir, "kmirror.log")
	yaml, first := gatewayYAML(t, host)
	login := ""
	if sec := dst.Security(); sec != nil {
		certificate, key, err := sec.Certificate("alone")
		if err != nil {
			t.Fatal(err)
		}
		props, err := sec.References(user)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(props) // is YAML as well
		if err != nil {
			t.Fatal(err)
		}
		login = fmt.Sprintf(", client: %s", text)
		yaml = strings.Replace(yaml, "}]", fmt.Sprintf(", tls: {certificate: %q, key: %q}}]", certificate, key), 1)
	}
	s.client = fmt.Sprintf("%s:%d", host, first)
	yaml = fmt.Sprintf("http: %s\ndestination: {bootstrap_servers: [%s]%s}\nlog: {format: text}\ntrace: {file: %q}\n%s\n", s.http,
		strings.Join(servers, ", "), login, filepath.Join(s.dir, "trace.log"), yaml)
	if err := os.WriteFile(s.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("kmirror's log:\n%s", mustRead(t, s.log))
		}
	})
	return s, first
}

// TestGatewayAlone: with TLS and SASL a gateway alone needs no rights, clients are who they are, and brokers of another cluster that
// appear at an address are not believed.
func TestGatewayAlone(t *testing.T) {
	onlyInLong(t)
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	door := newDoorman(t)
	dst := testkafka.Start(t, testkafka.NewSecurity(t).Secure(testkafka.Options{Name: "dst",
		Advertised: map[int32]map[string]string{1: {testkafka.ClientListener: door.ln.Addr().String()}}}))
	door.leadsTo(dst.Node(1).Addr(testkafka.ClientListener))
	createTopic(t, dst, "rw", 1, nil)
	addUsers(t, dst, "reader", "writer", "nothing")
	grant(t, dst, "reader", acl{"TOPIC", "*", "READ"}, acl{"GROUP", "*", "READ"})
	grant(t, dst, "writer", acl{"TOPIC", "*", "WRITE"})
	s, _ := aloneGateway(t, dst, "nothing", "localhost", door.ln.Addr().String())
	s.start()

	writer := as(t, dst, "writer", s.client, kgo.DisableIdempotentWrite())
	produce(t, writer, "rw", 1, 100, 100)
	reader := as(t, dst, "reader", s.client, kgo.ConsumerGroup("alone"), kgo.ConsumeTopics("rw"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, n := timeout(t, time.Minute), 0
	for n < 100 && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(*kgo.Record) { n++ })
	}
	if n != 100 {
		t.Errorf("%d records", n)
	}
	err := as(t, dst, "reader", s.client, kgo.DisableIdempotentWrite()).ProduceSync(ctx, &kgo.Record{Topic: "rw", Value: []byte("no")}).FirstErr()
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("the reader writes: %v", err)
	}
	out, errs, code := s.local("preflight", "--config", s.config)
	if code != 0 || !strings.Contains(out, "the brokers have KRaft") || !strings.Contains(out, "it is not known whether brokers ask clients") {
		t.Errorf("preflight: exit %d\n%s%s", code, out, errs)
	}

	t.Run("another cluster", func(t *testing.T) {
		other := testkafka.Start(t, dst.Security().Secure(testkafka.Options{Name: "other", Brokers: 2}))
		addUsers(t, other, "nothing")
		door.leadsTo(other.Node(1).Addr(testkafka.ClientListener))
		door.hangUp()
		state(t, s, http.StatusServiceUnavailable, "is of cluster "+other.ID())
		if log := mustRead(t, s.log); strings.Contains(log, "broker=2") || !strings.Contains(log, "a broker is of another cluster") {
			t.Error("the other cluster's brokers are believed, or nothing is said")
		}
		door.leadsTo(dst.Node(1).Addr(testkafka.ClientListener))
		door.hangUp()
		state(t, s, http.StatusOK, "ok")
		produce(t, as(t, dst, "writer", s.client, kgo.DisableIdempotentWrite()), "rw", 1, 1, 1)
	})
	if err := s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}

	pinned := strings.Replace(mustRead(t, s.config), "http:", "cluster_id: 5L6g3nShT-eMCtK--X86sw\nhttp:", 1)
	if err := os.WriteFile(s.config, []byte(pinned), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := s.local("serve", "--config", s.config); code != 2 || !strings.Contains(errs, "cluster_id pins 5L6g3nShT") {
		t.Errorf("in front of another cluster than the pinned one: exit %d\n%s", code, errs)
	}
	if _, errs, code := s.local("serve", "--check", "--config", s.config); code != 2 || !strings.Contains(errs, "cluster_id pins 5L6g3nShT") {
		t.Errorf("--check: exit %d\n%s", code, errs)
	}
}

// state waits until /readyz answers so.
func state(t *testing.T, s *shim, code int, text string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("/readyz is %d", code), func() error {
		resp, err := http.Get("http://" + s.http + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != code || !strings.Contains(string(body), text) {
			return fmt.Errorf("%d %s %v", resp.StatusCode, body, err)
		}
		return nil
	})
}
