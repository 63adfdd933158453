package testkafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/protocol"
)

func TestScanFaults(t *testing.T) {
	const prefix = "[2026-11-29 21:51:51,856] WARN [ReplicaFetcher replicaId=2, leaderId=1, fetcherId=0] "
	const suffix = " (kafka.server.ReplicaFetcherThread)\n"
	const (
		failed = prefix + "Partition orders-3 marked as failed" + suffix
		fenced = prefix + "Partition orders-3 has an older epoch (7) than the current leader. " +
			"Will await the new LeaderAndIsr state before resuming fetching." + suffix
		epoch7 = "[2026] INFO [Broker id=2] Follower orders-3 starts at leader epoch 7 from offset 10 (state.change.logger)\n"
		epoch8 = "[2026] INFO [Broker id=2] Follower orders-3 starts at leader epoch 8 from offset 10 (state.change.logger)\n"
		leads8 = "[2026] INFO [Broker id=2] Leader orders-3 with topic id Optional[x] starts at leader epoch 8 from offset 1\n"
		added  = "[2026] INFO [ReplicaFetcherManager on broker 2] Added fetcher to broker 9001 for partitions HashMap(orders-31 -> " +
			"InitialFetchState(Some(x),BrokerEndPoint[id=9001, host=127.0.0.1, port=1],8,10), orders-3 -> " +
			"InitialFetchState(Some(x),BrokerEndPoint[id=9001, host=127.0.0.1, port=1],%d,10)) (kafka.server.ReplicaFetcherManager)\n"
		gone = "[2026] INFO Log for partition orders-3 is renamed to /data/orders-3.855ca6a2107543528474b3f52639dca5-delete and is " +
			"scheduled for deletion (org.apache.kafka.storage.internals.log.LogManager)\n"
		other8 = "[2026] INFO [Broker id=2] Follower orders-31 starts at leader epoch 8 from offset 10 (state.change.logger)\n"
	)
	tests := []struct {
		name string
		log  string
		want int
	}{
		{"healthy", epoch7 + "[2026] INFO Kafka Server started (kafka.server.KafkaRaftServer)\n", 0},
		{"nonfatal", "[2026] ERROR Encountered nonfatal fault: writeNoOpRecord " +
			"(org.apache.kafka.server.fault.LoggingFaultHandler)\n", 1},
		{"metadata loading", "[2026] ERROR Encountered metadata loading fault: Error (x)\n", 1},
		{"fatal, cut short", "[2026] ERROR Encountered fatal fault: x", 1},
		{"index of the ISR", "java.lang.RuntimeException: Topic ID x existed in isrMembers, but not in the topics map.\n", 1},
		{"resigned for an internal error", "[2026] ERROR registerBroker: event failed with IllegalStateException " +
			"(treated as UnknownServerException) at epoch 2 in 9 microseconds. Renouncing leadership and reverting to the last " +
			"committed offset 7. (org.apache.kafka.controller.QuorumController)\n", 1},
		{"resigned for another leader", "[2026] ERROR writeNoOpRecord: event failed with NotLeaderException (treated as " +
			"NotControllerException) at epoch 2 in 9 microseconds. Renouncing leadership.\n", 0},
		{"failed", failed, 1},
		{"failed, next epoch helps nothing", failed + epoch8, 1},
		{"fenced for good", epoch7 + fenced + failed, 1},
		{"fenced, told the same epoch again", fenced + failed + epoch7, 1},
		{"fenced, another partition moves on", fenced + failed + other8, 1},
		{"fenced, then told the new epoch", epoch7 + fenced + failed + epoch8, 0},
		{"fenced, then dropped", epoch7 + fenced + failed + gone, 0},
		{"failed, then dropped", failed + gone, 1},
		{"fenced, then leads", epoch7 + fenced + failed + leads8, 0},
		{"fenced while told the new epoch", epoch8 + fenced + failed + fmt.Sprintf(added, 8), 0},
		{"fenced, fetches in the same epoch", fenced + failed + fmt.Sprintf(added, 7), 1},
		{"two faults", failed + epoch8 + failed, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := scanFaults(strings.NewReader(tt.log))
			if err != nil || len(got) != tt.want {
				t.Errorf("scanFaults = %q, %v, want %d lines", got, err, tt.want)
			}
		})
	}
}

func TestCheckpointFiles(t *testing.T) {
	n := &Node{ID: 1, dir: t.TempDir()}
	partition := filepath.Join(n.LogDir(), "a.b-c-2")
	if err := os.MkdirAll(partition, 0o755); err != nil {
		t.Fatal(err)
	}
	if marks, err := Checkpoints(n); err != nil || len(marks) != 0 {
		t.Errorf("Checkpoints before the first = %v, %v", marks, err)
	}
	write(t, filepath.Join(n.LogDir(), "replication-offset-checkpoint"), "0\n2\na.b-c 2 77\nx 0 9223372036854775807\n")
	marks, err := Checkpoints(n)
	if err != nil || len(marks) != 2 || marks[protocol.TopicPartition{Topic: "a.b-c", Partition: 2}] != 77 {
		t.Errorf("Checkpoints = %v, %v", marks, err)
	}
	write(t, filepath.Join(partition, "leader-epoch-checkpoint"), "0\n2\n0 0\n5 120\n")
	epochs, err := EpochCheckpoint(n, "a.b-c", 2)
	if want := []EpochStart{{0, 0}, {5, 120}}; err != nil || !slices.Equal(epochs, want) {
		t.Errorf("EpochCheckpoint = %v, %v, want %v", epochs, err, want)
	}
	for _, bad := range []string{"", "0\n", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na x 1\n", "0\n1\na 0 x\n"} {
		write(t, filepath.Join(n.LogDir(), "replication-offset-checkpoint"), bad)
		if marks, err := Checkpoints(n); err == nil {
			t.Errorf("Checkpoints of %q = %v, want an error", bad, marks)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"negative":         {Brokers: -1},
		"too many":         {Brokers: 101},
		"combined":         {Brokers: 2, Combined: 3},
		"bad cluster id":   {ClusterID: "no"},
		"negative base id": {BaseID: -1},
	} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	o, err := Options{
		Brokers: 2, Controllers: 1, Listeners: []string{"A", "B"},
		Properties:     map[string]string{"num.io.threads": "1", "x": "1"},
		NodeProperties: map[int32]map[string]string{2: {"x": `2\`}},
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	nodes := o.plan()
	for i, n := range nodes {
		n.ports = map[string]int{"A": 10 + i, "B": 20 + i, ControllerListener: 30 + i}
	}
	got := o.properties(nodes[1], nodes)
	for key, want := range map[string]string{
		"node.id": "2", "process.roles": "broker", "controller.quorum.voters": "101@127.0.0.1:32", "x": `2\`,
		"listeners": "A://127.0.0.1:11,B://127.0.0.1:21", "inter.broker.listener.name": "B", "num.io.threads": "1",
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT",
	} {
		if got[key] != want {
			t.Errorf("%s = %q, want %q", key, got[key], want)
		}
	}
	if text := string(formatProperties(got)); property(text, "x") != `2\\` || property(text, "node.id") != "2" {
		t.Errorf("file:\n%s", text)
	}
	if p := o.properties(nodes[2], nodes); p["listeners"] != "CONTROLLER://127.0.0.1:32" || p["x"] != "1" || p["advertised.listeners"] != "" {
		t.Errorf("controller's properties: %v", p)
	}
	o.Advertised = map[int32]map[string]string{2: {"A": "10.0.0.1:99"}}
	if p := o.properties(nodes[1], nodes); p["advertised.listeners"] != "A://10.0.0.1:99,B://127.0.0.1:21" {
		t.Errorf("advertised: %v", p)
	}
}

func TestLockFileWaitsAndGivesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lockFile(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v, want a deadline", err)
	}
	unlock()
	again, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	again()
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	if _, err := findJava(); err == nil || !strings.Contains(err.Error(), "scripts/setup.sh") {
		t.Errorf("findJava: %v", err)
	}
	if err := Kcat(t.Context(), "-V").Run(); err == nil || !strings.Contains(err.Error(), "kcat is not installed") {
		t.Errorf("Kcat: %v", err)
	}
}

// A registry that is away for a moment is asked again, one that stays away is told of.
func TestDownloadsAreTriedAgain(t *testing.T) {
	const fake = `#!/bin/sh
echo "$*" >> calls
test $(wc -l < calls) -gt "$FAILURES" || { echo "the registry is away"; exit 1; }
`
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "mvn"), []byte(fake), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for failures, good := range map[string]bool{"0": true, "2": true, "3": false} {
		t.Setenv("FAILURES", failures)
		dir := t.TempDir()
		err := runMaven(t.Context(), dir, nil, time.Millisecond)
		if (err == nil) != good || !good && !strings.Contains(err.Error(), "the registry is away") {
			t.Errorf("away %s times: %v", failures, err)
		}
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		if n := strings.Count(string(calls), "update-snapshots"); err != nil || n != strings.Count(string(calls), "\n")-1 {
			t.Errorf("away %s times: asked %v\n%s", failures, err, calls)
		}
	}
}

func TestPinnedSums(t *testing.T) {
	for _, v := range Versions() {
		if sums, err := pinned(kafkaBundle(v)); err != nil || len(sums) < 15 {
			t.Errorf("%s: %d sums, %v", v, len(sums), err)
		}
	}
	lib := t.TempDir()
	write(t, filepath.Join(lib, "a.jar"), "abc")
	const abc = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a" +
		"2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f" // FIPS 180-2, example of SHA-512
	if err := compareSums(lib, map[string]string{"a.jar": abc}); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(lib, "a.jar"), "abd")
	if err := compareSums(lib, map[string]string{"a.jar": abc}); err == nil {
		t.Error("a changed jar passes")
	}
}

func TestFreePorts(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < lowestPort || port >= ephemeralLow() {
			t.Errorf("port %d: given before, or out of range", port)
		}
		seen[port] = true
	}
	for range 20 {
		first, err := FreePorts(6)
		if err != nil {
			t.Fatal(err)
		}
		for port := first; port < first+6; port++ {
			if seen[port] || port >= ephemeralLow() {
				t.Errorf("port %d of a row from %d: given before, or out of range", port, first)
			}
			seen[port] = true
		}
	}
}

// verdict is a test that is judged by what Start leaves behind.
type verdict struct {
	testing.TB
	failed bool
	text   strings.Builder
}

func (v *verdict) Helper()                   {}
func (v *verdict) Failed() bool              { return v.failed }
func (v *verdict) Logf(f string, a ...any)   { fmt.Fprintf(&v.text, f+"\n", a...) }
func (v *verdict) Errorf(f string, a ...any) { v.failed = true; v.Logf(f, a...) }

func TestClusterJudgesItsTest(t *testing.T) {
	const fault = "ERROR Encountered nonfatal fault: x\n"
	tests := []struct {
		name, log, allow string
		failed           bool // by the test itself
		want             bool
	}{
		{"healthy", "INFO fine\n", "", false, false},
		{"fault", fault, "", false, true},
		{"fault allowed", fault, "nonfatal fault: x", false, false},
		{"failed anyway", "INFO fine\n", "", true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := &Node{ID: 1, dir: filepath.Join(t.TempDir(), "node-1")}
			c := &Cluster{opts: Options{Name: "c"}, dir: filepath.Dir(n.dir), nodes: []*Node{n}}
			n.cluster = c
			if err := os.Mkdir(n.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, n.Log(), tt.log)
			if tt.allow != "" {
				c.AllowFaults(tt.allow)
			}
			v := &verdict{TB: t, failed: tt.failed}
			c.finish(v)
			if v.failed != tt.want {
				t.Errorf("failed = %v, want %v:\n%s", v.failed, tt.want, v.text.String())
			}
			_, err := os.Stat(c.dir)
			if kept := err == nil; kept != tt.want || kept != strings.Contains(v.text.String(), "are kept in "+c.dir) {
				t.Errorf("kept = %v, want %v:\n%s", kept, tt.want, v.text.String())
			}
		})
	}
}

// TestWhatPassesIsNoFault: a test may end while a follower has given a partition up for an epoch that is about to come.
func TestWhatPassesIsNoFault(t *testing.T) {
	n := &Node{ID: 1, dir: filepath.Join(t.TempDir(), "node-1")}
	c := &Cluster{opts: Options{Name: "c"}, dir: filepath.Dir(n.dir), nodes: []*Node{n}}
	n.cluster = c
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const given = "[2026] INFO Partition orders-3 has an older epoch (7) than the current leader.\n[2026] WARN Partition orders-3 marked as failed\n"
	write(t, n.Log(), given)
	if len(c.Faults()) != 1 {
		t.Error("it is none even before")
	}
	later := time.AfterFunc(300*time.Millisecond, func() {
		text := given + "[2026] INFO [Broker id=2] Follower orders-3 starts at leader epoch 8 from offset 10\n"
		if err := os.WriteFile(n.Log()+".new", []byte(text), 0o644); err == nil {
			_ = os.Rename(n.Log()+".new", n.Log())
		}
	})
	defer later.Stop()
	v := &verdict{TB: t}
	if c.finish(v); v.failed {
		t.Errorf("held against the cluster:\n%s", v.text.String())
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Versions before 3.3 have ZooKeeper, from 4 on none has.
func TestVersionsWithZooKeeper(t *testing.T) {
	for version, wants := range map[string]struct{ with, without bool }{
		OldestWithZooKeeper: {true, false}, LastOfTwo: {true, false}, "3.2.3": {true, false}, "3.3.0": {true, true}, LaterWithZooKeeper: {true, true},
		LastOfThree: {true, true}, "3.10.0": {true, true}, "4.0.0": {false, true}, Latest: {false, true}, "10.0.0": {false, true},
	} {
		for keeper, want := range map[bool]bool{true: wants.with, false: wants.without} {
			if _, err := (Options{Version: version, ZooKeeper: keeper}).withDefaults(); (err == nil) != want {
				t.Errorf("%s, with ZooKeeper %v: %v", version, keeper, err)
			}
		}
	}
}
