package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"kmirror/internal/kipclient"
	"kmirror/internal/testkafka"
)

// byTheKIP is somebody who has KIP-1279's schemas, Kafka's own admin client, and the admin listener's address.
type byTheKIP struct {
	t     *testing.T
	c     *kipclient.Client
	topic string
}

// try calls an API and returns the answer and its error, which is of the request or, where it names a topic, of the topic.
func (k *byTheKIP) try(api string, req kipclient.Object) (resp kipclient.Object, code int64, message any) {
	k.t.Helper()
	resp, err := k.c.Call(api, req)
	if err != nil {
		k.t.Fatal(err)
	}
	errors := []kipclient.Object{resp}
	for _, field := range []string{"Topics", "Results", "Responses"} {
		if list, _ := resp[field].([]any); len(list) > 0 {
			errors = append(errors, list[0].(kipclient.Object))
		}
	}
	for _, o := range errors {
		if c, ok := o["ErrorCode"].(int64); ok && code == 0 {
			code, message = c, o["ErrorMessage"]
		}
	}
	return resp, code, message
}

// ask calls an API and wants an error code.
func (k *byTheKIP) ask(want int64, api string, req kipclient.Object) kipclient.Object {
	k.t.Helper()
	resp, code, message := k.try(api, req)
	if code != want {
		k.t.Fatalf("%s %v: error %v (%v), want %d", api, req, code, message, want)
	}
	return resp
}

// settles calls an API until it succeeds: a state is described a moment before it is stored, and what is stored counts.
func (k *byTheKIP) settles(api string, req kipclient.Object) {
	k.t.Helper()
	eventually(k.t, 30*time.Second, api, func() error {
		if _, code, message := k.try(api, req); code != 0 {
			return fmt.Errorf("error %d (%v)", code, message)
		}
		return nil
	})
}

// named is a request about the topic of mirror k.
func (k *byTheKIP) named() kipclient.Object {
	return kipclient.Object{"MirrorName": "k", "Topics": []any{kipclient.Object{"TopicName": k.topic}}}
}

// reaches waits until both partitions are in a state, with as many records at both sides where that is asked for.
func (k *byTheKIP) reaches(state string, offsets int64) {
	k.t.Helper()
	eventually(k.t, 60*time.Second, k.topic+" "+state, func() error {
		resp := k.ask(0, "DescribeClusterMirrors", kipclient.Object{"MirrorNames": []any{"k"}})
		mirrors := resp["Mirrors"].([]any)
		topics := mirrors[0].(kipclient.Object)["Topics"].([]any)
		if len(topics) != 1 {
			return fmt.Errorf("%v", topics)
		}
		parts := topics[0].(kipclient.Object)["Partitions"].([]any)
		for _, p := range parts {
			p := p.(kipclient.Object)
			if p["StateValue"] != state || offsets >= 0 && (p["SourceOffset"] != offsets || p["DestinationOffset"] != offsets) {
				return fmt.Errorf("%v", p)
			}
		}
		if len(parts) != 2 {
			return fmt.Errorf("%d partitions", len(parts))
		}
		return nil
	})
}

// config changes mirror.groups.include of a mirror.
func (k *byTheKIP) config(code int64, mirror string, op int, value any, dry bool) {
	k.t.Helper()
	k.ask(code, "IncrementalAlterConfigs", kipclient.Object{"ValidateOnly": dry, "Resources": []any{kipclient.Object{"ResourceType": 64,
		"ResourceName": mirror, "Configs": []any{kipclient.Object{"Name": "mirror.groups.include", "ConfigOperation": op, "Value": value}}}}})
}

// configured wants a value of mirror.groups.include, nil for none.
func (k *byTheKIP) configured(want any) {
	k.t.Helper()
	resp := k.ask(0, "DescribeConfigs", kipclient.Object{"Resources": []any{kipclient.Object{"ResourceType": 64, "ResourceName": "k",
		"ConfigurationKeys": []any{"mirror.groups.include"}}}})
	var got any
	for _, c := range resp["Results"].([]any)[0].(kipclient.Object)["Configs"].([]any) {
		got = c.(kipclient.Object)["Value"]
	}
	if got != want {
		k.t.Errorf("mirror.groups.include is %v, want %v", got, want)
	}
}

// usesTheKIP leads a mirror of its own from its beginning to its end.
func usesTheKIP(t *testing.T, s *shim, src *testkafka.Cluster) {
	const records = 100
	k := &byTheKIP{t: t, topic: "by-the-kip"}
	createTopic(t, src, k.topic, 2, nil)
	produce(t, client(t, src), k.topic, 2, records, 50)
	var err error
	if k.c, err = kipclient.Dial(s.admin); err != nil {
		t.Fatal(err)
	}
	defer k.c.Close()
	if n := len(k.ask(0, "ApiVersions", kipclient.Object{"ClientSoftwareName": "kip", "ClientSoftwareVersion": "1"})["ApiKeys"].([]any)); n < 20 {
		t.Errorf("%d keys", n)
	}
	boot := k.ask(0, "Metadata", kipclient.Object{"Topics": []any{}})
	if at := fmt.Sprint(boot["Brokers"]); boot["ClusterId"] != s.dst.ID() ||
		!strings.Contains(at, "NodeId:9001 Port:"+s.admin[strings.LastIndexByte(s.admin, ':')+1:]) {
		t.Errorf("found %v of cluster %v", boot["Brokers"], boot["ClusterId"])
	}
	create := kipclient.Object{"MirrorName": "k", "Config": []any{kipclient.Object{"Name": "bootstrap.servers",
		"Value": strings.Join(src.Bootstrap("CLIENT"), ",")}, kipclient.Object{"Name": "mirror.source.cluster.id", "Value": src.ID()}}}
	k.ask(0, "CreateClusterMirror", create)
	k.ask(136, "CreateClusterMirror", create)
	details, err := kadm.NewClient(client(t, src)).ListTopics(timeout(t, 20*time.Second), k.topic)
	if err != nil {
		t.Fatal(err)
	}
	start := func(id kadm.TopicID) kipclient.Object {
		return kipclient.Object{"MirrorName": "k",
			"Topics": []any{kipclient.Object{"TopicName": k.topic, "TopicId": [16]byte(id), "NumPartitions": 2}}}
	}
	k.ask(103, "StartMirrorTopics", start(kadm.TopicID{1}))
	k.ask(0, "StartMirrorTopics", start(details[k.topic].ID))
	k.reaches("MIRRORING", records)
	k.positions(records)

	k.config(0, "k", 0, "a-.*", true)
	k.configured(nil)
	k.config(0, "k", 0, "a-.*", false)
	k.config(0, "k", 2, "b-.*", false)
	k.configured("a-.*,b-.*")
	k.config(0, "k", 1, nil, false)
	k.configured(nil)
	k.config(137, "nobody", 1, nil, false)

	k.ask(141, "ResumeMirrorTopics", k.named())
	k.settles("PauseMirrorTopics", k.named())
	k.ask(140, "PauseMirrorTopics", k.named())
	k.reaches("PAUSED", -1)
	k.settles("ResumeMirrorTopics", k.named())
	k.reaches("MIRRORING", records)
	k.ask(143, "DeleteClusterMirror", kipclient.Object{"MirrorName": "k"})
	k.settles("StopMirrorTopics", kipclient.Object{"MirrorName": "k", "Patterns": []any{".*"}})
	k.reaches("STOPPED", -1)
	k.ask(142, "PauseMirrorTopics", k.named())
	k.stockClient(s)
	k.settles("DeleteClusterMirror", kipclient.Object{"MirrorName": "k"})
	k.ask(137, "DeleteClusterMirror", kipclient.Object{"MirrorName": "k"})
}

// positions asks for stored states and for offsets of a topic that mirrors.
func (k *byTheKIP) positions(records int64) {
	k.t.Helper()
	parts := []any{kipclient.Object{"PartitionIndex": 0}, kipclient.Object{"PartitionIndex": 1}}
	eventually(k.t, 30*time.Second, "MIRRORING (2) stored of both", func() error { // a moment after it is described
		states := k.ask(0, "ReadMirrorStates", kipclient.Object{"MirrorName": "k",
			"Topics": []any{kipclient.Object{"Name": k.topic, "Partitions": parts}}})
		if got := fmt.Sprint(states["Topics"]); strings.Count(got, " State:2]") != 2 {
			return fmt.Errorf("stored states %s", got)
		}
		return nil
	})
	offsets := k.ask(0, "ReadMirrorOffsets", kipclient.Object{"MirrorName": "k",
		"Topics": []any{kipclient.Object{"TopicName": k.topic, "Partitions": []any{0, 1}}}})
	if got := fmt.Sprint(offsets["Topics"]); strings.Count(got, fmt.Sprintf("DestinationOffset:%d ", records)) != 2 {
		k.t.Errorf("offsets %s", got)
	}
	topics := k.ask(0, "Metadata", kipclient.Object{"Topics": []any{kipclient.Object{"Name": k.topic}}})["Topics"].([]any)
	if n := len(topics[0].(kipclient.Object)["Partitions"].([]any)); n != 2 {
		k.t.Errorf("metadata has %d partitions", n)
	}
}

// stockClient: Kafka's own admin client starts at the admin listener as at any cluster.
func (k *byTheKIP) stockClient(s *shim) {
	for _, tool := range []struct {
		class, want string
		args        []string
	}{
		{"org.apache.kafka.tools.BrokerApiVersionsCommand", "(id: 9001", nil},
		{"org.apache.kafka.tools.ClusterTool", s.dst.ID(), []string{"cluster-id"}},
	} {
		out, err := testkafka.Tool(timeout(k.t, 2*time.Minute), "", tool.class, append(tool.args, "--bootstrap-server", s.admin)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), tool.want) {
			k.t.Errorf("%s: %v\n%.3000s", tool.class, err, out)
		}
		k.t.Logf("%.400s", out)
	}
}
