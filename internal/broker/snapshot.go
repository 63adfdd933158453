package broker

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kraft"
	"kmirror/records"
)

const (
	snapshotChunk = 4 << 20
	// snapshotMaxBatch bounds what is kept of a batch that goes over several chunks. Controllers write up to 8 MiB.
	snapshotMaxBatch = 64 << 20
	// snapshotApplyRecords: so many records go into the image at once, since each Apply copies maps.
	snapshotApplyRecords = 1 << 16
)

// snapshotReader takes a snapshot in chunks. Its batches are numbered from 0 on; in the log it stands for all below
// endOffset.
type snapshotReader struct {
	endOffset int64
	epoch     int32
	img       *kraft.Image
	position  int64
	size      int64
	rest      []byte
	values    [][]byte
}

// add takes the bytes at position.
func (s *snapshotReader) add(b []byte) error {
	s.position += int64(len(b))
	s.rest = append(s.rest, b...)
	rest := s.rest
	for {
		batch, r, err := records.Split(rest)
		if err == io.EOF || errors.Is(err, records.ErrPartial) {
			break
		}
		if err != nil {
			return err
		}
		rest = r
		if batch.IsControl() {
			continue
		}
		if err := batch.CheckCRC(); err != nil {
			return err
		}
		values, err := records.Values(batch)
		if err != nil {
			return err
		}
		s.values = append(s.values, values...)
		if len(s.values) >= snapshotApplyRecords {
			if err := s.apply(); err != nil {
				return err
			}
		}
	}
	if len(rest) > snapshotMaxBatch {
		return fmt.Errorf("metadata snapshot: no end of the batch at byte %d", s.position-int64(len(rest)))
	}
	// Values point into the old array, so the rest moves to one of its own.
	s.rest = append([]byte(nil), rest...)
	return nil
}

func (s *snapshotReader) apply() error {
	img, err := s.img.Apply(s.endOffset-1, s.epoch, s.values)
	if err != nil {
		return &refusedError{s.endOffset - 1, fmt.Errorf("in the snapshot: %w", err)}
	}
	s.img, s.values = img, nil
	return nil
}

// done returns the image once all bytes are there.
func (s *snapshotReader) done() (*kraft.Image, error) {
	if len(s.rest) > 0 {
		return nil, fmt.Errorf("metadata snapshot: ends within a batch, %d bytes before", len(s.rest))
	}
	err := s.apply()
	return s.img, err
}

// pollSnapshot fetches one chunk. Any error but a change of leadership drops the snapshot; the next Fetch names it, or a
// newer one, again.
func (f *follower) pollSnapshot(ctx context.Context) error {
	s := f.snapshot
	kr, err := f.ctl.try(ctx, f.snapshotRequest(), 2*requestTimeout)
	if err != nil {
		return err
	}
	p, err := f.snapshotPartition(kr.(*kmsg.FetchSnapshotResponse))
	if err != nil {
		if !errors.Is(err, errNewLeader) && !errors.Is(err, errNoLeader) {
			f.restart()
		}
		return err
	}
	if s.position == 0 {
		s.size = p.Size
	}
	if p.Size != s.size || p.Position != s.position || len(p.Bytes) == 0 && s.position < s.size {
		f.restart()
		return fmt.Errorf("metadata snapshot: asked for byte %d of %d, got %d bytes at %d of %d",
			s.position, s.size, len(p.Bytes), p.Position, p.Size)
	}
	if err := s.add(p.Bytes); err != nil {
		f.restart()
		return err
	}
	if s.position < s.size {
		return nil
	}
	img, err := s.done()
	f.restart()
	if err != nil {
		return err
	}
	f.img, f.next = img, s.endOffset
	return nil
}

func (f *follower) snapshotRequest() *kmsg.FetchSnapshotRequest {
	req := kmsg.NewPtrFetchSnapshotRequest()
	if id := f.cluster(); id != "" {
		req.ClusterID = &id
	}
	req.ReplicaID = f.replica()
	req.MaxBytes = snapshotChunk
	t := kmsg.NewFetchSnapshotRequestTopic()
	t.Topic = metadataTopic
	p := kmsg.NewFetchSnapshotRequestTopicPartition()
	p.CurrentLeaderEpoch = f.leaderEpoch
	p.SnapshotID.EndOffset, p.SnapshotID.Epoch = f.snapshot.endOffset, f.snapshot.epoch
	p.Position = f.snapshot.position
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func (f *follower) snapshotPartition(resp *kmsg.FetchSnapshotResponse) (*kmsg.FetchSnapshotResponseTopicPartition, error) {
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("FetchSnapshot: %w", err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("FetchSnapshot: the answer does not hold the one partition asked for")
	}
	p := &resp.Topics[0].Partitions[0]
	return p, f.checkLeader("FetchSnapshot", p.ErrorCode, p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch, "")
}
