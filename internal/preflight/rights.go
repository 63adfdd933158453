package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/filters"
	"kmirror/protocol/kraft"
)

// right is one that kmirror needs. probe asks for something that needs it and changes nothing, and returns the error code; whatever is
// not a refusal by the authorizer means that the right is there.
type right struct {
	resource, name, operation string
	level                     string // where it is missing
	without                   string // what does not work then
	probe                     func(ctx context.Context, cl *kgo.Client) (int16, error)
}

// String names the right as docs/operations.md lists it.
func (r right) String() string { return fmt.Sprintf("%s on %s %s", r.operation, r.resource, r.name) }

// nothing is a name that no group, transactional id or topic has.
const nothing = "preflight-that-nobody-has"

// refusals are the codes by which an authorizer's no arrives.
var refusals = []int16{kerr.ClusterAuthorizationFailed.Code, kerr.TopicAuthorizationFailed.Code, kerr.GroupAuthorizationFailed.Code,
	kerr.TransactionalIDAuthorizationFailed.Code}

// destinationRights are those of the principal of destination.client that can be asked for without a topic.
var destinationRights = []right{
	{"CLUSTER", "kafka-cluster", "ALTER", Fail, "kmirror does not get ready, and ACLs are not synced", alter},
	{"CLUSTER", "kafka-cluster", "CREATE", Fail, "no mirror topic is created", create},
	{"CLUSTER", "kafka-cluster", "ALTER_CONFIGS", Fail, "start of a new topic fails", alterBrokerConfigs},
	{"TOPIC", "__mirror_state", "WRITE", Fail, "create fails", nil}, // stateTopic
	{"TRANSACTIONAL_ID", "kmirror-*", "WRITE", Fail, "kmirror does not get ready", endTxn("kmirror-" + nothing)},
	{"TRANSACTIONAL_ID", "*", "DESCRIBE", Warn, "transactions that hang at the lock are not found", describeTxn},
	{"GROUP", "kmirror-state-*", "READ", Fail, "processes don't share work", heartbeat("kmirror-state-" + nothing)},
	{"GROUP", "*", "READ", Warn, "groups are not synced", heartbeat(nothing)},
}

// sourceRights are those of a mirror's principal that can be asked for without a topic.
var sourceRights = []right{
	{"GROUP", "*", "DESCRIBE", Warn, "no group is synced", describeGroup},
	{"CLUSTER", "kafka-cluster", "DESCRIBE", Warn, "no ACL is synced", describeACLs},
}

// rights probes a list of them.
func (r *Report) rights(ctx context.Context, where string, cl *kgo.Client, list []right) {
	for _, x := range list {
		if x.probe != nil {
			code, err := x.probe(ctx, cl)
			r.judge(where, x, code, err)
		}
	}
}

// judge adds the line of one right.
func (r *Report) judge(where string, x right, code int16, err error) {
	check := where + " rights"
	switch {
	case err != nil:
		r.add(Warn, check, "ask again, or see the broker's log", "%v: not known: %v", x, err)
	case slices.Contains(refusals, code):
		r.add(x.level, check, "allow "+x.String()+" to the principal that logs in there", "%v is missing: %s", x, x.without)
	default:
		r.ok(check, "%v", x)
	}
}

// alter sends a list of no reassignments.
func alter(ctx context.Context, cl *kgo.Client) (int16, error) {
	resp, err := ask[*kmsg.AlterPartitionAssignmentsResponse](ctx, cl, kmsg.NewPtrAlterPartitionAssignmentsRequest())
	if err != nil {
		return 0, err
	}
	return resp.ErrorCode, nil
}

// create has the creation of a topic validated.
func create(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = nothing, 1, 1
	req.Topics, req.ValidateOnly, req.TimeoutMillis = append(req.Topics, t), true, 10_000
	resp, err := ask[*kmsg.CreateTopicsResponse](ctx, cl, req)
	if err != nil || len(resp.Topics) != 1 {
		return 0, errors.Join(err, emptyAnswer(err))
	}
	return resp.Topics[0].ErrorCode, nil
}

// alterBrokerConfigs has no change of all brokers' defaults validated.
func alterBrokerConfigs(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeBroker, ""
	req.Resources, req.ValidateOnly = append(req.Resources, res), true
	resp, err := ask[*kmsg.IncrementalAlterConfigsResponse](ctx, cl, req)
	if err != nil || len(resp.Resources) != 1 {
		return 0, errors.Join(err, emptyAnswer(err))
	}
	return resp.Resources[0].ErrorCode, nil
}

// endTxn ends a transaction that there is not.
func endTxn(id string) func(context.Context, *kgo.Client) (int16, error) {
	return func(ctx context.Context, cl *kgo.Client) (int16, error) {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = id, 1<<62, 0
		resp, err := ask[*kmsg.EndTxnResponse](ctx, cl, req)
		if err != nil {
			return 0, err
		}
		return resp.ErrorCode, nil
	}
}

func describeTxn(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{nothing}
	resp, err := ask[*kmsg.DescribeTransactionsResponse](ctx, cl, req)
	if err != nil || len(resp.TransactionStates) != 1 {
		return 0, errors.Join(err, emptyAnswer(err))
	}
	return resp.TransactionStates[0].ErrorCode, nil
}

// heartbeat is one of no member.
func heartbeat(group string) func(context.Context, *kgo.Client) (int16, error) {
	return func(ctx context.Context, cl *kgo.Client) (int16, error) {
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.Generation, req.MemberID = group, 1, nothing
		resp, err := ask[*kmsg.HeartbeatResponse](ctx, cl, req)
		if err != nil {
			return 0, err
		}
		return resp.ErrorCode, nil
	}
}

func describeGroup(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{nothing}
	resp, err := ask[*kmsg.DescribeGroupsResponse](ctx, cl, req)
	if err != nil || len(resp.Groups) != 1 {
		return 0, errors.Join(err, emptyAnswer(err))
	}
	return resp.Groups[0].ErrorCode, nil
}

func describeACLs(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeTransactionalId, kmsg.ACLResourcePatternTypeLiteral
	req.ResourceName, req.Operation, req.PermissionType = kmsg.StringPtr(nothing), kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	resp, err := ask[*kmsg.DescribeACLsResponse](ctx, cl, req)
	if err != nil {
		return 0, err
	}
	return resp.ErrorCode, nil
}

// emptyAnswer is the error where there is no other one.
func emptyAnswer(err error) error {
	if err != nil {
		return nil
	}
	return errors.New("the answer does not hold what was asked for")
}

// topicRight is a right on topics, which brokers tell of those that exist.
type topicRight struct {
	operation kadm.ACLOperation
	without   string
}

// seenTopic is a topic as a broker shows it to a principal. ops is nil where the broker is too old to tell.
type seenTopic struct {
	internal bool
	ops      []kadm.ACLOperation
}

// topics asks for all topics that the principal may describe.
func topics(ctx context.Context, cl *kgo.Client) (map[string]seenTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	resp, err := ask[*kmsg.MetadataResponse](ctx, cl, req)
	if err != nil {
		return nil, err
	}
	out := map[string]seenTopic{}
	for _, t := range resp.Topics {
		if t.ErrorCode == 0 && t.Topic != nil {
			out[*t.Topic] = seenTopic{filters.InternalTopic(*t.Topic, t.IsInternal), kadm.DecodeACLOperations(t.AuthorizedOperations)}
		}
	}
	return out, nil
}

// topicRights judges rights by what a broker says of topics that it shows. Those that must have them fail without; where just others
// lack them, that is told. none is the level of there being no topic at all.
func (r *Report) topicRights(where string, seen map[string]seenTopic, list []topicRight, must func(string) bool, none string) {
	for _, x := range list {
		var lack, lackMust []string
		n := 0
		for name, t := range seen {
			if t.internal || t.ops == nil {
				continue
			}
			if n++; slices.Contains(t.ops, x.operation) {
				continue
			}
			if lack = append(lack, name); must(name) {
				lackMust = append(lackMust, name)
			}
		}
		what := right{"TOPIC", "*", x.operation.String(), Fail, x.without, nil}
		switch {
		case n == 0:
			r.add(none, where+" rights", "see the table of rights in docs/operations.md",
				"%v: not known: no topic is shown to this principal, because there is none yet or for want of DESCRIBE", what)
			continue
		case len(lack) == 0:
			what.name = fmt.Sprintf("(each of %d)", n)
			r.judge(where, what, 0, nil)
			continue
		case len(lackMust) > 0:
			what.name = some(lackMust)
		case len(lack) < n:
			what.level, what.name = Warn, some(lack)
		}
		r.judge(where, what, kerr.TopicAuthorizationFailed.Code, nil)
	}
}

// stateTopic asks for WRITE on __mirror_state: a broker tells of a topic that exists, and refuses to write to one that does not exist by
// the missing right first.
func stateTopic(ctx context.Context, opts []kgo.Opt, img *kraft.Image, ops []kadm.ACLOperation) (int16, error) {
	if img.TopicByName("__mirror_state") != nil {
		if !slices.Contains(ops, kmsg.ACLOperationWrite) {
			return kerr.TopicAuthorizationFailed.Code, nil
		}
		return 0, nil
	}
	named := kversion.Stable()
	named.SetMaxKeyVersion(int16(kmsg.Produce), 12) // above, topics have ids
	cl, err := newClient(opts, kgo.MaxVersions(named))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	t, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	t.Topic, t.Partitions = "__mirror_state", append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.ProduceResponse](ctx, cl, req)
	if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, errors.Join(err, emptyAnswer(err))
	}
	return resp.Topics[0].Partitions[0].ErrorCode, nil
}
