package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// coordinates reports whether a process runs the rounds of some mirror.
func (s *shim) coordinates() bool {
	s.tb.Helper()
	resp, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		s.tb.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		s.tb.Fatal(err)
	}
	return strings.Contains(string(page), "\nkmirror_sync_age_seconds{")
}

// TestStoppedCoordinator: the process that syncs groups is stopped (SIGSTOP) at work; the other fails the topic over, and its groups go on
// at the destination. What the first one does when it goes on must not move them.
func TestStoppedCoordinator(t *testing.T) {
	onlyInLong(t)
	const topic, groups = "orders", 200
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})
	createTopic(t, src, topic, 2, nil)
	produce(t, client(t, src), topic, 2, 1000, 20)
	a, b := makeShim(t, dst, 9001, ""), makeShim(t, dst, 9003, "")
	a.start()
	a.create(src, "mirror.metadata.refresh.interval.ms=100")
	a.mirror(topic)
	a.caughtUp(src, 3, time.Minute, topic)
	b.start()
	first, other := a, b
	eventually(t, time.Minute, "one coordinates, and stays", func() error {
		if a.coordinates() == b.coordinates() {
			return fmt.Errorf("a: %v, b: %v", a.coordinates(), b.coordinates())
		}
		if b.coordinates() {
			first, other = b, a
		}
		return nil
	})

	adm := kadm.NewClient(client(t, src))
	commit := func(adm *kadm.Client, n int, at int64) error {
		os := kadm.Offsets{}
		for p := range int32(2) {
			os.Add(kadm.Offset{Topic: topic, Partition: p, At: at, LeaderEpoch: 0})
		}
		return adm.CommitAllOffsets(context.Background(), fmt.Sprintf("app-%d", n), os)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	for k := range 4 {
		busy.Go(func() {
			for at := int64(1); ctx.Err() == nil; at = at%500 + 1 {
				for n := k; n < groups; n += 4 {
					if err := commit(adm, n, at); err != nil {
						t.Errorf("commit at the source: %v", err)
						return
					}
				}
			}
		})
	}
	defer busy.Wait()
	defer cancel()
	eventually(t, 30*time.Second, "groups are synced", func() error {
		if n := first.total("kmirror_sync_changes_total"); n < 3*groups {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	first.cmd.Process.Signal(syscall.SIGSTOP)
	began := time.Now()
	defer first.cmd.Process.Signal(syscall.SIGCONT)
	other.verb("failover", topic, "--wait", "60s")
	t.Logf("failed over %s after SIGSTOP", time.Since(began))
	here := kadm.NewClient(client(t, dst, kgo.RequestTimeoutOverhead(time.Second))) // it may ask the one that is stopped
	for n := range groups {
		eventually(t, 30*time.Second, "the group goes on", func() error { return commit(here, n, 900) })
	}
	first.cmd.Process.Signal(syscall.SIGCONT)
	time.Sleep(8 * time.Second)
	moved := 0
	for n := range groups {
		os, err := here.FetchOffsets(timeout(t, 20*time.Second), fmt.Sprintf("app-%d", n))
		if err != nil {
			t.Fatal(err)
		}
		for p := range int32(2) {
			if o, ok := os.Lookup(topic, p); !ok || o.At != 900 {
				moved++
			}
		}
	}
	if moved > 0 {
		t.Errorf("%d offsets were moved by a process that was stopped", moved)
	}
	other.get(30*time.Second, "STOPPED", topic)
	writable(t, dst, topic, "mine")
}
