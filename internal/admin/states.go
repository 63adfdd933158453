package admin

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"kmirror/internal/coordinator"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// states serves the two requests about states.
func (s *Server) states(ctx context.Context, req kip1279.Message, resp kip1279.Response, who caller) {
	if s.cfg.States == nil {
		resp.Head().ErrorCode = kip1279.UnsupportedVersion
		return
	}
	switch req := req.(type) {
	case *kip1279.WriteMirrorStatesRequest:
		resp := resp.(*kip1279.WriteMirrorStatesResponse)
		if err := s.mayKnow(ctx, req.MirrorName, who); err != nil {
			setStatus(&resp.Status, nil, err)
			s.audit("write states", who, err, "mirror", req.MirrorName)
			return
		}
		s.writeStates(ctx, req, resp, who)
		s.auditStates(who, req, resp)
	case *kip1279.ReadMirrorStatesRequest:
		if err := s.mayKnow(ctx, req.MirrorName, who); err != nil {
			setStatus(resp.Head(), nil, err)
			s.auditRead("read states", who, err, "mirror", req.MirrorName)
			return
		}
		s.readStates(ctx, req, resp.(*kip1279.ReadMirrorStatesResponse), who)
		s.auditRead("read states", who, nil, "mirror", req.MirrorName)
	}
}

// auditStates writes the line for states that somebody had written.
func (s *Server) auditStates(who caller, req *kip1279.WriteMirrorStatesRequest, resp *kip1279.WriteMirrorStatesResponse) {
	accepted, refused := 0, 0
	var topics []string
	for i, t := range resp.Topics {
		topics = append(topics, req.Topics[i].Name)
		for _, p := range t.Partitions {
			if p.ErrorCode == kip1279.None {
				accepted++
			} else {
				refused++
			}
		}
	}
	s.auditBetween("write states", who, nil, "mirror", req.MirrorName, "topics", topics, "accepted", accepted, "refused", refused)
}

// mayKnow refuses a mirror that there is not. Other processes' mirrors may be such that this one has not read of yet.
func (s *Server) mayKnow(ctx context.Context, mirror string, who caller) error {
	if who.forwarded {
		return nil
	}
	mirrors, err := s.cfg.Service.ListMirrors(ctx, false)
	if err == nil && !slices.ContainsFunc(mirrors, func(m MirrorInfo) bool { return m.Mirror == mirror }) {
		err = noMirror(mirror)
	}
	return err
}

// writeStates serves WriteMirrorStates. A peer that knows the KIP alone says state and last mirrored epoch; the state UNKNOWN leaves
// the stored one.
func (s *Server) writeStates(
	ctx context.Context, req *kip1279.WriteMirrorStatesRequest, resp *kip1279.WriteMirrorStatesResponse, who caller,
) {
	var states []coordinator.PartitionState
	var at []*kip1279.PartitionOutcome // of states
	resp.Topics = make([]kip1279.PartitionOutcomes, len(req.Topics))
	for i, t := range req.Topics {
		out := &resp.Topics[i]
		out.Name, out.Partitions = t.Name, make([]kip1279.PartitionOutcome, len(t.Partitions))
		id, known := s.topicIDOf(req.MirrorName, t.Name, t.Tags)
		for j, p := range t.Partitions {
			o := &out.Partitions[j]
			o.PartitionIndex = p.PartitionIndex
			if !known {
				o.ErrorCode = kip1279.UnknownTopicOrPartition
				continue
			}
			st, err := s.stateOf(ctx, req.MirrorName, protocol.PartitionID{Topic: id, Partition: p.PartitionIndex}, p, who)
			if err != nil {
				o.ErrorCode, o.ErrorMessage = stateCode(err)
				continue
			}
			states, at = append(states, st), append(at, o)
		}
	}
	write := s.cfg.States.PassStates
	if who.forwarded {
		write = s.cfg.States.WriteStates
	}
	for i, outcome := range write(ctx, states) {
		at[i].ErrorCode, at[i].ErrorMessage = stateCode(outcome.Err)
		at[i].Extra = binary.BigEndian.AppendUint64(nil, uint64(outcome.Offset))
	}
}

func (s *Server) stateOf(
	ctx context.Context, mirror string, id protocol.PartitionID, p kip1279.WriteStatePartition, who caller,
) (coordinator.PartitionState, error) {
	if b := ownTag(p.Tags); b != nil {
		return decodeState(mirror, id, p.LastMirrorEpoch, b, p.Tags)
	}
	known := s.reader(who)(ctx, mirror, []protocol.PartitionID{id})[0]
	if known.Err != nil {
		return coordinator.PartitionState{}, known.Err
	}
	st, err := coordinator.FromKIP(mirror, id, known, p.State, p.LastMirrorEpoch)
	if err != nil {
		err = fmt.Errorf("%w: %w", errNoState, err)
	}
	return st, err
}

// reader is what states are read by: processes ask the owner, all others whom they like.
func (s *Server) reader(who caller) func(context.Context, string, []protocol.PartitionID) []coordinator.ReadOutcome {
	if who.forwarded {
		return s.cfg.States.OwnStates
	}
	return s.cfg.States.ReadStates
}

// readStates serves ReadMirrorStates.
func (s *Server) readStates(
	ctx context.Context, req *kip1279.ReadMirrorStatesRequest, resp *kip1279.ReadMirrorStatesResponse, who caller,
) {
	for _, t := range req.Topics {
		out := kip1279.StateTopic{Name: t.Name}
		id, known := s.topicIDOf(req.MirrorName, t.Name, t.Tags)
		ids := make([]protocol.PartitionID, 0, len(t.Partitions))
		for _, p := range t.Partitions {
			ids = append(ids, protocol.PartitionID{Topic: id, Partition: p.PartitionIndex})
		}
		var states []coordinator.ReadOutcome
		if known {
			states = s.reader(who)(ctx, req.MirrorName, ids)
		}
		for i, p := range t.Partitions {
			a := kip1279.StatePartition{PartitionIndex: p.PartitionIndex, LastMirrorEpoch: -1, State: -1, PreviousState: -1}
			switch {
			case !known:
				a.ErrorCode = kip1279.UnknownTopicOrPartition
			case states[i].Err != nil:
				a.ErrorCode, a.ErrorMessage = stateCode(states[i].Err)
			case states[i].Known:
				fillState(&a, states[i].State)
			}
			out.Partitions = append(out.Partitions, a)
		}
		resp.Topics = append(resp.Topics, out)
	}
}

func fillState(a *kip1279.StatePartition, st coordinator.PartitionState) {
	a.LastMirrorEpoch, a.State, a.PreviousState, a.RetryAttempt = st.LastMirrorEpoch, int8(st.State), int8(st.Previous), st.Retry
	if st.Error != "" {
		a.ErrorMessage = &st.Error
	}
	b, err := coordinator.EncodeState(st)
	if err != nil {
		a.ErrorCode, a.ErrorMessage = stateCode(err)
		return
	}
	a.Tags = withState(b, st)
}

// withState are kmirror's tagged fields of a state that is b.
func withState(b []byte, st coordinator.PartitionState) kip1279.Tags {
	tags := withTag(b)
	if st.Base != 0 {
		tags = append(tags, kip1279.Tag{Number: baseTag, Value: binary.BigEndian.AppendUint64(nil, uint64(st.Base))})
	}
	return tags
}

// decodeState is the other direction.
func decodeState(mirror string, id protocol.PartitionID, epoch int32, b []byte, tags kip1279.Tags) (coordinator.PartitionState, error) {
	st, err := coordinator.DecodeState(mirror, id, epoch, b)
	if base := tagged(tags, baseTag); len(base) == 8 {
		st.Base = int64(binary.BigEndian.Uint64(base))
	}
	return st, err
}
