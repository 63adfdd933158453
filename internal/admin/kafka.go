package admin

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// What a client that knows Kafka and KIP-1279 alone needs besides the KIP's own RPCs: to find the processes, and to read and change a
// mirror's properties.
const (
	keyMetadata                int16 = 3
	keyFindCoordinator         int16 = 10
	keyDescribeConfigs         int16 = 32
	keyIncrementalAlterConfigs int16 = 44
	keyDescribeCluster         int16 = 60
	keyListConfigResources     int16 = 74
)

// maxKafkaRequest bounds requests of Kafka's own APIs in bytes: decoded they can take ninety times as much.
const maxKafkaRequest = 1 << 20

// Error codes of Kafka's that only these requests have.
const (
	codeMismatchedEndpoint int16 = 114
	codeUnknownTopicID     int16 = 100
	noOperations           int32 = -2147483648
)

// versions is the range of an API that is served.
type versions struct{ min, max int16 }

// kafkaAPIs are the APIs of Kafka's own that are served, as brokers of Kafka 4.4 have them.
var kafkaAPIs = map[int16]versions{
	keyMetadata: {0, 13}, keyFindCoordinator: {0, 6}, keyDescribeConfigs: {1, 4}, keyIncrementalAlterConfigs: {0, 1},
	keyDescribeCluster: {0, 2}, keyListConfigResources: {0, 1},
}

// answerKafka answers a request of Kafka's own APIs. As at brokers, a version that is not served ends the connection.
func (s *Server) answerKafka(ctx context.Context, h header, body []byte, who caller) ([]byte, error) {
	name := kmsg.NameForKey(h.key)
	if v := kafkaAPIs[h.key]; h.version < v.min || h.version > v.max {
		return nil, &unanswerable{"version", fmt.Errorf("%s version %d is not served (%d to %d are)", name, h.version, v.min, v.max)}
	}
	if len(body) > maxKafkaRequest {
		return nil, &unanswerable{"size", fmt.Errorf("%s of %d bytes, at most %d are read", name, len(body), maxKafkaRequest)}
	}
	req := kmsg.RequestForKey(h.key)
	req.SetVersion(h.version)
	if err := req.ReadFrom(body); err != nil {
		return nil, &unanswerable{"body of Kafka's", fmt.Errorf("%s version %d: the request is malformed", name, h.version)}
	}
	denied := s.denied(who, h.key, name)
	var resp kmsg.Response
	switch req := req.(type) {
	case *kmsg.MetadataRequest:
		resp = s.metadata(ctx, req, denied)
	case *kmsg.FindCoordinatorRequest:
		resp = findCoordinator(req)
	case *kmsg.DescribeConfigsRequest:
		if resp = s.describeConfigs(ctx, req, denied); denied == nil {
			s.auditRead("describe configs", who, nil)
		}
	case *kmsg.IncrementalAlterConfigsRequest:
		resp = s.alterConfigs(ctx, req, who, denied)
	case *kmsg.DescribeClusterRequest:
		resp = s.describeCluster(req, denied)
	case *kmsg.ListConfigResourcesRequest:
		if resp = s.configResources(ctx, req, denied); denied == nil {
			s.auditRead("list configs", who, nil)
		}
	}
	resp.SetVersion(h.version)
	return appendResponse(nil, h, resp.AppendTo), nil
}

// node is a process as Kafka's messages have it.
type node struct {
	id, port int32
	host     string
	self     bool
}

// nodes are the processes of the destination, this one first. The lowest of its node ids stands for a process.
func (s *Server) nodes() []node {
	procs := []Process{{Address: s.cfg.Listen.Addr().String(), Self: true}}
	if s.cfg.Processes != nil {
		procs = s.cfg.Processes()
	}
	var out []node
	for _, p := range procs {
		host, port, err := net.SplitHostPort(p.Address)
		if err != nil {
			continue
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			continue
		}
		it := node{host: host, port: int32(n), self: p.Self}
		if len(p.NodeIDs) > 0 {
			it.id = slices.Min(p.NodeIDs)
		}
		if out = append(out, it); p.Self {
			out[0], out[len(out)-1] = out[len(out)-1], out[0]
		}
	}
	return out
}

func (s *Server) clusterID() *string {
	if s.cfg.ClusterID == nil {
		return nil
	}
	if id := s.cfg.ClusterID(); id != "" {
		return &id
	}
	return nil
}

// metadata names the processes as brokers, and the one that was asked as the controller: any of them does what it is asked, or passes it
// on. The topics of mirrors are led by the one that was asked, since it answers for all. Who may not use the listener learns of no
// more than is known to whoever came here.
func (s *Server) metadata(ctx context.Context, req *kmsg.MetadataRequest, denied *Error) *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	all := s.nodes()
	if denied != nil {
		all = all[:min(1, len(all))]
		resp.ErrorCode = denied.Code
	} else {
		resp.ClusterID = s.clusterID()
	}
	for _, n := range all {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = n.id, n.host, n.port
		resp.Brokers = append(resp.Brokers, b)
	}
	resp.ControllerID = -1
	if len(all) == 0 {
		return resp
	}
	resp.ControllerID = all[0].id
	every := req.Topics == nil || req.Version == 0 && len(req.Topics) == 0
	if !every && len(req.Topics) == 0 {
		return resp
	}
	var known []kmsg.MetadataResponseTopic
	if denied == nil {
		known = s.mirrorTopics(ctx, all[0].id)
	}
	if every {
		resp.Topics = known
		return resp
	}
	for _, t := range req.Topics {
		i := slices.IndexFunc(known, func(k kmsg.MetadataResponseTopic) bool {
			return t.Topic != nil && *k.Topic == *t.Topic || t.Topic == nil && k.TopicID == t.TopicID
		})
		if i >= 0 {
			resp.Topics = append(resp.Topics, known[i])
			continue
		}
		unknown := kmsg.NewMetadataResponseTopic()
		unknown.Topic, unknown.TopicID, unknown.ErrorCode = t.Topic, t.TopicID, kip1279.UnknownTopicOrPartition
		if t.Topic == nil {
			unknown.ErrorCode = codeUnknownTopicID
		}
		resp.Topics = append(resp.Topics, unknown)
	}
	return resp
}

// mirrorTopics are the topics of all mirrors, none when they are not known yet.
func (s *Server) mirrorTopics(ctx context.Context, leader int32) []kmsg.MetadataResponseTopic {
	infos, err := s.cfg.Service.Describe(ctx, DescribeRequest{})
	if err != nil {
		return nil
	}
	slices.SortStableFunc(infos, ComparePartitions)
	var out []kmsg.MetadataResponseTopic
	for _, p := range infos {
		n := len(out)
		if n == 0 || *out[n-1].Topic != p.Topic {
			t := kmsg.NewMetadataResponseTopic()
			t.Topic = &p.Topic
			if p.TopicID != nil {
				if id, err := protocol.ParseUUID(*p.TopicID); err == nil {
					t.TopicID = id
				}
			}
			out, n = append(out, t), n+1
		}
		part := kmsg.NewMetadataResponseTopicPartition()
		part.Partition, part.Leader, part.Replicas, part.ISR = p.Partition, leader, []int32{leader}, []int32{leader}
		if p.DestinationEpoch != nil {
			part.LeaderEpoch = *p.DestinationEpoch
		}
		out[n-1].Partitions = append(out[n-1].Partitions, part)
	}
	return out
}

// describeCluster names the processes, as metadata does.
func (s *Server) describeCluster(req *kmsg.DescribeClusterRequest, denied *Error) *kmsg.DescribeClusterResponse {
	resp := kmsg.NewPtrDescribeClusterResponse()
	const brokers = 1
	resp.EndpointType, resp.ControllerID, resp.ClusterAuthorizedOperations = brokers, -1, noOperations
	switch {
	case denied != nil:
		resp.ErrorCode, resp.ErrorMessage = denied.Code, &denied.Message
		return resp
	case req.Version >= 1 && req.EndpointType != brokers:
		message := "kmirror's admin listener is asked as a broker (bootstrap.servers), not as a controller"
		resp.ErrorCode, resp.ErrorMessage = codeMismatchedEndpoint, &message
		return resp
	}
	if id := s.clusterID(); id != nil {
		resp.ClusterID = *id
	}
	for i, n := range s.nodes() {
		if i == 0 {
			resp.ControllerID = n.id
		}
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port = n.id, n.host, n.port
		resp.Brokers = append(resp.Brokers, b)
	}
	return resp
}

// findCoordinator refuses in words: KIP-1279 has no key type of its own, and groups and transactions are the brokers'.
func findCoordinator(req *kmsg.FindCoordinatorRequest) *kmsg.FindCoordinatorResponse {
	message := "kmirror's admin listener coordinates no groups and no transactions: ask a broker of the cluster"
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Port = kip1279.InvalidRequest, &message, -1, -1
	for _, key := range req.CoordinatorKeys {
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID, c.Port, c.ErrorCode, c.ErrorMessage = key, -1, -1, kip1279.InvalidRequest, &message
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}
