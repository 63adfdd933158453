package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"kmirror/internal/testkafka"
)

// TestOldBrokersLogins: clients that log in at brokers before 2.8 produce through a gateway alone, also to so many partitions at once that
// the decoded request counts as memory. Those brokers end the connection of who asks them for rights as newer ones are asked.
func TestOldBrokersLogins(t *testing.T) {
	onlyInLong(t)
	t.Parallel()
	const listener, partitions = "LOGIN", 100
	const jaas = `org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p" user_u="p";`
	dst := testkafka.Start(t, testkafka.Options{Name: "old", Version: testkafka.OldestWithZooKeeper, ZooKeeper: true, Brokers: 1,
		Listeners: []string{testkafka.ClientListener, listener, testkafka.ReplListener}, Properties: map[string]string{
			"listener.security.protocol.map": testkafka.ClientListener + ":PLAINTEXT," + listener + ":SASL_PLAINTEXT,REPL:PLAINTEXT",
			"sasl.enabled.mechanisms":        "PLAIN", "listener.name.login.plain.sasl.jaas.config": jaas,
		}})
	s, _ := aloneGateway(t, dst, "", "127.0.0.1", dst.Node(1).Addr(listener))
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte("p"), 0o600); err != nil {
		t.Fatal(err)
	}
	login := fmt.Sprintf(`destination: {client: {security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.jaas.config: `+
		`'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="${file:%s}";'}, `, password)
	text := strings.Replace(mustRead(t, s.config), "destination: {", login, 1)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.client), kgo.SASL(plain.Auth{User: "u", Pass: "p"}.AsMechanism()), kgo.ProducerLinger(time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("wide"), kgo.DisableIdempotentWrite(), kgo.RecordRetries(3))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx := timeout(t, time.Minute)
	eventually(t, time.Minute, "a topic is created through the gateway", func() error {
		_, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, 1, nil, "wide")
		if errors.Is(err, kerr.TopicAlreadyExists) {
			return nil // by a try before, whose answer was lost
		}
		return err
	})
	var records []*kgo.Record
	for p := range int32(partitions) {
		records = append(records, &kgo.Record{Partition: p, Value: []byte("v")})
	}
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Error(err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}
