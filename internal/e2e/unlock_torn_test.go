package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// TestUnlockTorn interrupts unlock at many moments, and runs it again: topics are as before kmirror came.
func TestUnlockTorn(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	onlyInLong(t)
	w, all := tornBed(t)
	before := map[string]string{}
	for _, name := range all {
		before[name] = realReplicas(t, w.dst, name)
	}
	transact(t, w.src, "txn", all[0], 0, 10, "o")
	w.s.caughtUp(w.src, 3, time.Minute, all[0])
	w.s.kill()
	w.s.tb = t
	w.unlock(t, 0, "--topics", all[1]) // and by then the controller knows that kmirror is dead
	for i, name := range all {
		sig, delay := syscall.SIGKILL, time.Duration(i)*35*time.Millisecond+30*time.Millisecond
		if i%2 == 1 {
			sig = syscall.SIGINT
		}
		w.interrupted(t, name, sig, delay)
		res, text := w.unlock(t, 0, "--topics", name)
		for _, r := range res {
			if !r.Unlocked {
				t.Errorf("%+v %s", r, text)
			}
		}
		w.trueConfigs(t, name, "", "")
		// Of one replica the second that it had for a moment may be left (docs/gaps.md).
		if now := realReplicas(t, w.dst, name); now != before[name] && i%3 != 2 {
			t.Errorf("%s: replicas %s, were %s", name, now, before[name])
		}
		w.writable(t, name)
	}
}

// tornBed is a source with topics that are mirrored: each third of them has one replica at the destination, the others have three.
func tornBed(t *testing.T) (w *wayOut, all []string) {
	t.Helper()
	const n = 18
	w = &wayOut{src: testkafka.Start(t, testkafka.Options{Name: "src"}),
		dst: testkafka.Start(t, testkafka.Options{Name: "dst", Brokers: 3, Controllers: 1})}
	elrOn(t, w.dst)
	for i := range n {
		name := fmt.Sprintf("torn-%02d", i)
		all = append(all, name)
		createTopic(t, w.src, name, 2, nil)
		produce(t, client(t, w.src), name, 2, 20, 100)
		if i%3 == 2 {
			createAt(t, w.dst, name, [][]int32{{1}, {2}}, nil)
		}
	}
	w.s = newShim(t, w.dst, "")
	w.s.create(w.src)
	w.s.mirror(all...)
	for i, name := range all {
		isr := 3
		if i%3 == 2 {
			isr = 1
		}
		w.s.caughtUp(w.src, isr, time.Minute, name)
	}
	return w, all
}

// interrupted begins to unlock a topic and sends a signal after a while.
func (w *wayOut) interrupted(t *testing.T, topic string, sig syscall.Signal, after time.Duration) {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "unlock", "--config", w.s.config, "--topics", topic)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	polled(after, func() bool { return false })
	cmd.Process.Signal(sig)
	cmd.Wait()
	t.Logf("%s %s after %s: %v\n%s", topic, sig, after, cmd.ProcessState, out.String())
	if sig == syscall.SIGINT && cmd.ProcessState.ExitCode() > 0 && !strings.Contains(out.String(), "the same command again goes on") {
		t.Errorf("%s: interrupted, and no advice", topic)
	}
}

// realReplicas tells the real brokers of each partition.
func realReplicas(t *testing.T, c *testkafka.Cluster, topic string) string {
	t.Helper()
	d, err := replicasOf(t, c, topic)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for n := range int32(len(d.Partitions)) {
		real := slices.DeleteFunc(slices.Clone(d.Partitions[n].Replicas), func(id int32) bool { return id > 9000 })
		slices.Sort(real) // what is cut short loses their order
		out = append(out, fmt.Sprint(real))
	}
	return strings.Join(out, " ")
}
