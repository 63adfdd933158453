package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// everyTopic is the KIP's pattern for all topics of a mirror.
const everyTopic = ".*"

func (s *Server) stop(
	ctx context.Context, req *kip1279.StopMirrorTopicsRequest, resp *kip1279.StopMirrorTopicsResponse, who caller,
) {
	stop, err := stopRequest(req)
	var results []TopicResult
	if err == nil {
		results, err = s.cfg.Service.StopTopics(ctx, stop)
	}
	setStatus(&resp.Status, &resp.Extra, err)
	var refused int
	resp.Topics, refused = outcomesTo(results)
	verb := "failover"
	if stop.Drain {
		verb = "promote"
	}
	s.audit(verb, who, err, "mirror", req.MirrorName, "topics", stop.Topics, "all", stop.All, "max_loss", stop.MaxLoss,
		"force", stop.Force, "dry_run", stop.DryRun, "accepted", len(results)-refused, "refused", refused)
}

// stopRequest reads names, patterns and options. A client that knows only the KIP asks for a failover without any bound.
func stopRequest(req *kip1279.StopMirrorTopicsRequest) (StopRequest, error) {
	out := StopRequest{Mirror: req.MirrorName, MaxLoss: -1}
	var opts stopOptions
	if err := readOptions(req.Options, &opts); err != nil {
		return out, err
	}
	out.Drain, out.Force, out.DryRun = opts.Drain, opts.Force, opts.DryRun
	if opts.MaxLoss != nil {
		if out.MaxLoss = *opts.MaxLoss; out.MaxLoss < -1 {
			return out, usage(fmt.Sprintf("a loss of at most %d records was asked for", out.MaxLoss), "give 0 or more")
		}
	}
	out.Topics = topicNames(req.Topics)
	for _, p := range req.Patterns {
		if p == everyTopic {
			out.All = true
		}
	}
	if out.All {
		out.Topics = nil
		return out, nil
	}
	out.Topics = append(out.Topics, slashed(req.Patterns)...)
	return out, someTopics(out.Topics)
}

func topicNames(topics []kip1279.NamedTopic) []string {
	var out []string
	for _, t := range topics {
		out = append(out, t.TopicName)
	}
	return out
}

// topicsCall is a pause, resume or recover: which method of the Service it is and what it is asked.
type topicsCall struct {
	verb    string
	run     func(context.Context, TopicsRequest) ([]TopicResult, error)
	mirror  string
	topics  []kip1279.NamedTopic
	options []byte
}

// change runs a topicsCall, fills in the head of the answer and returns its topics.
func (s *Server) change(
	ctx context.Context, call topicsCall, status *kip1279.Status, extra *[]byte, who caller,
) []kip1279.TopicOutcome {
	req := TopicsRequest{Mirror: call.mirror, Topics: topicNames(call.topics)}
	opts := topicsOptions{Strict: len(call.options) == 0} // who knows the KIP alone expects its errors
	err := readOptions(call.options, &opts)
	if err == nil {
		req.Topics, req.DryRun, req.Strict = append(req.Topics, slashed(opts.Patterns)...), opts.DryRun, opts.Strict
		err = someTopics(req.Topics)
	}
	var results []TopicResult
	if err == nil {
		results, err = call.run(ctx, req)
	}
	setStatus(status, extra, err)
	out, refused := outcomesTo(results)
	s.audit(call.verb, who, err, "mirror", req.Mirror, "topics", req.Topics, "dry_run", req.DryRun,
		"accepted", len(results)-refused, "refused", refused)
	return out
}

func (s *Server) delete(
	ctx context.Context, req *kip1279.DeleteClusterMirrorRequest, resp *kip1279.DeleteClusterMirrorResponse, who caller,
) {
	var opts deleteOptions
	err := readOptions(req.Options, &opts)
	if err == nil {
		err = s.cfg.Service.DeleteMirror(ctx, DeleteRequest{Mirror: req.MirrorName, DryRun: opts.DryRun})
	}
	setStatus(&resp.Status, &resp.Extra, err)
	s.audit("delete", who, err, "mirror", req.MirrorName, "dry_run", opts.DryRun)
}

func (s *Server) bump(
	ctx context.Context, req *kip1279.BumpLeaderEpochsRequest, resp *kip1279.BumpLeaderEpochsResponse, who caller,
) {
	minimum := map[protocol.PartitionID]int32{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			minimum[protocol.PartitionID{Topic: t.TopicID, Partition: p.PartitionIndex}] = p.MinLeaderEpoch
		}
	}
	failed, err := s.cfg.Service.BumpLeaderEpochs(ctx, minimum)
	setStatus(&resp.Status, &resp.Extra, err)
	refused := 0
	names := s.topicNamesByID(ctx, failed)
	for _, id := range sortedIDs(failed) {
		if failed[id] == nil {
			continue
		}
		refused++
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].TopicID != id.Topic {
			resp.Topics = append(resp.Topics, kip1279.PartitionOutcomes{
				TopicID: id.Topic, Name: cmp.Or(names[id.Topic.String()], id.Topic.String()),
			})
		}
		e := asError(failed[id])
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, kip1279.PartitionOutcome{PartitionIndex: id.Partition, ErrorCode: e.Code,
			ErrorMessage: &e.Message, Extra: mustJSON(errorExtra{Hint: e.Hint, Exit: e.Exit})})
	}
	s.audit("bump", who, err, "partitions", len(minimum), "refused", refused)
}

// topicNamesByID finds the names that the KIP's answer needs of topics that were asked for by id; it may miss some.
func (s *Server) topicNamesByID(ctx context.Context, failed map[protocol.PartitionID]error) map[string]string {
	out := map[string]string{}
	if len(failed) == 0 {
		return out
	}
	infos, err := s.cfg.Service.Describe(ctx, DescribeRequest{})
	if err != nil {
		return out // the ids stand for the names
	}
	for _, p := range infos {
		if p.TopicID != nil {
			out[*p.TopicID] = p.Topic
		}
	}
	return out
}

// sortedIDs returns the keys of m by topic id and partition.
func sortedIDs[V any](m map[protocol.PartitionID]V) []protocol.PartitionID {
	ids := make([]protocol.PartitionID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b protocol.PartitionID) int {
		return cmp.Or(slices.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
	})
	return ids
}

// lookup answers the last mirrored epochs of topics that we mirror, or did, from the asker's cluster, by the asker's topic
// ids; -1 for all that is not known.
func (s *Server) lookup(
	ctx context.Context, req *kip1279.DescribeClusterMirrorsRequest, resp *kip1279.DescribeClusterMirrorsResponse,
) error {
	var parts []protocol.PartitionID
	for _, l := range req.Lookups {
		for _, i := range l.Partitions {
			parts = append(parts, protocol.PartitionID{Topic: l.TopicID, Partition: i})
		}
	}
	epochs, err := s.cfg.Service.LastMirrorEpochs(ctx, *req.ClusterID, parts)
	if err != nil {
		return err
	}
	for _, l := range req.Lookups {
		r := kip1279.EpochLookupResult{TopicID: l.TopicID}
		for _, i := range l.Partitions {
			epoch, ok := epochs[protocol.PartitionID{Topic: l.TopicID, Partition: i}]
			if !ok {
				epoch = -1
			}
			r.Partitions = append(r.Partitions, kip1279.LastMirrorEpochResult{PartitionIndex: i, LastMirrorEpoch: epoch})
		}
		resp.LookupResults = append(resp.LookupResults, r)
	}
	return nil
}

// private answers the verbs that the KIP has no RPC for.
func (s *Server) private(
	ctx context.Context, req *kip1279.KmirrorCallRequest, resp *kip1279.KmirrorCallResponse, who caller,
) {
	answer, ok, err := s.betweenProcesses(ctx, req.Verb, req.Payload)
	if ok && req.Verb != VerbPing {
		s.auditBetween(req.Verb, who, err, "bytes", len(req.Payload))
	}
	if !ok {
		switch req.Verb {
		case VerbRetire:
			answer, err = s.retire(ctx, req.Payload, who)
		case VerbAlter:
			answer, err = s.alter(ctx, req.Payload, who)
		case VerbSync:
			answer, err = s.syncStatus(ctx, req.Payload)
			s.auditRead("describe", who, err) // which asks for it too, and is the operator's word for it
		case VerbConfig:
			answer, err = s.mirrorConfig(ctx, req.Payload)
			s.auditRead(req.Verb, who, err)
		default:
			answer, err = s.cfg.Service.Call(ctx, req.Verb, req.Payload)
			s.auditRead(req.Verb, who, err)
		}
	}
	resp.Payload = answer
	setStatus(&resp.Status, &resp.Extra, err)
}

func (s *Server) retire(ctx context.Context, payload []byte, who caller) ([]byte, error) {
	var req RetireRequest
	var out []byte
	err := readOptions(payload, &req)
	if err == nil && len(req.NodeIDs) == 0 {
		err = usage("no node ids given", "name all node ids of the process that is to retire")
	}
	if err == nil {
		var result RetireResult
		if result, err = s.cfg.Service.Retire(ctx, req); err == nil {
			out = mustJSON(result)
		}
	}
	s.audit("retire", who, err, "node_ids", fmt.Sprint(req.NodeIDs), "failover", req.Failover, "dry_run", req.DryRun)
	return out, err
}
