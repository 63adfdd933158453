package admin

import (
	"context"
	"fmt"
	"slices"

	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// answer handles one frame and returns the whole frame of the answer. An error ends the connection.
func (s *Server) answer(ctx context.Context, frame []byte, who caller) ([]byte, error) {
	h, body, err := parseHeader(frame)
	if err != nil {
		return nil, &unanswerable{"header", err}
	}
	if h.key == keyApiVersions {
		return appendResponse(nil, h, apiVersions(h.version).AppendTo), nil
	}
	if _, ok := kafkaAPIs[h.key]; ok {
		return s.answerKafka(ctx, h, body, who)
	}
	api, ok := kip1279.Lookup(h.key)
	if !ok {
		return nil, &unanswerable{"key", fmt.Errorf("API key %d version %d: this is kmirror's admin listener, "+
			"Kafka clients belong on a broker's", h.key, h.version)}
	}
	resp := api.Response().(kip1279.Response)
	if e := s.denied(who, h.key, api.Name); e != nil {
		refuse(resp, e)
	} else if h.version < api.Min || h.version > api.Max {
		// The layout of the answer is that of a version which the peer may not know: all it can read is the error code.
		resp.Head().ErrorCode = kip1279.UnsupportedVersion
	} else {
		req := api.Request()
		if err := kip1279.Decode(body, req); err != nil {
			return nil, &unanswerable{"body", err}
		}
		if h.clientID == PeerClientID {
			ctx, who.forwarded = context.WithValue(ctx, forwarded{}, true), true
		}
		s.dispatch(ctx, req, resp, who)
	}
	return appendResponse(nil, h, func(dst []byte) []byte { return kip1279.Append(dst, resp) }), nil
}

// ofTheCluster are the APIs that need CLUSTER_ACTION on the cluster by the KIP, or that are not about a mirror.
var ofTheCluster = []int16{
	kip1279.KeyReadMirrorStates, kip1279.KeyWriteMirrorStates, kip1279.KeyBumpLeaderEpochs, kip1279.KeyKmirrorCall,
	keyMetadata, keyFindCoordinator, keyDescribeCluster,
}

// denied is the answer to whoever may not use the listener, with the code that the KIP has for the API; nil for all others.
func (s *Server) denied(who caller, key int16, name string) *Error {
	e := s.refused(who)
	if e == nil {
		return nil
	}
	s.quiet.Warn("refused", "admin request refused", "peer", who.address, "principal", who.principal, "api", name, "hint", e.Hint)
	if !slices.Contains(ofTheCluster, key) {
		e.Code = kip1279.ClusterMirrorAuthorizationError
	}
	return e
}

// unanswerable is why a connection is closed instead of answered; kind groups log lines for their rate limit.
type unanswerable struct {
	kind string
	err  error
}

func (e *unanswerable) Error() string { return e.err.Error() }
func (e *unanswerable) Unwrap() error { return e.err }

// dispatch is the one place where a request is given to whoever answers it.
func (s *Server) dispatch(ctx context.Context, req kip1279.Message, resp kip1279.Response, who caller) {
	switch req := req.(type) {
	case *kip1279.CreateClusterMirrorRequest:
		s.create(ctx, req, resp.(*kip1279.CreateClusterMirrorResponse), who)
	case *kip1279.DeleteClusterMirrorRequest:
		s.delete(ctx, req, resp.(*kip1279.DeleteClusterMirrorResponse), who)
	case *kip1279.StartMirrorTopicsRequest:
		s.start(ctx, req, resp.(*kip1279.StartMirrorTopicsResponse), who)
	case *kip1279.StopMirrorTopicsRequest:
		s.stop(ctx, req, resp.(*kip1279.StopMirrorTopicsResponse), who)
	case *kip1279.PauseMirrorTopicsRequest:
		r := resp.(*kip1279.PauseMirrorTopicsResponse)
		call := topicsCall{"pause", s.cfg.Service.PauseTopics, req.MirrorName, req.Topics, req.Options}
		r.Topics = s.change(ctx, call, &r.Status, &r.Extra, who)
	case *kip1279.ResumeMirrorTopicsRequest:
		r := resp.(*kip1279.ResumeMirrorTopicsResponse)
		call := topicsCall{"resume", s.cfg.Service.ResumeTopics, req.MirrorName, req.Topics, req.Options}
		r.Topics = s.change(ctx, call, &r.Status, &r.Extra, who)
	case *kip1279.RecoverMirrorTopicsRequest:
		r := resp.(*kip1279.RecoverMirrorTopicsResponse)
		call := topicsCall{"recover", s.cfg.Service.RecoverTopics, req.MirrorName, req.Topics, req.Options}
		r.Topics = s.change(ctx, call, &r.Status, &r.Extra, who)
	case *kip1279.BumpLeaderEpochsRequest:
		s.bump(ctx, req, resp.(*kip1279.BumpLeaderEpochsResponse), who)
	case *kip1279.ListClusterMirrorsRequest:
		s.list(ctx, req, resp.(*kip1279.ListClusterMirrorsResponse), who)
	case *kip1279.DescribeClusterMirrorsRequest:
		s.describe(ctx, req, resp.(*kip1279.DescribeClusterMirrorsResponse), who)
	case *kip1279.ReadMirrorOffsetsRequest:
		r := resp.(*kip1279.ReadMirrorOffsetsResponse)
		s.readOffsets(ctx, req, r)
		s.auditRead("offsets", who, statusError(&r.Status, nil), "mirror", req.MirrorName)
	case *kip1279.LastMirroredEpochsRequest:
		r := resp.(*kip1279.LastMirroredEpochsResponse)
		s.readEpochs(ctx, req, r)
		s.auditRead("epochs", who, statusError(&r.Status, nil), "mirror", req.MirrorName)
	case *kip1279.KmirrorCallRequest:
		s.private(ctx, req, resp.(*kip1279.KmirrorCallResponse), who)
	case *kip1279.WriteMirrorStatesRequest, *kip1279.ReadMirrorStatesRequest:
		s.states(ctx, req, resp, who)
	default:
		head := resp.Head()
		head.ErrorCode = kip1279.UnsupportedVersion
		message := "this version of kmirror does not serve the request"
		head.ErrorMessage = &message
	}
}

func (s *Server) create(
	ctx context.Context, req *kip1279.CreateClusterMirrorRequest, resp *kip1279.CreateClusterMirrorResponse, who caller,
) {
	config := make(map[string]string, len(req.Config))
	for _, e := range req.Config {
		if e.Value != nil {
			config[e.Name] = *e.Value
		}
	}
	var opts createOptions
	err := readOptions(req.Options, &opts)
	if err == nil {
		err = CheckMirror(req.MirrorName, config)
	}
	if err == nil && !opts.Repeatable {
		err = s.unused(ctx, req.MirrorName)
	}
	if err == nil {
		err = s.cfg.Service.CreateMirror(ctx, req.MirrorName, config)
	}
	setStatus(&resp.Status, &resp.Extra, err)
	s.audit("create", who, err, "mirror", req.MirrorName)
}

// unused refuses the name of a mirror that there is. Whoever knows the KIP alone expects that also of an equal one.
func (s *Server) unused(ctx context.Context, name string) error {
	mirrors, err := s.cfg.Service.ListMirrors(ctx, false)
	if err == nil && slices.ContainsFunc(mirrors, func(m MirrorInfo) bool { return m.Mirror == name }) {
		err = &Error{Code: kip1279.ClusterMirrorAlreadyExists, Message: fmt.Sprintf("mirror %q exists", name), Hint: "choose another name",
			Exit: ExitRefused}
	}
	return err
}

// CheckMirror checks what can be checked of a definition without the source: its name, that it says where the source is,
// that its properties are known, and that it holds no secret. The error is an *Error.
func CheckMirror(name string, config map[string]string) error {
	if err := coordinator.ValidateName(name); err != nil {
		return &Error{Code: kip1279.InvalidRequest, Message: err.Error(), Hint: "choose another name", Exit: ExitUsage}
	}
	if _, err := clientconf.Servers(config["bootstrap.servers"]); err != nil {
		return &Error{Code: kip1279.InvalidRequest, Message: "bootstrap.servers: " + err.Error(),
			Hint: "add bootstrap.servers=HOST:PORT of the source to the mirror's configuration", Exit: ExitUsage}
	}
	if err := clientconf.CheckKeys(config); err != nil {
		return &Error{Code: kip1279.InvalidConfig, Message: err.Error(),
			Hint: "correct the mirror's configuration; docs/operations.md lists its properties", Exit: ExitUsage}
	}
	if err := clientconf.CheckSecrets(config); err != nil {
		return &Error{Code: kip1279.InvalidConfig, Message: err.Error(),
			Hint: "definitions are stored in a topic that others can read; the references are resolved by kmirror serve",
			Exit: ExitUsage}
	}
	if _, err := filters.Parse(config); err != nil {
		return &Error{Code: kip1279.InvalidConfig, Message: err.Error(), Hint: "correct the mirror's configuration", Exit: ExitUsage}
	}
	return nil
}

func (s *Server) start(
	ctx context.Context, req *kip1279.StartMirrorTopicsRequest, resp *kip1279.StartMirrorTopicsResponse, who caller,
) {
	start, err := startRequest(req)
	var results []TopicResult
	if err == nil {
		results, err = s.cfg.Service.StartTopics(ctx, start)
	}
	setStatus(&resp.Status, &resp.Extra, err)
	var refused int
	resp.Topics, refused = outcomesTo(results)
	s.audit("start", who, err, "mirror", req.MirrorName, "topics", start.Topics, "exclude", start.Exclude,
		"overwrite", start.Overwrite, "dry_run", start.DryRun, "accepted", len(results)-refused, "refused", refused)
}

// startRequest reads names and patterns; patterns of the KIP stand without slashes.
func startRequest(req *kip1279.StartMirrorTopicsRequest) (StartRequest, error) {
	out := StartRequest{Mirror: req.MirrorName}
	var opts startOptions
	if err := readOptions(req.Options, &opts); err != nil {
		return out, err
	}
	out.Overwrite, out.DryRun, out.Exclude = opts.Overwrite, opts.DryRun, opts.Exclude
	for _, t := range req.Topics {
		out.Topics = append(out.Topics, t.TopicName)
		if !t.TopicID.IsZero() {
			if out.TopicIDs == nil {
				out.TopicIDs = map[string]protocol.UUID{}
			}
			out.TopicIDs[t.TopicName] = t.TopicID
		}
	}
	out.Topics = append(out.Topics, slashed(req.IncludePatterns)...)
	out.Exclude = append(out.Exclude, slashed(req.ExcludePatterns)...)
	if err := someTopics(out.Topics); err != nil {
		return out, err
	}
	_, err := NewMatcher(out.Exclude)
	return out, err
}

// slashed turns the KIP's patterns into those of a LIST.
func slashed(patterns []string) []string {
	out := make([]string, 0, len(patterns))
	for _, p := range patterns {
		out = append(out, "/"+p+"/")
	}
	return out
}

// someTopics refuses a list without entries or with one that is neither a name nor a pattern.
func someTopics(list []string) error {
	if len(list) == 0 {
		return usage("no topic and no pattern given", "name topics or patterns")
	}
	_, err := NewMatcher(list)
	return err
}

func (s *Server) list(
	ctx context.Context, req *kip1279.ListClusterMirrorsRequest, resp *kip1279.ListClusterMirrorsResponse, who caller,
) {
	mirrors, err := s.cfg.Service.ListMirrors(ctx, req.IncludeTopicNames)
	setStatus(&resp.Status, &resp.Extra, err)
	for _, m := range mirrors {
		listed := kip1279.ListedMirror{
			MirrorName: m.Mirror, SourceBootstrap: m.SourceBootstrap, SourceClusterID: m.SourceClusterID,
			TopicCount: m.TopicCount, TopicNames: m.Topics,
		}
		if m.Properties != nil {
			listed.Extra = mustJSON(listedExtra{Properties: clientconf.Shown(m.Properties)})
		}
		resp.Mirrors = append(resp.Mirrors, listed)
	}
	s.auditRead("list", who, err)
}

func (s *Server) describe(
	ctx context.Context, req *kip1279.DescribeClusterMirrorsRequest, resp *kip1279.DescribeClusterMirrorsResponse, who caller,
) {
	var opts describeOptions
	err := readOptions(req.Options, &opts)
	if err == nil {
		_, err = NewMatcher(opts.Topics)
	}
	verb := "describe"
	var infos []PartitionInfo
	if err == nil && req.ClusterID == nil {
		infos, err = s.describeMirrors(ctx, req, resp, opts.Topics)
	} else if err == nil {
		verb = "lookup"
		err = s.lookup(ctx, req, resp)
	}
	setStatus(&resp.Status, &resp.Extra, err)
	s.auditRead(verb, who, err, "mirrors", req.MirrorNames, "topics", opts.Topics)
	for _, p := range infos {
		t := topicOf(resp, p)
		t.Partitions = append(t.Partitions, partitionTo(p))
	}
}

// topicOf returns where the partition's description belongs: at a mirror that is listed or, where it is just being made, a new one; infos
// are sorted, so it is the last topic of it or a new one.
func topicOf(resp *kip1279.DescribeClusterMirrorsResponse, p PartitionInfo) *kip1279.DescribedTopic {
	at := slices.IndexFunc(resp.Mirrors, func(m kip1279.DescribedMirror) bool { return m.MirrorName == p.Mirror })
	if at < 0 {
		at = len(resp.Mirrors)
		resp.Mirrors = append(resp.Mirrors, kip1279.DescribedMirror{MirrorName: p.Mirror, AuthorizedOperations: kip1279.NoOperations})
	}
	m := &resp.Mirrors[at]
	if n := len(m.Topics); n == 0 || m.Topics[n-1].TopicName != p.Topic {
		m.Topics = append(m.Topics, kip1279.DescribedTopic{TopicName: p.Topic})
	}
	return &m.Topics[len(m.Topics)-1]
}
