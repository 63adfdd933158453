package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

// TestHostUnharmed does with kmirror, its topics and its host's brokers what has made active controllers resign, again and again, when it
// was done in another order (fact 12 of docs/kafka-facts.md): topics with eligible leader replicas are unlocked and deleted, kmirror is
// killed between unlock and hand-over, and then brokers register uncleanly and node ids are unregistered. No controller may report a
// fault or resign.
func TestHostUnharmed(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	src := testkafka.Start(t, testkafka.Options{Name: "src"})
	for _, topic := range hostTopics {
		createTopic(t, src, topic, 2, nil)
		produce(t, client(t, src), topic, 2, 50, 100)
	}
	for _, version := range testkafka.Versions() {
		t.Run(version, func(t *testing.T) { hostUnharmed(t, src, version) })
	}
}

// hostTopics are each deleted in another way.
var hostTopics = []string{"one-left", "while-stopping", "cut-short", "kmirror-dead", "unlocked", "twice", "retired"}

func hostUnharmed(t *testing.T, src *testkafka.Cluster, version string) {
	dst := testkafka.Start(t, testkafka.Options{Name: "dst", Version: version, Brokers: 3, Controllers: 1, Properties: shortSessions})
	elrOn(t, dst)
	h := &host{faultBed: newFaultBed(t, src, dst), epoch: quorumOf(t, dst).LeaderEpoch}
	h.s.mirror(hostTopics...)
	h.s.caughtUp(src, 3, time.Minute, hostTopics...)
	all := version == testkafka.Latest || os.Getenv(allFaults) != ""
	for _, step := range []struct {
		name  string
		run   func(t *testing.T)
		often bool
	}{
		{"killed before unlock, failed over with one broker left, deleted", h.oneLeft, true},
		{"killed between unlock and hand-over, deleted, unlocked by hand, restarted, started again", h.whileDead, all},
		{"mirrored again, failed over again, deleted", h.twice, all},
		{"retired", h.retired, true},
		{"come back, killed, deleted, unregistered by hand", h.goesForGood, all},
	} {
		if !step.often {
			continue
		}
		h.try(step.name, func(t *testing.T) {
			begin := time.Now()
			step.run(t)
			h.unharmed(t)
			t.Log(time.Since(begin).Round(100 * time.Millisecond))
		})
		if t.Failed() {
			return // each begins where the one before it ended
		}
	}
}

// host is a destination whose controller is watched.
type host struct {
	*faultBed
	epoch int32 // of the controllers' quorum
}

// unharmed wants no fault in any log, and the controller that was active all the time.
func (h *host) unharmed(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, "logs without faults", func() error { // what a follower complains of in passing is none once it goes on
		if faults := h.dst.Faults(); len(faults) > 0 {
			return fmt.Errorf("%s", strings.Join(faults, "\n"))
		}
		return nil
	})
	if now := quorumOf(t, h.dst).LeaderEpoch; now != h.epoch {
		t.Errorf("the active controller resigned: the quorum is at epoch %d, it was at %d", now, h.epoch)
	}
}

// crash kills brokers; reboot starts them again, which is an unclean registration.
func (h *host) crash(t *testing.T, ids ...int32) {
	t.Helper()
	for _, id := range ids {
		if err := h.dst.Node(id).Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *host) reboot(t *testing.T, ids ...int32) {
	t.Helper()
	for _, id := range ids {
		if err := h.dst.Node(id).Spawn(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if err := h.dst.Node(id).Wait(timeout(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
}

// remove deletes a topic of the destination.
func (h *host) remove(t *testing.T, topic string) {
	t.Helper()
	rs, err := kadm.NewClient(client(t, h.dst)).DeleteTopics(timeout(t, 20*time.Second), topic)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		t.Fatalf("delete %s: %v", topic, err)
	}
}

// oneLeft: kmirror and two of three brokers die when a topic is about to be unlocked, so that min.insync.replicas would be written while
// there are eligible leader replicas. Another topic is failed over, with our ids in the lead and two brokers gone; one is deleted while
// it stops.
func (h *host) oneLeft(t *testing.T) {
	h.dies(t, "stored STOPPING hand over", func() { h.s.run("failover", "--mirror", "m", "--topics", "one-left", "--wait", "50ms") })
	h.eligible(t, "one-left", 9001, 9002)
	h.crash(t, 2, 3)
	h.eligible(t, "one-left", 2, 3)
	h.s.start()
	h.s.get(time.Minute, "STOPPED", "one-left")
	h.s.verb("failover", "twice")
	for _, topic := range []string{"one-left", "twice"} {
		writable(t, h.dst, topic, "with one broker left")
	}
	h.remove(t, "one-left")
	h.s.run("failover", "--mirror", "m", "--topics", "while-stopping", "--wait", "1ms")
	h.remove(t, "while-stopping")
	h.reboot(t, 2, 3)
	h.s.get(30*time.Second, "STOPPED", "while-stopping")
	h.s.caughtUp(h.src, 3, time.Minute, "cut-short", "kmirror-dead", "unlocked", "retired")
}

// eligible waits until one of the ids is an eligible leader replica of a topic.
func (h *host) eligible(t *testing.T, topic string, ids ...int32) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("eligible leader replicas of %s among %v", topic, ids), func() error {
		var all [][]int32
		for _, p := range imageOf(t, h.dst).TopicByName(topic).Partitions { // as long as it is there
			all = append(all, p.ELR)
			if slices.ContainsFunc(ids, func(id int32) bool { return slices.Contains(p.ELR, id) }) {
				return nil
			}
		}
		return fmt.Errorf("%v", all)
	})
}

// whileDead: kmirror dies when a topic is free and our ids still lead it. That topic is deleted, another one too, of which our ids are
// eligible leader replicas, and a third one is freed by hand first.
func (h *host) whileDead(t *testing.T) {
	h.dies(t, "unlocked", func() { h.s.run("failover", "--mirror", "m", "--topics", "cut-short", "--wait", "50ms") })
	h.eligible(t, "kmirror-dead", 9001, 9002)
	h.eligible(t, "unlocked", 9001, 9002)
	eventually(t, 30*time.Second, "real brokers lead", func() error { return ledByRealBrokers(t, h.dst, "cut-short") })
	h.remove(t, "cut-short")
	h.remove(t, "kmirror-dead")
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(timeout(t, 2*time.Minute), bin, "unlock", "--config", h.s.config, "--topics", "unlocked", "--yes")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("unlock: %v\n%s", err, out)
	}
	writable(t, h.dst, "unlocked", "by hand")
	h.remove(t, "unlocked")
	h.s.start()
	h.s.get(30*time.Second, "STOPPED", "cut-short")
	h.s.get(30*time.Second, "FAILED", "kmirror-dead")
	h.s.mirror("kmirror-dead")
	h.s.caughtUp(h.src, 3, time.Minute, "kmirror-dead", "retired")
}

// twice: a topic that was failed over is taken over again, with the records that it got meanwhile, and a broker crashes before it is
// failed over once more.
func (h *host) twice(t *testing.T) {
	leads(t, h.dst, "twice", 3, time.Minute)
	h.s.must("start", "--mirror", "m", "--topics", "twice", "--overwrite", "--yes")
	h.s.caughtUp(h.src, 3, time.Minute, "twice")
	h.crash(t, 2)
	h.s.verb("failover", "twice")
	h.remove(t, "twice")
	h.reboot(t, 2)
}

// retired: what is left is handed back, the ids are unregistered, and what was configured for them goes.
func (h *host) retired(t *testing.T) {
	h.s.caughtUp(h.src, 3, time.Minute, "kmirror-dead", "retired")
	// As a reassignment with a throttle leaves it behind.
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for _, id := range []string{"9001", "9002"} {
		r, rate := kmsg.NewIncrementalAlterConfigsRequestResource(), "1000000"
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, id
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = "leader.replication.throttled.rate", &rate
		r.Configs = append(r.Configs, c)
		req.Resources = append(req.Resources, r)
	}
	resp, err := h.atController(t, req)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		if r.ErrorCode != 0 {
			t.Fatalf("config of broker %s: %v", r.ResourceName, kerr.ErrorForCode(r.ErrorCode))
		}
	}
	eventually(t, 30*time.Second, "configs of both node ids", func() error {
		if n := h.configured(t); n != 2 {
			return fmt.Errorf("%d have some", n)
		}
		return nil
	})
	h.crash(t, 2)
	t.Log(h.s.must("retire", "--node-ids", "9001,9002", "--failover", "--yes"))
	select {
	case err := <-h.s.done:
		if h.s.cmd = nil; err != nil {
			t.Errorf("kmirror ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("kmirror still runs")
	}
	h.gone(t)
	for _, topic := range []string{"kmirror-dead", "retired"} {
		writable(t, h.dst, topic, "after the retirement")
		h.remove(t, topic)
	}
	h.reboot(t, 2)
	h.crash(t, 1, 3)
	h.reboot(t, 1, 3)
}

// gone wants nothing of kmirror's ids to be left.
func (h *host) gone(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, "no trace of kmirror's ids", func() error {
		img := imageOf(t, h.dst)
		if n := h.configured(t); n > 0 || img.Brokers[9001] != nil || img.Brokers[9002] != nil {
			return fmt.Errorf("9001 registered: %v, 9002: %v, %d with configs", img.Brokers[9001] != nil, img.Brokers[9002] != nil, n)
		}
		for _, topic := range img.Topics {
			for n, p := range topic.Partitions {
				for _, id := range slices.Concat(p.Replicas, p.ISR, p.ELR, p.LastKnownELR) {
					if id > 9000 {
						return fmt.Errorf("%s-%d names %d: %+v", topic.Name, n, id, p)
					}
				}
			}
		}
		return nil
	})
}

// configured counts kmirror's node ids that have configs of their own.
func (h *host) configured(t *testing.T) (n int) {
	t.Helper()
	img := imageOf(t, h.dst)
	for _, id := range []string{"9001", "9002"} {
		if len(img.Configs[kraft.ConfigResource{Type: kraft.ConfigBroker, Name: id}]) > 0 {
			n++
		}
	}
	return n
}

// goesForGood: the ids come back, and their process dies with them as eligible leader replicas of a topic. The topic is deleted and the
// ids are unregistered by an administrator, then brokers crash and come back.
func (h *host) goesForGood(t *testing.T) {
	h.s.start()
	h.s.mirror("one-left")
	h.s.caughtUp(h.src, 3, time.Minute, "one-left")
	h.s.kill()
	h.eligible(t, "one-left", 9001, 9002)
	h.remove(t, "one-left")
	for _, id := range []int32{9001, 9002} {
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = id
		resp, err := h.atController(t, req)
		if err == nil {
			err = kerr.ErrorForCode(resp.(*kmsg.UnregisterBrokerResponse).ErrorCode)
		}
		if err != nil {
			t.Fatalf("unregister %d: %v", id, err)
		}
	}
	h.gone(t)
	h.crash(t, 2, 3)
	h.reboot(t, 2, 3)
	createTopic(t, h.dst, "afterwards", 2, nil)
	writable(t, h.dst, "afterwards", "as before")
}

// atController asks the controller itself: a broker takes no configs of ids but its own.
func (h *host) atController(t *testing.T, req kmsg.Request) (kmsg.Response, error) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(h.dst.Controllers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	return cl.SeedBrokers()[0].Request(timeout(t, 20*time.Second), req)
}

// imageOf is a cluster's metadata as a controller has it on disk.
func imageOf(t *testing.T, c *testkafka.Cluster) *kraft.Image {
	t.Helper()
	i := slices.IndexFunc(c.Nodes(), func(n *testkafka.Node) bool { return n.Controller })
	img := kraft.Empty()
	for _, b := range batchesOf(t, c.Nodes()[i], "__cluster_metadata", 0) {
		if b.IsControl() {
			continue
		}
		values, err := records.Values(b)
		if err == nil {
			img, err = img.Apply(b.LastOffset(), b.PartitionLeaderEpoch(), values)
		}
		if err != nil {
			t.Fatalf("metadata log at offset %d: %v", b.BaseOffset(), err)
		}
	}
	return img
}
