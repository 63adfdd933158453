package admin

import (
	"context"
	"slices"

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
		s.writeStates(ctx, req, resp)
		s.auditStates(who, req, resp)
	case *kip1279.ReadMirrorStatesRequest:
		if err := s.mayKnow(ctx, req.MirrorName, who); err != nil {
			setStatus(resp.Head(), nil, err)
			s.auditRead("read states", who, err, "mirror", req.MirrorName)
			return
		}
		s.readStates(ctx, req, resp.(*kip1279.ReadMirrorStatesResponse))
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
