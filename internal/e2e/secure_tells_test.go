package e2e

import (
	"encoding/json"
	"errors"
	"net"
	"os"
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
	"kmirror/protocol"
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
		stays, fails := newRawPeer(t, addr), newRawPeer(t, addr)
		for _, p := range []*rawPeer{stays, fails} {
			if code := p.logIn(user, b.dst.Security().Password(user)); code != 0 {
				t.Fatalf("%s: login: error %d", name, code)
			}
			if err := p.fetch(); err != nil {
				t.Fatalf("%s: logged in: %v", name, err)
			}
		}
		time.Sleep(1500 * time.Millisecond) // brokers take no new login before a second is over
		if err := stays.fetch(); err != nil {
			t.Errorf("%s: within the session: %v", name, err)
		}
		if code := fails.logIn(user, "wrong"); code != kerr.SaslAuthenticationFailed.Code {
			t.Errorf("%s: a second login with a wrong password: error %d", name, code)
		}
		if err := fails.fetch(); !gone(err) {
			t.Errorf("%s: after a login that failed: %v", name, err)
		}
		time.Sleep(sessionLife)
		if err := stays.fetch(); !gone(err) {
			t.Errorf("%s: after the session: %v", name, err)
		}
	}
}

// kerberos: GSSAPI can't be relayed. The client is told so, with the mechanisms that the broker has besides, and the log says why.
func (b *secureBed) kerberos(t *testing.T) {
	for name, addr := range map[string]string{"listener": b.s.repl, "another node id": nextPort(t, b.s.repl)} {
		req := kmsg.NewPtrSASLHandshakeRequest()
		req.Version, req.Mechanism = 1, "GSSAPI"
		p := newRawPeer(t, addr)
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
		if err := p.fetch(); !gone(err) {
			t.Errorf("%s: afterwards: %v", name, err)
		}
	}
	eventually(t, 10*time.Second, "a line in the log", func() error {
		if !strings.Contains(mustRead(t, b.s.log), "GSSAPI (Kerberos) can't be relayed") {
			return errors.New("no such line")
		}
		return nil
	})
}

// rawPeer is a connection by which nothing is sent that a test does not send: no login again, for one.
type rawPeer struct {
	t  *testing.T
	nc net.Conn
}

func newRawPeer(t *testing.T, addr string) *rawPeer {
	t.Helper()
	nc, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &rawPeer{t: t, nc: nc}
}

func (p *rawPeer) send(req kmsg.Request) error {
	if err := p.nc.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	_, err := p.nc.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1))
	return err
}

func (p *rawPeer) ask(req kmsg.Request) (kmsg.Response, error) {
	if err := p.send(req); err != nil {
		return nil, err
	}
	answer, err := protocol.ReadFrame(p.nc, 1<<20, nil)
	if err != nil {
		return nil, err
	}
	_, body, err := protocol.ParseResponseHeader(req.Key(), req.GetVersion(), answer)
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	return resp, resp.ReadFrom(body)
}

// logIn authenticates by PLAIN and returns the error code of the last answer.
func (p *rawPeer) logIn(user, password string) int16 {
	p.t.Helper()
	hand := kmsg.NewPtrSASLHandshakeRequest()
	hand.Version, hand.Mechanism = 1, "PLAIN"
	resp, err := p.ask(hand)
	if err != nil {
		p.t.Fatalf("handshake: %v", err)
	}
	if code := resp.(*kmsg.SASLHandshakeResponse).ErrorCode; code != 0 {
		return code
	}
	auth := kmsg.NewPtrSASLAuthenticateRequest()
	auth.Version, auth.SASLAuthBytes = 2, []byte("\x00"+user+"\x00"+password)
	if resp, err = p.ask(auth); err != nil {
		p.t.Fatalf("login: %v", err)
	}
	return resp.(*kmsg.SASLAuthenticateResponse).ErrorCode
}

// fetch asks for nothing as a replica.
func (p *rawPeer) fetch() error {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaState.ID, req.SessionEpoch = 15, 9999, -1
	resp, err := p.ask(req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.FetchResponse).ErrorCode)
}

// gone reports whether an error is that of a connection that the other side has ended.
func gone(err error) bool {
	var answered *kerr.Error
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, os.ErrDeadlineExceeded)
}
