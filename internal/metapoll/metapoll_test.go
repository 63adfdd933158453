package metapoll

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// told is an answer of a cluster.
func told(cluster, brokers string) *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	if resp.Brokers = answer(brokers); cluster != "" {
		resp.ClusterID = &cluster
	}
	return resp
}

func source(t *testing.T, pin string) *Poller {
	t.Helper()
	s, err := New(Config{Bootstrap: []string{"boot:9092", "a:1"}, Listener: "CLIENT", SecurityProtocol: 3, ClusterID: pin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Answers of another cluster than the first one are not taken, and what is known stays.
func TestAnotherCluster(t *testing.T) {
	s, now := source(t, ""), time.Now()
	if _, err := s.take("a:1", told("one", "1=a:1"), now); err != nil || s.Ready() != nil {
		t.Fatal(err, s.Ready())
	}
	for range 2 {
		if _, err := s.take("a:1", told("two", "1=b:1 7=c:1"), now); err == nil || !strings.Contains(err.Error(), "is of cluster two") {
			t.Fatalf("taken: %v", err)
		}
	}
	if got := believed(s.Image()); got != "1=a:1" || s.Ready() == nil {
		t.Errorf("%s, ready: %v", got, s.Ready())
	}
	if _, err := s.take("a:1", told("one", "1=a:1"), now); err != nil || s.Ready() != nil {
		t.Errorf("the first cluster again: %v, %v", err, s.Ready())
	}
	if _, err := s.take("a:1", told("", "1=a:1 2=b:1"), now); err != nil || believed(s.Image()) != "1=a:1 2=b:1" {
		t.Errorf("a broker that names no cluster: %v, %s", err, believed(s.Image()))
	}
}

// Of a cluster that is pinned nothing else is taken, from the first answer on.
func TestPinnedCluster(t *testing.T) {
	s := source(t, "one")
	_, err := s.take("a:1", told("two", "1=a:1"), time.Now())
	var mismatch *MismatchError
	if !errors.As(err, &mismatch) || mismatch.Got != "two" || len(s.Image().Brokers) > 0 {
		t.Errorf("%v, %s", err, believed(s.Image()))
	}
	if _, err := s.take("a:1", told("one", "1=a:1"), time.Now()); err != nil {
		t.Error(err)
	}
}

// Brokers are asked at their own addresses, in turn, and those of the configuration that lead elsewhere only after them.
func TestSeeds(t *testing.T) {
	s := source(t, "")
	changed := s.Changed()
	if _, err := s.take("boot:9092", told("one", "2=b:1 1=a:1"), time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.seeds, " "); got != "a:1 b:1 boot:9092" || s.known != 2 || len(s.cl.SeedBrokers()) != 3 {
		t.Errorf("seeds %s, %d of them brokers", got, s.known)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told")
	}
	if e := s.Image().Brokers[1].Endpoints[0]; e.Name != "CLIENT" || e.SecurityProtocol != 3 {
		t.Errorf("%+v", e)
	}
}

// Ready wants brokers, and answers that are not old.
func TestReady(t *testing.T) {
	s := source(t, "")
	if s.Ready() == nil {
		t.Error("ready before the first answer")
	}
	if _, err := s.take("a:1", told("one", ""), time.Now()); err == nil || s.Ready() == nil {
		t.Error("ready by a broker that knows of none")
	}
	if _, err := s.take("a:1", told("one", "1=a:1"), time.Now().Add(-2*staleAfter)); err != nil || s.Ready() == nil {
		t.Errorf("%v; ready by an old answer", err)
	}
	if _, err := s.take("a:1", told("one", "1=a:1"), time.Now()); err != nil || s.Ready() != nil {
		t.Error(err, s.Ready())
	}
}
