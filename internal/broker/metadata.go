package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
	"kmirror/records"
)

const (
	metadataTopic      = "__cluster_metadata"
	metadataFetchBytes = 8 << 20
	// metadataWait is the long poll at the log's end. A KRaft leader below Fetch version 18 tells of a new high watermark
	// with its next answer only, so it is short while batches wait for one.
	metadataWait        = 500 * time.Millisecond
	metadataWaitPending = 20 * time.Millisecond
)

// metadataTopicID is the fixed id of __cluster_metadata.
var metadataTopicID = protocol.UUID{15: 1}

// follower replicates the metadata log as an observer of the quorum. It reads to the log's end, as every replica does, but
// only what is below the high watermark gets into the image. run owns all fields but the atomics.
type follower struct {
	ctl     *controllers
	log     *slog.Logger
	cluster func() string
	replica func() int32 // our id in fetches, -1 before we are registered
	publish func(*kraft.Image)

	img         *kraft.Image
	published   *kraft.Image
	pending     []metadataBatch
	next        int64 // fetch offset: the end of pending, or of img
	leaderEpoch int32
	target      int64 // the high watermark when this image was begun; below it the image is not shown. -1: not known yet
	snapshot    *snapshotReader

	// suspect is what stopped the log last, nil once an image beyond it was shown; refused is it from the second time at
	// the same offset on.
	suspect *refusedError
	refused atomic.Pointer[refusedError]

	caughtUp atomic.Bool
	lastPoll atomic.Int64 // time of the last good answer, in nanoseconds since 1970
}

// metadataBatch is a batch that may not be committed yet.
type metadataBatch struct {
	last   int64
	epoch  int32
	values [][]byte
}

func (f *follower) run(ctx context.Context) {
	f.restart()
	b := backoff{min: 20 * time.Millisecond, max: time.Second}
	// Reading all of the log again is costly, and seldom what helps.
	again := backoff{min: 200 * time.Millisecond, max: time.Minute}
	failures := failLog{log: f.log, what: "metadata log"}
	for ctx.Err() == nil {
		err := f.poll(ctx)
		if err == nil {
			b.reset()
			f.lastPoll.Store(time.Now().UnixNano())
			failures.ok()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if r := (*refusedError)(nil); errors.As(err, &r) {
			if f.suspect == nil {
				again.reset()
			}
			f.refuse(r)
			f.restart()
			_ = again.wait(ctx)
			continue
		}
		_ = b.wait(ctx)
		if errors.Is(err, errNewLeader) && b.last < time.Second/2 {
			continue // no failure, unless it goes on
		}
		failures.failed(err)
	}
}

// restart begins a new image. The published one stays until the new one has caught up.
func (f *follower) restart() {
	f.img, f.pending, f.next, f.target, f.snapshot = kraft.Empty(), nil, 0, -1, nil
}

// lastEpoch is the epoch of the batch before next.
func (f *follower) lastEpoch() int32 {
	if n := len(f.pending); n > 0 {
		return f.pending[n-1].epoch
	}
	return max(f.img.Epoch, 0)
}

func (f *follower) request() *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	if id := f.cluster(); id != "" {
		req.ClusterID = &id
	}
	req.ReplicaID, req.ReplicaState.ID = f.replica(), f.replica()
	req.MaxWaitMillis = int32(metadataWait.Milliseconds())
	if len(f.pending) > 0 {
		req.MaxWaitMillis = int32(metadataWaitPending.Milliseconds())
	}
	req.MinBytes, req.MaxBytes = 1, metadataFetchBytes
	req.SessionEpoch = -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = metadataTopic, metadataTopicID
	p := kmsg.NewFetchRequestTopicPartition()
	p.CurrentLeaderEpoch, p.FetchOffset, p.LastFetchedEpoch = f.leaderEpoch, f.next, f.lastEpoch()
	p.LogStartOffset, p.PartitionMaxBytes = 0, metadataFetchBytes
	p.HighWatermark = f.img.Offset + 1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// poll does one step: a chunk of a snapshot, or a Fetch.
func (f *follower) poll(ctx context.Context) error {
	if f.snapshot != nil {
		return f.pollSnapshot(ctx)
	}
	kr, err := f.ctl.try(ctx, f.request(), metadataWait+requestTimeout)
	if err != nil {
		return err
	}
	resp := kr.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return fmt.Errorf("metadata fetch: %w", err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return errors.New("metadata fetch: the answer does not hold the one partition asked for")
	}
	p := &resp.Topics[0].Partitions[0]
	var endpoint string
	for _, n := range resp.Brokers {
		if n.NodeID == p.CurrentLeader.LeaderID {
			endpoint = net.JoinHostPort(n.Host, strconv.Itoa(int(n.Port)))
		}
	}
	if err := f.checkLeader("Fetch", p.ErrorCode, p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch, endpoint); err != nil {
		return err
	}
	switch {
	case p.SnapshotID.EndOffset >= 0:
		f.log.Info("loading a metadata snapshot", "end_offset", p.SnapshotID.EndOffset, "epoch", p.SnapshotID.Epoch)
		f.restart()
		f.snapshot = &snapshotReader{endOffset: p.SnapshotID.EndOffset, epoch: p.SnapshotID.Epoch, img: kraft.Empty()}
		return nil
	case p.DivergingEpoch.EndOffset >= 0:
		f.diverged(p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset)
		return nil
	}
	if err := f.append(p.RecordBatches); err != nil {
		return err
	}
	return f.commit(p.HighWatermark)
}

// errNoLeader: the quorum has no leader at the moment.
var errNoLeader = errors.New("the controllers have no leader")

// errNewLeader: ask again, with the epoch and at the address just learned.
var errNewLeader = errors.New("the controllers have another leader or epoch than thought")

// checkLeader learns epoch and address of the leader from an answer. Errors that mean nothing but "not with this leader,
// or not in this epoch" are errNewLeader or errNoLeader.
func (f *follower) checkLeader(what string, code int16, leader, epoch int32, endpoint string) error {
	newer := epoch > f.leaderEpoch
	if newer {
		f.leaderEpoch = epoch
	}
	err := kerr.ErrorForCode(code)
	if err == nil {
		return nil
	}
	switch err {
	case kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch:
		addr, _, _ := f.ctl.current()
		switch {
		case epoch < f.leaderEpoch:
			f.ctl.lost(addr) // it lags behind, or is no member any more
		case leader < 0:
			f.ctl.lost(addr)
			return errNoLeader
		case endpoint != "":
			f.ctl.leader(endpoint)
		case err == kerr.NotLeaderForPartition:
			f.ctl.lost(addr)
		}
		return errNewLeader
	}
	return fmt.Errorf("%s: %w", what, err)
}

// append takes complete batches from next on to the pending ones.
func (f *follower) append(b []byte) error {
	for {
		batch, rest, err := records.Split(b)
		if err == io.EOF || errors.Is(err, records.ErrPartial) {
			return nil
		}
		if err != nil {
			return err
		}
		b = rest
		if batch.LastOffset() < f.next {
			continue
		}
		m := metadataBatch{last: batch.LastOffset(), epoch: batch.PartitionLeaderEpoch()}
		if !batch.IsControl() {
			if err := batch.CheckCRC(); err != nil {
				return err
			}
			if m.values, err = records.Values(batch); err != nil {
				return err
			}
			if skip := f.next - batch.BaseOffset(); skip > 0 {
				m.values = m.values[min(int(skip), len(m.values)):]
			}
		}
		f.pending = append(f.pending, m)
		f.next = batch.NextOffset()
	}
}

// commit applies what lies below the high watermark, and publishes the image once it has caught up.
func (f *follower) commit(hw int64) error {
	if hw < 0 {
		return nil // a leader that has not committed anything in its epoch yet
	}
	if f.target < 0 {
		f.target = hw
	}
	for len(f.pending) > 0 && f.pending[0].last < hw {
		img, err := f.img.Apply(f.pending[0].last, f.pending[0].epoch, f.pending[0].values)
		if err != nil {
			return &refusedError{f.pending[0].last, err}
		}
		f.img, f.pending = img, f.pending[1:]
	}
	if f.img.Offset+1 >= f.target && f.img != f.published {
		if f.suspect = nil; f.refused.Swap(nil) != nil {
			f.log.Info("the metadata log can be followed again", "offset", f.img.Offset)
		}
		f.published = f.img
		f.caughtUp.Store(true) // before the image, whose arrival is what others wait for
		f.publish(f.img)
	}
	return nil
}

// refusedError: a record up to this offset of the metadata log is not what our rules allow, so the log can't be followed
// beyond it.
type refusedError struct {
	offset int64
	err    error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the metadata log can't be followed beyond offset %d, kmirror acts on what stands before: %v", e.offset, e.err)
}

func (e *refusedError) Unwrap() error { return e.err }

// refuse notes what stopped the log. The image that is shown stays, but from the second time at the same offset on it is
// no longer held to be current; that is logged once.
func (f *follower) refuse(r *refusedError) {
	first := f.suspect == nil
	repeated := !first && f.suspect.offset == r.offset || f.refused.Load() != nil
	f.suspect = r
	switch {
	case repeated && f.refused.Swap(r) == nil:
		f.log.Error("the metadata log holds a record that kmirror refuses and is read again now and then; use a version of "+
			"kmirror that knows the metadata.version of the destination, and see kafka-dump-log "+
			"--cluster-metadata-decoder for the record", "offset", r.offset, "err", r.err)
	case !repeated:
		f.log.Warn("the metadata log holds a record that is refused; reading it anew", "offset", r.offset, "err", r.err)
	}
}

// diverged drops what the leader does not have. A leader that lacks what was committed has lost its log, or is another
// cluster's: the image is built anew from its log.
func (f *follower) diverged(epoch int32, end int64) {
	for n := len(f.pending); n > 0; n = len(f.pending) {
		if last := f.pending[n-1]; last.last < end && last.epoch <= epoch {
			break
		}
		f.pending = f.pending[:n-1]
	}
	f.next = f.img.Offset + 1
	if n := len(f.pending); n > 0 {
		f.next = f.pending[n-1].last + 1
		return
	}
	if f.next > end {
		f.log.Error("the metadata log lost records that were committed; reading it anew", "had", f.next, "leader_has", end)
		f.restart()
	}
}
