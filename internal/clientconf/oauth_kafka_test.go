package clientconf_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/clientconf"
	"kmirror/internal/testkafka"
)

// TestBearerAtARealBroker logs in by OAUTHBEARER with a token by reference. The broker wants a new login every three seconds, for which the
// token is read again: with one that has ended the connection ends.
func TestBearerAtARealBroker(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	sec := testkafka.NewSecurity(t)
	const l = "listener.name.client."
	broker := testkafka.Start(t, sec.Secure(testkafka.Options{Name: "bearer", Properties: map[string]string{
		"connections.max.reauth.ms":   "3000",
		l + "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
		l + "oauthbearer.sasl.jaas.config": `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ` +
			`unsecuredLoginStringClaim_sub="admin";`,
	}}))
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(testkafka.Bearer("reader", time.Minute))
	props := maps.Clone(sec.Properties(testkafka.AdminUser))
	props["bootstrap.servers"] = broker.Node(1).Addr(testkafka.ClientListener)
	props["sasl.mechanism"] = "OAUTHBEARER"
	props["sasl.jaas.config"] = `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required token="${file:` + file + `}";`
	connect := func() *kgo.Client {
		t.Helper()
		opts, _, err := clientconf.Options(props, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		cl, err := kgo.NewClient(append(opts, kgo.RequestRetries(1))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	ping := func(cl *kgo.Client) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return cl.Ping(ctx)
	}
	cl := connect()
	if err := ping(cl); err != nil {
		t.Fatalf("a good token: %v", err)
	}
	write(testkafka.Bearer("reader", -time.Minute))
	if err := ping(connect()); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("a token that has ended, on a new connection: %v", err)
	}
	refused := false
	for end := time.Now().Add(30 * time.Second); !refused && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		refused = ping(cl) != nil
	}
	if !refused {
		t.Error("after its session a connection goes on without a good token")
	}
	write(testkafka.Bearer("reader", time.Minute))
	if err := ping(cl); err != nil {
		t.Errorf("the token is good again: %v", err)
	}
}
