package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// TestEligibleLeaderReplicas stops and exchanges brokers and kmirror so that a lagging replica would become leader, cleanly
// by the controller's book, if the lock's min.insync.replicas or our high watermark told it lies (fact 11 of docs/kafka-facts.md).
func TestEligibleLeaderReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	const topic = "orders"
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	elrOn(t, dst)
	createTopic(t, src, topic, 1, nil)
	produce(t, client(t, src), topic, 1, 100, 100)
	s := newShim(t, dst, "")
	s.create(src)
	s.mirror(topic)
	s.caughtUp(src, 3, time.Minute, topic)
	consumer, hw := follow(t, dst, topic, 1), watchMarks(t, dst, topic, 1)
	consumer.reaches(t, src, 30*time.Second)

	end := int64(100)
	for _, tt := range []struct {
		name    string
		stopped []int32 // while 100 more records come
		then    []int32 // stopped after that, with kmirror, while the others start
		visible bool    // those records may be shown to consumers
	}{
		{"one lags", []int32{3}, []int32{2, 1}, true},
		{"two lag", []int32{3, 2}, []int32{1}, false},
	} {
		ok := t.Run(tt.name, func(t *testing.T) {
			s.tb = t
			exchange(t, s, consumer, src, topic, tt.stopped, tt.then, end, tt.visible)
		})
		if s.tb, end = t, end+100; !ok {
			break
		}
	}
	s.equal(src, topic, 1, 3)
	consumer.check(t, src)
	hw.never(t)
}

// exchange lets 100 records from end on come while some brokers are down, then exchanges those that got them, and kmirror,
// for the others, and lets all return.
func exchange(t *testing.T, s *shim, consumer *tail, src *testkafka.Cluster, topic string, stopped, then []int32, end int64, visible bool) {
	for _, id := range stopped {
		stopBroker(t, s.dst, id)
	}
	produce(t, client(t, src), topic, 1, 100, 100)
	for _, id := range then {
		eventually(t, 30*time.Second, fmt.Sprintf("the new records on broker %d", id), func() error {
			_, has, err := logDigest(s.dst.Node(id), topic, 0, 0)
			if err == nil && has != end+100 {
				err = fmt.Errorf("it has %d", has)
			}
			return err
		})
	}
	if visible {
		consumer.reaches(t, src, 30*time.Second)
	} else if polled(3*time.Second, func() bool { return consumer.at()[0] > end }) {
		t.Errorf("a consumer saw offset %d with %d brokers down", consumer.at()[0], len(stopped))
	}
	for _, id := range then {
		stopBroker(t, s.dst, id)
	}
	if err := s.stop(); err != nil {
		t.Errorf("kmirror ended with %v", err)
	}
	for _, id := range stopped {
		startBroker(t, s.dst, id)
	}
	seen := consumer.at()[0]
	// What is wrong here is wrong within moments of the brokers' return: they elect, and truncate.
	polled(5*time.Second, func() bool {
		short := leadsShort(t, s.dst, topic, stopped, seen)
		if short != "" {
			t.Error(short)
		}
		return short != ""
	})
	for _, id := range then {
		startBroker(t, s.dst, id)
	}
	s.start()
	s.healed(src, time.Minute, topic, 3)
	consumer.reaches(t, src, 30*time.Second)
}

// leadsShort says whether one of the brokers leads with a log that lacks what a consumer has seen.
func leadsShort(t *testing.T, dst *testkafka.Cluster, topic string, brokers []int32, seen int64) string {
	t.Helper()
	d, err := replicasOf(t, dst, topic)
	if err != nil {
		return "" // no answer, or no leader
	}
	leader := d.Partitions[0].Leader
	if !slices.Contains(brokers, leader) {
		return ""
	}
	_, has, err := logDigest(dst.Node(leader), topic, 0, 0)
	if err != nil {
		return "" // it truncates its log just now
	}
	if has < seen {
		return fmt.Sprintf("broker %d leads and ends at %d, a consumer has seen the records up to %d", leader, has, seen)
	}
	return ""
}

func stopBroker(t *testing.T, c *testkafka.Cluster, id int32) {
	t.Helper()
	if err := c.Node(id).Stop(); err != nil {
		t.Fatal(err)
	}
}

func startBroker(t *testing.T, c *testkafka.Cluster, id int32) {
	t.Helper()
	if err := c.Node(id).Start(); err != nil {
		t.Fatal(err)
	}
}

// elrOn wants a cluster that elects from eligible leader replicas; otherwise the test shows nothing.
func elrOn(t *testing.T, c *testkafka.Cluster) {
	t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kmirror", "test"
	resp, err := atBroker(t, c.Node(1), req)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range resp.(*kmsg.ApiVersionsResponse).FinalizedFeatures {
		if f.Name == "eligible.leader.replicas.version" && f.MaxVersionLevel >= 1 {
			return
		}
	}
	t.Fatal("eligible.leader.replicas.version is not finalized")
}
