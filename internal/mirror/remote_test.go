package mirror

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
)

// rememberer answers what another kmirror asks.
type rememberer struct{ admin.Service }

func (rememberer) LastMirrorEpochs(_ context.Context, cluster string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error) {
	if cluster != "us" {
		return nil, errors.New("another cluster")
	}
	return map[protocol.PartitionID]int32{parts[0]: 7}, nil
}

// A mirror asks the kmirror of its source by certificate, with properties of the mirror.
func TestSourceIsAskedByCertificate(t *testing.T) {
	sec := testkafka.NewSecurity(t)
	certificate, key, err := sec.Certificate("km")
	if err != nil {
		t.Fatal(err)
	}
	conf, err := clientconf.ServerTLS(clientconf.ServerFiles{Certificate: certificate, Key: key, CA: sec.CA()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := admin.New(admin.Config{Listen: l, Service: rememberer{}, TLS: conf, Allow: []string{"User:CN=km"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()

	store := filepath.Join(t.TempDir(), "store.pem")
	for _, f := range []string{key, certificate} {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		old, _ := os.ReadFile(store)
		if err := os.WriteFile(store, append(old, text...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := map[string]string{"bootstrap.servers": "a:1"}
	for name, v := range map[string]string{"bootstrap.servers": l.Addr().String(), "security.protocol": "SSL", "ssl.truststore.type": "PEM",
		"ssl.truststore.location": sec.CA(), "ssl.keystore.type": "PEM", "ssl.keystore.location": store} {
		config[clientconf.RemoteAdminPrefix+name] = v
	}
	remote, err := dialRemote(coordinator.Mirror{Name: "m", Config: config})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	id := protocol.PartitionID{Topic: protocol.UUID{1}}
	if got, err := remote.LastMirrorEpochs(ctx, "us", []protocol.PartitionID{id}); err != nil || got[id] != 7 {
		t.Errorf("got %v, %v", got, err)
	}
}
