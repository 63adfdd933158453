package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"kmirror/protocol/kip1279"
)

// authorizedOperations are what a principal that may use the listener may do with a mirror, as bits by the numbers of Kafka's operations:
// CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11. There are no rights for single ones.
const authorizedOperations int32 = 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11

// mirrorExtra is kmirror's tagged field of a described mirror that there is not.
type mirrorExtra struct {
	errorExtra
	Message string `json:"message"`
}

// ComparePartitions is the order of descriptions: by mirror, topic and number.
func ComparePartitions(a, b PartitionInfo) int {
	return cmp.Or(cmp.Compare(a.Mirror, b.Mirror), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// describeMirrors puts an entry for each mirror that was asked for into the answer, those without topics and those that there are not
// included, and returns what is known of partitions.
func (s *Server) describeMirrors(
	ctx context.Context, req *kip1279.DescribeClusterMirrorsRequest, resp *kip1279.DescribeClusterMirrorsResponse, topics []string,
) ([]PartitionInfo, error) {
	asked, known := req.MirrorNames, func(string) bool { return true }
	infos, err := s.cfg.Service.Describe(ctx, DescribeRequest{Mirrors: asked, Topics: topics})
	one := len(asked) > 0 && err != nil && asError(err).Code == kip1279.UnknownClusterMirror
	if err != nil && !one {
		return nil, err
	}
	if one || len(asked) == 0 {
		defined, err := s.cfg.Service.ListMirrors(ctx, false)
		if err != nil {
			return nil, err
		}
		var all []string
		for _, m := range defined {
			all = append(all, m.Mirror)
		}
		if len(asked) == 0 {
			asked = all
		}
		known = func(name string) bool { return slices.Contains(all, name) }
	}
	refuse := noMirror
	if len(asked) == 1 && one {
		refuse = func(string) *Error { return asError(err) }
	}
	addMirrors(resp, asked, known, refuse, req.IncludeAuthorizedOperations)
	if there := slices.DeleteFunc(slices.Clone(asked), func(name string) bool { return !known(name) }); one && len(there) > 0 {
		return s.cfg.Service.Describe(ctx, DescribeRequest{Mirrors: there, Topics: topics})
	}
	return infos, nil
}

// addMirrors adds an entry for each mirror to the answer, with an error where it is not known.
func addMirrors(
	resp *kip1279.DescribeClusterMirrorsResponse, names []string, known func(string) bool, refuse func(string) *Error, operations bool,
) {
	for _, name := range names {
		m := kip1279.DescribedMirror{MirrorName: name, AuthorizedOperations: kip1279.NoOperations}
		if !known(name) {
			e := refuse(name)
			m.ErrorCode = e.Code
			m.Tags = withTag(mustJSON(mirrorExtra{errorExtra{Hint: e.Hint, Exit: e.Exit}, e.Message}))
		} else if operations {
			m.AuthorizedOperations = authorizedOperations
		}
		resp.Mirrors = append(resp.Mirrors, m)
	}
}

// noMirror is the error for a name that no mirror has.
func noMirror(name string) *Error {
	return &Error{Code: kip1279.UnknownClusterMirror, Message: fmt.Sprintf("there is no mirror %q", name), Hint: "see kmirror list",
		Exit: ExitUsage}
}

// mirrorError reads why a mirror was not described, nil where it was.
func mirrorError(m kip1279.DescribedMirror) (error, error) {
	if m.ErrorCode == kip1279.None {
		return nil, nil
	}
	var x mirrorExtra
	if err := readExtra(ownTag(m.Tags), &x); err != nil {
		return nil, err
	}
	if x.Message == "" {
		x.Message = m.MirrorName + ": " + kip1279.ErrorName(m.ErrorCode)
	}
	return &Error{Code: m.ErrorCode, Message: x.Message, Hint: x.Hint, Exit: x.Exit}, nil
}

// mirrorPartitions is what is known of the partitions of one mirror.
func (s *Server) mirrorPartitions(ctx context.Context, mirror string) (map[string]map[int32]PartitionInfo, error) {
	infos, err := s.cfg.Service.Describe(ctx, DescribeRequest{Mirrors: []string{mirror}})
	if err != nil {
		return nil, err
	}
	out := map[string]map[int32]PartitionInfo{}
	for _, p := range infos {
		if out[p.Topic] == nil {
			out[p.Topic] = map[int32]PartitionInfo{}
		}
		out[p.Topic][p.Partition] = p
	}
	return out, nil
}

// readOffsets answers ReadMirrorOffsets, for partitions of all processes. What is not known is -1.
func (s *Server) readOffsets(
	ctx context.Context, req *kip1279.ReadMirrorOffsetsRequest, resp *kip1279.ReadMirrorOffsetsResponse,
) {
	infos, err := s.mirrorPartitions(ctx, req.MirrorName)
	setStatus(&resp.Status, nil, err)
	if err != nil {
		return
	}
	for _, t := range req.Topics {
		out := kip1279.MirrorOffsetsTopic{TopicName: t.TopicName}
		for _, i := range t.Partitions {
			p := infos[t.TopicName][i]
			out.Partitions = append(out.Partitions, kip1279.MirrorOffsets{PartitionIndex: i,
				SourceOffset: orUnknown(p.SourceOffset), DestinationOffset: orUnknown(p.DestinationOffset)})
		}
		resp.Topics = append(resp.Topics, out)
	}
}

// readEpochs answers LastMirroredEpochs.
func (s *Server) readEpochs(
	ctx context.Context, req *kip1279.LastMirroredEpochsRequest, resp *kip1279.LastMirroredEpochsResponse,
) {
	infos, err := s.mirrorPartitions(ctx, req.MirrorName)
	setStatus(&resp.Status, nil, err)
	if err != nil {
		return
	}
	for _, t := range req.Topics {
		out := kip1279.LastMirroredTopic{Name: t.Name}
		for _, asked := range t.Partitions {
			a := kip1279.LastMirroredPartition{PartitionIndex: asked.PartitionIndex, LastMirroredEpoch: -1}
			if p, ok := infos[t.Name][asked.PartitionIndex]; !ok {
				a.ErrorCode = kip1279.UnknownTopicOrPartition
			} else if p.LastMirroredEpoch != nil {
				a.LastMirroredEpoch = *p.LastMirroredEpoch
			}
			out.Partitions = append(out.Partitions, a)
		}
		resp.Topics = append(resp.Topics, out)
	}
}
