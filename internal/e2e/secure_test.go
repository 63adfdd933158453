package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// Users of a secure pair: kmirror's at the destination, its mirror's at the source.
const (
	kmirrorUser = testkafka.GuestUser
	mirrorUser  = "mirror"
)

// securePair starts a source of one node and a destination of three brokers, one of them the controller. Each has an authority of its
// own, an authorizer, and the one user that kmirror has there. Shims in front of it, and mirrors of it, log in as those.
func securePair(t *testing.T) (src, dst *testkafka.Cluster) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	return secureCluster(t, testkafka.Options{Name: "src"}, mirrorUser),
		secureCluster(t, testkafka.Options{Name: "dst", Brokers: 3, Combined: 1}, kmirrorUser)
}

func secureCluster(t *testing.T, o testkafka.Options, user string) *testkafka.Cluster {
	t.Helper()
	sec, err := testkafka.NewSecurity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.Properties = map[string]string{"super.users": "User:admin;User:" + user}
	c := testkafka.Start(t, sec.Secure(o))
	addUsers(t, c, user)
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
	plain, err := sec.PlainReferences(kmirrorUser)
	if err != nil {
		tb.Fatal(err)
	}
	var legs string
	for key, props := range map[string]map[string]string{"client": client, "controller_client": plain, "replication_client": plain} {
		text, err := json.Marshal(props) // is YAML as well
		if err != nil {
			tb.Fatal(err)
		}
		legs += fmt.Sprintf("  %s: %s\n", key, text)
	}
	return security{legs: legs, client: fmt.Sprintf("SASL_SSL, tls: {certificate: %q, key: %q}", certificate, key), repl: "SASL_PLAINTEXT"}
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

// TestSecure mirrors from a cluster to another, both with TLS, SASL and an authorizer.
func TestSecure(t *testing.T) {
	src, dst := securePair(t)
	createTopic(t, src, "orders", 2, nil)
	produce(t, client(t, src), "orders", 2, 500, 200)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror("orders")
	s.caughtUp(src, 3, time.Minute, "orders")
	produce(t, client(t, src), "orders", 2, 500, 200)
	s.caughtUp(src, 3, 30*time.Second, "orders")
	sameSegments(t, src, dst, "orders", 2, 3)
	t.Log(s.must("verify", "--mirror", "m"))
}
