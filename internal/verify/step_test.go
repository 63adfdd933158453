package verify

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/goleak"

	"kmirror/internal/admin"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// images is an image that tests exchange.
type images struct{ img *kraft.Image }

func (i *images) Image() *kraft.Image      { return i.img }
func (i *images) Changed() <-chan struct{} { return nil }

func imageOf(p *peers, isr ...int32) *kraft.Image {
	part := &kraft.Partition{Replicas: isr, ISR: isr, Leader: 9001}
	topic := &kraft.Topic{ID: p.id, Name: p.topic, Partitions: []*kraft.Partition{part}}
	return &kraft.Image{
		Topics: map[protocol.UUID]*kraft.Topic{p.id: topic}, Names: map[string]protocol.UUID{p.topic: p.id},
	}
}

// rig is a source and a destination of brokers 1-3 that 9001 leads.
type rig struct {
	source, dest *peers
	images       *images
	v            *Verifier
}

func newRig(t *testing.T, policy string, source []records.Batch, dest map[int32][]records.Batch) *rig {
	r := &rig{source: newPeers(t, policy, map[int32][]records.Batch{1: source}), dest: newPeers(t, policy, dest)}
	isr := []int32{9001}
	for id := range dest {
		isr = append(isr, id)
	}
	slices.Sort(isr)
	r.images = &images{imageOf(r.dest, isr...)}
	var err error
	r.v, err = New(Config{
		Images: r.images, Owns: func(id int32) bool { return id > 9000 }, Destination: r.dest.opts(),
		Source: func(mirror, topic string) (Source, error) {
			return Source{Opts: r.source.opts(), Key: "k", TopicID: r.source.id}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.v.Close)
	return r
}

var request = admin.VerifyRequest{Mirror: "m", Topic: "orders"}

// verify runs steps until the end and adds them up.
func (r *rig) verify(t *testing.T, req admin.VerifyRequest) admin.VerifyResponse {
	t.Helper()
	sum, err := r.steps(t, req)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// steps is verify for what may end in an error.
func (r *rig) steps(t *testing.T, req admin.VerifyRequest) (sum admin.VerifyResponse, err error) {
	t.Helper()
	for range 50 {
		resp, err := r.v.Step(t.Context(), req)
		if err != nil {
			return sum, err
		}
		resp.Batches += sum.Batches
		resp.Differ += sum.Differ
		resp.Bytes += sum.Bytes
		if sum.First != nil {
			resp.First = sum.First
		}
		if sum = resp; resp.Done {
			return sum, nil
		}
		req.Cursor = resp.Cursor
	}
	return sum, errors.New("no end after 50 steps")
}

// many is a log of n batches of three records each, with transactions and gaps.
func many(n int) []spec {
	out := make([]spec, n)
	at := int64(10)
	for i := range out {
		out[i] = spec{base: at, epoch: int32(i / 10), recs: recordsAt(0, 1, 2), maxTime: int64(1000 + i)}
		if at += 3; i%4 == 0 {
			at += 5
		}
	}
	return out
}

func three(s []spec) map[int32][]records.Batch {
	return map[int32][]records.Batch{1: sequence(s...), 2: sequence(s...), 3: sequence(s...)}
}

func TestStepEqual(t *testing.T) {
	t.Parallel()
	r := newRig(t, "delete", sequence(many(50)...), three(many(50)))
	got := r.verify(t, request)
	if got.Batches != 50 || got.Differ != 0 || got.First != nil || got.Note != "" {
		t.Errorf("got %+v", got)
	}
	for id, b := range r.dest.brokers {
		if b.fetches < 2 {
			t.Errorf("replica %d was not read", id)
		}
	}
}

// What is a mirror at the source too is led by a kmirror there, which sends consumers to a real broker. One that sends on is not followed.
func TestStepReadsWhereTheSourceSendsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, "delete", sequence(many(50)...), three(many(50)))
	r.source = newPeers(t, "delete", map[int32][]records.Batch{1: sequence(many(50)...), 2: sequence(many(50)...)})
	t.Cleanup(r.v.Close) // before these brokers wait for its connections
	r.source.script(func(b map[int32]*peer) { b[1].prefer = 2 })
	if got := r.verify(t, request); got.Batches != 50 || got.Differ != 0 || r.source.brokers[2].fetches == 0 {
		t.Errorf("got %+v", got)
	}
	r.v.stepTime = 30 * time.Millisecond
	r.source.script(func(b map[int32]*peer) { b[2].prefer = 1 })
	if _, err := r.steps(t, request); err == nil || !strings.Contains(err.Error(), "sends consumers to broker 1") {
		t.Errorf("sent from one to the other: %v", err)
	}
}

// A difference on one replica of three is found and that replica named; the batch counts once.
func TestStepNamesTheReplica(t *testing.T) {
	t.Parallel()
	dest := three(many(30))
	dest[2][7][len(dest[2][7])-1] ^= 1
	dest[3][7][len(dest[3][7])-1] ^= 2
	dest[3][20][15]++
	r := newRig(t, "delete", sequence(many(30)...), dest)
	got := r.verify(t, request)
	if got.Batches != 30 || got.Differ != 2 || got.First == nil {
		t.Fatalf("got %+v", got)
	}
	want := dest[2][7].BaseOffset()
	if f := got.First; f.Offset != want || f.Field != "payload_crc32c" || f.Topic != "orders" ||
		!strings.Contains(f.Destination, "(broker 2)") || !strings.Contains(f.Destination, "damaged") {
		t.Errorf("first difference %+v, want offset %d on broker 2", got.First, want)
	}
}

// The end is pinned by the first step, below what the slowest replica shows (kcat #33).
func TestStepPinsTheEnd(t *testing.T) {
	t.Parallel()
	all := many(40)
	r := newRig(t, "delete", sequence(all...), three(all))
	r.v.stepTime = 400 * time.Millisecond
	r.source.script(func(b map[int32]*peer) { b[1].hw = all[30].base })
	r.dest.script(func(b map[int32]*peer) { b[2].hw = all[25].base })
	first, err := r.v.Step(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	cur, err := decodeCursor(first.Cursor)
	if err != nil || cur.End != all[25].base {
		t.Fatalf("end %d, want %d; %+v %v", cur.End, all[25].base, first, err)
	}
	batches := first.Batches
	if !first.Done { // on a busy machine its time is over before
		req := request
		req.Cursor = first.Cursor
		first = r.verify(t, req)
		batches += first.Batches
	}
	if batches != 25 || !strings.Contains(first.Note, "beyond the destination's high watermark") {
		t.Errorf("%d batches, got %+v", batches, first)
	}
}

// TestStepWithoutTime: brokers that take all of a step's time to answer are compared all the same, step by step.
func TestStepWithoutTime(t *testing.T) {
	t.Parallel()
	all := many(40)
	r := newRig(t, "delete", sequence(all...), three(all))
	r.v.stepTime = 100 * time.Millisecond
	r.source.script(func(b map[int32]*peer) { b[1].slow = r.v.stepTime })
	r.dest.script(func(b map[int32]*peer) { b[2].hw = all[25].base })
	got := r.verify(t, request)
	if got.Batches != 25 || got.Differ != 0 || !strings.Contains(got.Note, "beyond the destination's high watermark") {
		t.Errorf("got %+v", got)
	}
}

func TestStepLogStarts(t *testing.T) {
	t.Parallel()
	all := many(20)
	dest := three(all)
	r := newRig(t, "delete", sequence(all...), dest)
	r.dest.script(func(b map[int32]*peer) {
		b[3].log = b[3].log[4:]
		b[3].start = b[3].log[0].BaseOffset()
	})
	got := r.verify(t, request)
	if got.Batches != 16 || got.Differ != 0 || !strings.Contains(got.Note, "log starts differ") {
		t.Errorf("got %+v", got)
	}
	// A log start in the middle of a batch: the batch is compared.
	r.dest.script(func(b map[int32]*peer) { b[3].start++ })
	if got := r.verify(t, request); got.Batches != 16 || got.Differ != 0 {
		t.Errorf("start within a batch: %+v", got)
	}
}

func TestStepSince(t *testing.T) {
	t.Parallel()
	all := many(20)
	r := newRig(t, "delete", sequence(all...), three(all))
	req := request
	req.SinceMS = 1015
	if got := r.verify(t, req); got.Batches != 5 {
		t.Errorf("since the 16th batch: %+v", got)
	}
	req.SinceMS = 5000
	if got := r.verify(t, req); got.Batches != 0 || !got.Done {
		t.Errorf("since the future: %+v", got)
	}
}

// Errors that pass are retried within the step.
func TestStepRetries(t *testing.T) {
	t.Parallel()
	r := newRig(t, "delete", sequence(many(5)...), three(many(5)))
	r.source.script(func(b map[int32]*peer) { b[1].fail = []int16{6} })
	r.dest.script(func(b map[int32]*peer) { b[2].fail = []int16{9, 3, 56} })
	if got := r.verify(t, request); got.Batches != 5 || got.Differ != 0 {
		t.Errorf("got %+v", got)
	}
	r.source.script(func(b map[int32]*peer) { b[1].fail = []int16{29} })
	_, err := r.v.Step(t.Context(), request)
	if e, ok := errors.AsType[*admin.Error](err); !ok || e.Code != 29 || e.Exit != admin.ExitUnreachable {
		t.Errorf("not authorised: %v", err)
	}
}

// TestStepsUntilTheEndIsPinned: what passes may last longer than a step from the first one on, but not for ever.
func TestStepsUntilTheEndIsPinned(t *testing.T) {
	t.Parallel()
	r := newRig(t, "delete", sequence(many(5)...), three(many(5)))
	r.v.stepTime = 30 * time.Millisecond
	r.source.script(func(b map[int32]*peer) { b[1].fail = slices.Repeat([]int16{6}, maxIdle-5) })
	first, err := r.v.Step(t.Context(), request)
	if err != nil || first.Done || first.Batches > 0 {
		t.Fatalf("a source without a leader: %+v, %v", first, err)
	}
	req := request
	req.Cursor = first.Cursor
	if got := r.verify(t, req); got.Batches != 5 || got.Differ != 0 {
		t.Errorf("got %+v", got)
	}
	r.source.script(func(b map[int32]*peer) { b[1].fail = slices.Repeat([]int16{6}, 1000) })
	_, err = r.steps(t, request)
	if e, ok := errors.AsType[*admin.Error](err); !ok || e.Code != 6 || e.Exit != admin.ExitUnreachable {
		t.Errorf("for ever: %v", err)
	}
}

// Retention that overtakes a verification is noted, not called a difference.
func TestStepRetentionMeanwhile(t *testing.T) {
	t.Parallel()
	all := many(20)
	r := newRig(t, "delete", sequence(all...), three(all))
	first, err := r.v.Step(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	cur, _ := decodeCursor(first.Cursor)
	cur.Next = all[3].base
	r.source.script(func(b map[int32]*peer) { b[1].start = all[6].base })
	req := request
	req.Cursor, _ = cur.encode()
	got := r.verify(t, req)
	if got.Batches != 14 || got.Differ != 0 || !strings.Contains(got.Note, "deleted by retention") {
		t.Errorf("got %+v", got)
	}
}

// A replica that leaves the in-sync replicas is left out and named; the topic made anew is refused.
func TestStepMembersAndIdentity(t *testing.T) {
	t.Parallel()
	all := many(12)
	r := newRig(t, "delete", sequence(all...), three(all))
	first, err := r.v.Step(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	cur, _ := decodeCursor(first.Cursor)
	cur.Next = all[5].base
	req := request
	req.Cursor, _ = cur.encode()
	r.images.img = imageOf(r.dest, 9001, 1, 2)
	if got := r.verify(t, req); got.Batches != 7 || !strings.Contains(got.Note, "broker 3 left") {
		t.Errorf("got %+v", got)
	}
	r.dest.id[0]++
	r.images.img = imageOf(r.dest, 9001, 1, 2)
	if _, err := r.v.Step(t.Context(), req); err == nil || !strings.Contains(err.Error(), "made anew") {
		t.Errorf("other topic id: %v", err)
	}
	r.images.img = imageOf(r.dest, 9001)
	r.v.stepTime = 10 * time.Millisecond
	if _, err := r.steps(t, request); err == nil || !strings.Contains(err.Error(), "no real replica") {
		t.Errorf("no replica: %v", err)
	}
}

// Batches that one side has in other chunks, and holes that a cleaner left at the end, don't stop a verification.
func TestStepCompacted(t *testing.T) {
	t.Parallel()
	all := many(30)
	dest := three(all)
	dest[2] = append(dest[2][:5:5], dest[2][9:]...)
	dest[3] = dest[3][:26]
	r := newRig(t, "compact,delete", sequence(all...), dest)
	end := all[29].base + 3
	r.dest.script(func(b map[int32]*peer) { b[3].hw = end })
	got := r.verify(t, request)
	if got.Batches != 30 || got.Differ != 0 || got.Note != "24 records compacted away at the destination, all replicas together" {
		t.Errorf("got %+v", got)
	}
	r = newRig(t, "delete", sequence(all...), dest)
	r.dest.script(func(b map[int32]*peer) { b[3].hw = end })
	got = r.verify(t, request)
	if got.Differ != 8 || got.First == nil || got.First.Offset != all[5].base || got.First.Destination != "missing (broker 2)" {
		t.Errorf("without a cleaner: %+v, %+v", got, got.First)
	}
}

// Bytes that are no batch are a difference, and what follows is compared.
func TestStepCorrupt(t *testing.T) {
	t.Parallel()
	all := many(10)
	dest := three(all)
	dest[3][4][16] = 9
	r := newRig(t, "delete", sequence(all...), dest)
	got := r.verify(t, request)
	if got.Batches != 10 || got.Differ != 1 || got.First.Offset != all[4].base || got.First.Field != "batch" ||
		!strings.Contains(got.First.Destination, "magic 9") || !strings.Contains(got.First.Destination, "(broker 3)") {
		t.Errorf("got %+v, %+v", got, got.First)
	}
}

func TestStepRate(t *testing.T) {
	t.Parallel()
	var all []spec
	for i := range int64(12) {
		all = append(all, spec{base: i, recs: []rec{{value: make([]byte, 60<<10)}}})
	}
	r := newRig(t, "delete", sequence(all...), map[int32][]records.Batch{1: sequence(all...)})
	req := request
	req.MaxRate = 2 << 20
	began := time.Now()
	got := r.verify(t, req)
	// The last chunk is not waited for.
	if d := time.Since(began); got.Batches != 12 || d < 400*time.Millisecond {
		t.Errorf("%d bytes of both sides in %v at 2 MiB/s: %+v", got.Bytes, d, got)
	}
}

func TestVerifierClosed(t *testing.T) {
	r := newRig(t, "delete", sequence(many(1)...), three(many(1)))
	r.verify(t, request)
	r.v.clients.evict(0)
	if n := len(r.v.clients.byName); n != 0 {
		t.Errorf("%d idle clients kept", n)
	}
	r.verify(t, request)
	r.v.Close()
	if _, err := r.v.Step(t.Context(), request); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Who reads at night that verify got no further is told what to do.
func TestNoFurtherSaysWhatToDo(t *testing.T) {
	for _, err := range []error{nil, errors.New("no route to host"), kerr.NotLeaderForPartition} {
		e, ok := errors.AsType[*admin.Error](unreachable(err))
		if !ok || e.Hint == "" || e.Exit != admin.ExitUnreachable {
			t.Errorf("%v: %+v", err, e)
		}
	}
}
