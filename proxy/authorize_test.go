package proxy

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// grants is the script of a broker that says what a client may do with the cluster, and with topics: nothing with others.
func grants(t *testing.T, cluster int32, topics map[string]int32) func(protocol.RequestHeader, []byte) kmsg.Response {
	return func(h protocol.RequestHeader, body []byte) kmsg.Response {
		switch h.Key {
		case 60:
			resp := kmsg.NewPtrDescribeClusterResponse()
			resp.ClusterAuthorizedOperations = cluster
			return resp
		case 3:
			decoded, err := protocol.DecodeRequest(h, body)
			if err != nil {
				t.Errorf("metadata request: %v", err)
				return nil
			}
			req, resp := decoded.(*kmsg.MetadataRequest), kmsg.NewPtrMetadataResponse()
			if req.AllowAutoTopicCreation || !req.IncludeTopicAuthorizedOperations {
				t.Errorf("asked for rights by %+v", req)
			}
			for _, asked := range req.Topics {
				out := kmsg.NewMetadataResponseTopic()
				out.Topic = asked.Topic
				if ops, ok := topics[*asked.Topic]; ok {
					out.AuthorizedOperations = ops
				} else {
					out.ErrorCode = codeTopicAuthorization
				}
				resp.Topics = append(resp.Topics, out)
			}
			return resp
		}
		return echo(h)
	}
}

// topicCode is the error of the first partition in the answer to a request of one topic.
func topicCode(t *testing.T, c *client, req kmsg.Request) int16 {
	t.Helper()
	switch resp := c.ask(req).(type) {
	case *kmsg.FetchResponse:
		return firstFetched(resp).ErrorCode
	case *kmsg.ProduceResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.ListOffsetsResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.OffsetForLeaderEpochResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.DeleteRecordsResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.DescribeProducersResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.ShareFetchResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.ShareAcknowledgeResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.WriteTxnMarkersResponse:
		return resp.Markers[0].Topics[0].Partitions[0].ErrorCode
	}
	t.Fatalf("no answer known to %T", req)
	return 0
}

// judged are requests of mirror topic m that we answer ourselves, with what each takes.
func judged(t *testing.T) map[string]judgedRequest {
	t.Helper()
	byID := fetchRequest(13, "", 20)
	byID.Topics[0].TopicID = mirrorID
	epoch := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epoch.Version, epoch.ReplicaID = 4, -1
	et := kmsg.NewOffsetForLeaderEpochRequestTopic()
	et.Topic, et.Partitions = "m", append(et.Partitions, kmsg.NewOffsetForLeaderEpochRequestTopicPartition())
	epoch.Topics = append(epoch.Topics, et)
	del := kmsg.NewPtrDeleteRecordsRequest()
	dt := kmsg.NewDeleteRecordsRequestTopic()
	dt.Topic, dt.Partitions = "m", append(dt.Partitions, kmsg.NewDeleteRecordsRequestTopicPartition())
	del.Topics = append(del.Topics, dt)
	producers := kmsg.NewPtrDescribeProducersRequest()
	pt := kmsg.NewDescribeProducersRequestTopic()
	pt.Topic, pt.Partitions = "m", []int32{0}
	producers.Topics = append(producers.Topics, pt)
	share := kmsg.NewPtrShareFetchRequest()
	share.Version = 1
	st := kmsg.NewShareFetchRequestTopic()
	st.TopicID, st.Partitions = mirrorID, append(st.Partitions, kmsg.NewShareFetchRequestTopicPartition())
	share.Topics = append(share.Topics, st)
	acknowledge := kmsg.NewPtrShareAcknowledgeRequest()
	acknowledge.Version = 1
	at := kmsg.NewShareAcknowledgeRequestTopic()
	at.TopicID, at.Partitions = mirrorID, append(at.Partitions, kmsg.NewShareAcknowledgeRequestTopicPartition())
	acknowledge.Topics = append(acknowledge.Topics, at)
	return map[string]judgedRequest{
		"fetch": {fetchRequest(12, "m", 20), mayRead}, "fetch by id": {byID, mayRead}, "produce": {produceRequest(9, 1, "m"), mayWrite},
		"offsets": {listRequest(7, -1, 0, "m", -1), mayDescribe}, "offsets for a replica": {listRequest(7, 1, 0, "m", -1), mayDescribe},
		"epoch": {epoch, mayDescribe}, "delete": {del, mayDelete}, "producers": {producers, mayRead}, "share fetch": {share, mayRead},
		"share acknowledge": {acknowledge, mayRead}, "fetch of nothing": {fetchRequest(12, "nothing", 20), mayRead},
	}
}

type judgedRequest struct {
	req       kmsg.Request
	operation int32
}

// What we answer ourselves to a client that logged in is what a broker would: not allowed, where it is not.
func TestClientsHaveTheRightsThatBrokersSay(t *testing.T) {
	t.Parallel()
	for name, j := range judged(t) {
		_, c := logIn(t, grants(t, 0, map[string]int32{"m": allRights &^ j.operation}))
		if code := topicCode(t, c, j.req); code != codeTopicAuthorization {
			t.Errorf("%s without the right: error %d", name, code)
		}
		_, c = logIn(t, grants(t, 0, map[string]int32{"m": j.operation, "nothing": j.operation}))
		if code := topicCode(t, c, j.req); code == codeTopicAuthorization {
			t.Errorf("%s with the right: error %d", name, code)
		}
	}
	// Replicas need no right on topics.
	for _, name := range []string{"offsets for a replica", "epoch"} {
		_, c := logIn(t, grants(t, mayClusterAction, nil))
		if code := topicCode(t, c, judged(t)[name].req); code == codeTopicAuthorization {
			t.Errorf("%s for a broker: error %d", name, code)
		}
	}
}

const allRights = mayRead | mayWrite | mayDelete | mayAlter | mayDescribe

// The same for what is judged by rights on the cluster.
func TestClientsHaveTheRightsOnTheCluster(t *testing.T) {
	t.Parallel()
	markers := kmsg.NewPtrWriteTxnMarkersRequest()
	markers.Version = 1
	m, mt := kmsg.NewWriteTxnMarkersRequestMarker(), kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	mt.Topic, mt.Partitions = "m", []int32{0}
	m.Topics = append(m.Topics, mt)
	markers.Markers = append(markers.Markers, m)
	for cluster, want := range map[int32]int16{0: codeClusterAuthorization, mayAlter: 0, mayClusterAction: 0} {
		_, c := logIn(t, grants(t, cluster, nil))
		if code := topicCode(t, c, markers); code != want {
			t.Errorf("markers with %#x: error %d, want %d", cluster, code, want)
		}
	}
	configs := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, fmt.Sprint(node)
	configs.Resources = append(configs.Resources, r)
	for cluster, want := range map[int32]int16{0: codeClusterAuthorization, mayDescribeConfigs: 0} {
		_, c := logIn(t, grants(t, cluster, nil))
		if got := c.ask(configs).(*kmsg.DescribeConfigsResponse).Resources[0].ErrorCode; got != want {
			t.Errorf("configs of the node with %#x: error %d, want %d", cluster, got, want)
		}
	}
}

// TestNodesTellNothingToWhoMayNot: neither what our node has nor that it is not a broker.
func TestNodesTellNothingToWhoMayNot(t *testing.T) {
	t.Parallel()
	dirs := kmsg.NewPtrDescribeLogDirsRequest()
	dirs.Version = 4
	move := kmsg.NewPtrAlterReplicaLogDirsRequest()
	move.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "m", Partitions: []int32{0}}}}}
	alter := kmsg.NewPtrAlterConfigsRequest()
	alter.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: fmt.Sprint(node)}}
	change := kmsg.NewPtrIncrementalAlterConfigsRequest()
	change.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: fmt.Sprint(node)}}
	other := kmsg.NewPtrIncrementalAlterConfigsRequest()
	other.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: "1"}}
	for name, tt := range map[string]struct {
		req       kmsg.Request
		operation int32
	}{
		"log dirs": {dirs, mayDescribe}, "move of a log": {move, mayAlter}, "configs": {alter, mayAlterConfigs},
		"one config": {change, mayAlterConfigs}, "config of another node": {other, mayAlterConfigs},
	} {
		code := func(cluster int32) (code int16, text *string) {
			_, c := logIn(t, grants(t, cluster, nil))
			switch resp := c.ask(tt.req).(type) {
			case *kmsg.DescribeLogDirsResponse:
				return resp.ErrorCode, nil
			case *kmsg.AlterReplicaLogDirsResponse:
				return resp.Topics[0].Partitions[0].ErrorCode, nil
			case *kmsg.AlterConfigsResponse:
				return resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage
			case *kmsg.IncrementalAlterConfigsResponse:
				return resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage
			}
			t.Fatalf("%s: no answer known", name)
			return 0, nil
		}
		if got, text := code(-1 &^ tt.operation); got != codeClusterAuthorization || text != nil {
			t.Errorf("%s without the right: error %d, text %v", name, got, text)
		}
		if got, _ := code(tt.operation); got == codeClusterAuthorization {
			t.Errorf("%s with the right: error %d", name, got)
		}
	}
}

func TestRightsAreRemembered(t *testing.T) {
	t.Parallel()
	w, c := logIn(t, grants(t, 0, map[string]int32{"m": allRights}))
	for range 3 {
		topicCode(t, c, judged(t)["offsets"].req)
	}
	asked := 0
	for _, h := range w.upstreamRequests() {
		if h.Key == 3 {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("rights were asked for %d times", asked)
	}
}

// withdrawn is the script of a broker that says of a replica's principal what may says when it is asked. With hidden it does not tell rights.
func withdrawn(may *atomic.Bool, hidden bool, hold *atomic.Bool) func(protocol.RequestHeader, []byte) kmsg.Response {
	return func(h protocol.RequestHeader, _ []byte) kmsg.Response {
		switch h.Key {
		case 60:
			if hold.Load() {
				return nil
			}
			resp := kmsg.NewPtrDescribeClusterResponse()
			if resp.ClusterAuthorizedOperations = mayDescribe; may.Load() {
				resp.ClusterAuthorizedOperations |= mayClusterAction
			}
			if hidden {
				resp.ClusterAuthorizedOperations = -1 << 31
			}
			return resp
		case keyFetch:
			resp := kmsg.NewPtrFetchResponse()
			topic := kmsg.NewFetchResponseTopic()
			topic.Partitions = append(topic.Partitions, fetchError(0, codeTopicAuthorization))
			if may.Load() {
				topic.Partitions[0].ErrorCode = codeUnknownTopic
			}
			resp.Topics = append(resp.Topics, topic)
			return resp
		}
		return echo(h)
	}
}

// TestWithdrawnRightsEnd: a replica that loses CLUSTER_ACTION while its connection lasts is refused soon, and served again when it has it.
func TestWithdrawnRightsEnd(t *testing.T) {
	t.Parallel()
	for name, hidden := range map[string]bool{"rights are told": false, "rights are not told": true} {
		t.Run(name, func(t *testing.T) {
			var may, hold atomic.Bool
			may.Store(true)
			w := newWorld(t, withSASL)
			w.server.rightsLife = 20 * time.Millisecond
			c := w.logIn(withdrawn(&may, hidden, &hold))
			code := func() int16 { return c.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode }
			for range 20 {
				if got := code(); got != 0 {
					t.Fatalf("error %d", got)
				}
			}
			may.Store(false)
			eventually(t, "refused", func() bool { return code() == codeClusterAuthorization })
			may.Store(true)
			eventually(t, "served again", func() bool { return code() == 0 })
		})
	}
}

// TestReplicasDontWaitForRights: while the broker that is asked for rights does not answer, a replica is served, until its rights are so old
// that nobody knows them any more.
func TestReplicasDontWaitForRights(t *testing.T) {
	t.Parallel()
	var may, hold atomic.Bool
	may.Store(true)
	w := newWorld(t, withSASL)
	w.server.rightsLife = 4 * time.Second // twice that is the time for what follows, on a machine that may stand still meanwhile
	c := w.logIn(withdrawn(&may, false, &hold))
	asked := func() (n int) {
		for _, h := range w.upstreamRequests() {
			if h.Key == 60 {
				n++
			}
		}
		return n
	}
	fetch := func() int16 { return c.ask(replicaFetchRequest()).(*kmsg.FetchResponse).ErrorCode }
	fetch()
	hold.Store(true)
	before := asked()
	eventually(t, "rights are asked for", func() bool {
		if got := fetch(); got != 0 {
			t.Fatalf("error %d", got)
		}
		return asked() > before
	})
	for range 100 {
		if got := fetch(); got != 0 {
			t.Fatalf("error %d", got)
		}
	}
	if n := asked(); n != before+1 {
		t.Errorf("asked %d times at once", n-before)
	}
}
