package e2e

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/testkafka"
)

// strangers: kmirror tells a user without rights of a topic that it leads what a broker tells of its own, field by field, and what it
// tells of one that is not there; and of its node what a broker tells of itself.
func (b *secureBed) strangers(t *testing.T) {
	addUsers(t, b.dst, "stranger")
	broker := b.dst.Bootstrap(testkafka.ClientListener)[0]
	theirs := b.told(t, broker, "local", b.dst.Brokers()[0])
	ours := b.told(t, b.s.client, "orders", 9001)
	missing := b.told(t, b.s.client, "nothing", 9002)
	for what, want := range theirs {
		if ours[what] != want {
			t.Errorf("%s: kmirror tells\n%s\na broker\n%s", what, ours[what], want)
		}
		// Of an id that nobody has brokers say so: it can't be guessed.
		byID := what == "by id fetch" || what == "by id produce"
		if got := missing[what]; got != ours[what] && !byID {
			t.Errorf("%s: of what is not there kmirror tells\n%s\nof what is\n%s", what, got, ours[what])
		}
		if !strings.Contains(want, `"ErrorCode":29`) && !strings.Contains(want, `"ErrorCode":31`) {
			t.Errorf("%s: a broker refuses nothing: %s", what, want)
		}
	}
}

// told is what the stranger is answered at an address, as JSON in which topic and node have the same name everywhere.
func (b *secureBed) told(t *testing.T, addr, topic string, node int32) map[string]string {
	t.Helper()
	found, err := kadm.NewClient(client(t, b.dst)).ListTopics(timeout(t, 10*time.Second), topic)
	if err != nil {
		t.Fatal(err)
	}
	id := found[topic].ID
	if found[topic].Err != nil {
		id = kadm.TopicID{7, 7, 7}
	}
	idText, nodeText := mustJSON(t, [16]byte(id)), mustJSON(t, strconv.Itoa(int(node)))
	byName := kversion.Stable()
	byName.SetMaxKeyVersion(0, 12)
	byName.SetMaxKeyVersion(1, 12)
	answers := map[string]string{}
	for prefix, opts := range map[string][]kgo.Opt{"by id ": nil, "by name ": {kgo.MaxVersions(byName)}} {
		cl := as(t, b.dst, "stranger", addr, opts...)
		for what, req := range questions(topic, id, strconv.Itoa(int(node))) {
			resp, err := cl.SeedBrokers()[0].Request(timeout(t, 10*time.Second), req)
			if err != nil {
				t.Fatalf("%s%s at %s: %v", prefix, what, addr, err)
			}
			text := strings.ReplaceAll(mustJSON(t, resp), mustJSON(t, topic), `"TOPIC"`)
			text = strings.ReplaceAll(strings.ReplaceAll(text, idText, `"ID"`), nodeText, `"NODE"`)
			answers[prefix+what] = anyController.ReplaceAllString(text, "") // each time another one is told
		}
	}
	return answers
}

var anyController = regexp.MustCompile(`"ControllerID":-?\d+,`)

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// questions are what clients ask leaders of a topic, and tools of a node.
func questions(topic string, id [16]byte, node string) map[string]kmsg.Request {
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	list := kmsg.NewPtrListOffsetsRequest()
	list.ReplicaID, list.Topics = -1, []kmsg.ListOffsetsRequestTopic{{Topic: topic,
		Partitions: []kmsg.ListOffsetsRequestTopicPartition{{CurrentLeaderEpoch: -1, Timestamp: -1}}}}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.SessionEpoch, fetch.MaxBytes, fetch.MaxWaitMillis = -1, 1<<20, 1000
	asked := kmsg.NewFetchRequestTopicPartition()
	asked.PartitionMaxBytes = 1 << 20
	fetch.Topics = []kmsg.FetchRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{asked}}}
	produce := kmsg.NewPtrProduceRequest()
	produce.Acks, produce.TimeoutMillis = -1, 1000
	produce.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.ProduceRequestTopicPartition{{}}}}
	remove := kmsg.NewPtrDeleteRecordsRequest()
	remove.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{}}}}
	epoch := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epoch.ReplicaID, epoch.Topics = -1, []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: topic,
		Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{CurrentLeaderEpoch: -1}}}}
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: topic, Partitions: []int32{0}}}
	throttle := "leader.replication.throttled.rate"
	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: node}}
	change := func(op kmsg.IncrementalAlterConfigOp, value *string) kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: node,
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: throttle, Op: op, Value: value}}}}
		return req
	}
	replace := kmsg.NewPtrAlterConfigsRequest()
	replace.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: node,
		Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: throttle, Value: new("1")}}}}
	move := kmsg.NewPtrAlterReplicaLogDirsRequest()
	move.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: "/d", Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: topic, Partitions: []int32{0}}}}}
	return map[string]kmsg.Request{
		"metadata": meta, "offsets": list, "fetch": fetch, "produce": produce, "delete records": remove, "epoch": epoch, "producers": producers,
		"configs": configs, "set a config": change(kmsg.IncrementalAlterConfigOpSet, new("1")),
		"clear a config": change(kmsg.IncrementalAlterConfigOpDelete, nil), "set configs": replace,
		"log dirs": kmsg.NewPtrDescribeLogDirsRequest(), "move a log": move,
	}
}

// sessions: kmirror serves replicas for as long as the broker behind it would, though it asks it nothing meanwhile: until the session of
// their login ends, or a login in it fails. The brokers of this destination follow kmirror all the while and log in again in time.
func (b *secureBed) sessions(t *testing.T) {
	const user = testkafka.FollowerUser // followers gave it CLUSTER_ACTION
	for name, addr := range map[string]string{"kmirror": b.s.repl, "a broker": b.dst.Bootstrap(testkafka.ReplListener)[0]} {
		begin := time.Now()
		stays, fails := dialPeer(t, addr), dialPeer(t, addr)
		for _, p := range []*peer{stays, fails} {
			if code := p.logIn(t, user, b.dst.Security().Password(user)); code != 0 {
				t.Fatalf("%s: login: error %d", name, code)
			}
			if err := p.follow(); err != nil {
				t.Fatalf("%s: logged in: %v", name, err)
			}
		}
		time.Sleep(1500 * time.Millisecond)                                       // brokers take no new login before a second is over
		if err := stays.follow(); err != nil && time.Since(begin) < sessionLife { // else the machine had no time for this
			t.Errorf("%s: within the session: %v", name, err)
		}
		if code := fails.logIn(t, user, "wrong"); code != kerr.SaslAuthenticationFailed.Code {
			t.Errorf("%s: a second login with a wrong password: error %d", name, code)
		}
		if err := fails.follow(); !gone(err) {
			t.Errorf("%s: after a login that failed: %v", name, err)
		}
		time.Sleep(sessionLife)
		if err := stays.follow(); !gone(err) {
			t.Errorf("%s: after the session: %v", name, err)
		}
	}
}

// kerberos: GSSAPI can't be relayed. The client is told so, with the mechanisms that the broker has besides, and the log says why.
func (b *secureBed) kerberos(t *testing.T) {
	for name, addr := range map[string]string{"listener": b.s.repl, "another node id": nextPort(t, b.s.repl)} {
		req := kmsg.NewPtrSASLHandshakeRequest()
		req.Version, req.Mechanism = 1, "GSSAPI"
		p := dialPeer(t, addr)
		resp, err := p.ask(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		told := resp.(*kmsg.SASLHandshakeResponse)
		slices.Sort(told.SupportedMechanisms)
		want := []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
		if told.ErrorCode != kerr.UnsupportedSaslMechanism.Code || !slices.Equal(told.SupportedMechanisms, want) {
			t.Errorf("%s: told %+v, want %v", name, told, want)
		}
		if err := p.follow(); !gone(err) {
			t.Errorf("%s: afterwards: %v", name, err)
		}
	}
	eventually(t, 30*time.Second, "a line in the log", func() error {
		if !strings.Contains(mustRead(t, b.s.log), "GSSAPI (Kerberos) can't be relayed") {
			return errors.New("no such line")
		}
		return nil
	})
}
