package admin

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kmirror/internal/coordinator"
	"kmirror/internal/kipclient"
	"kmirror/internal/lockbuf"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// keeper is a fake that keeps mirrors' properties.
type keeper struct {
	*fake
	configs map[string]map[string]string
	altered []AlterRequest
}

func (k *keeper) CreateMirror(ctx context.Context, name string, config map[string]string) error {
	k.configs[name] = config
	k.mirrors = append(k.mirrors, MirrorInfo{Mirror: name, SourceBootstrap: config["bootstrap.servers"], SourceClusterID: "src"})
	return k.fake.CreateMirror(ctx, name, config)
}

func (k *keeper) MirrorConfig(_ context.Context, mirror string) (map[string]string, error) {
	if k.configs[mirror] == nil {
		return nil, noMirror(mirror)
	}
	out := maps.Clone(k.configs[mirror])
	out[sourceClusterConfig] = "src"
	return out, nil
}

func (k *keeper) AlterMirror(_ context.Context, req AlterRequest) (AlterResult, error) {
	k.altered = append(k.altered, req)
	if k.configs[req.Mirror] == nil {
		return AlterResult{}, noMirror(req.Mirror)
	}
	config, err := ChangeConfig(k.configs[req.Mirror], req.Changes)
	if err == nil && !req.DryRun {
		k.configs[req.Mirror] = config
	}
	return AlterResult{}, err
}

func (k *keeper) Describe(ctx context.Context, req DescribeRequest) ([]PartitionInfo, error) {
	for _, name := range req.Mirrors {
		if k.configs[name] == nil {
			return nil, noMirror(name)
		}
	}
	return k.fake.Describe(ctx, req)
}

func (k *keeper) SyncStatus(context.Context, []string) ([]SyncInfo, error) { return nil, nil }

// kip is a client that knows the KIP's schemas alone, of a server of two processes.
type kip struct {
	t     *testing.T
	c     *kipclient.Client
	k     *keeper
	lines *lockbuf.Buffer
}

func newKIP(t *testing.T) *kip {
	t.Helper()
	k := &keeper{fake: &fake{}, configs: map[string]map[string]string{}}
	known := fullState("m", 1, 4)
	states := &owner{states: map[protocol.PartitionID]coordinator.PartitionState{known.ID: known}}
	address, lines, _ := serveWith(t, Config{Service: k, States: states, ClusterID: func() string { return "dst" },
		Processes: func() []Process {
			return []Process{{Address: "km2:9190", NodeIDs: []int32{9004, 9003}}, {Address: "km1:9190", NodeIDs: []int32{9002, 9001}, Self: true}}
		}})
	c, err := kipclient.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &kip{t: t, c: c, k: k, lines: lines}
}

// ask is a call whose answer must come.
func (k *kip) ask(api string, req kipclient.Object) kipclient.Object {
	k.t.Helper()
	resp, err := k.c.Call(api, req)
	if err != nil {
		k.t.Fatal(err)
	}
	return resp
}

// is compares what a call answers, or a part of it, with what is wanted, as text.
func (k *kip) is(what string, got any, want string) {
	k.t.Helper()
	if text := fmt.Sprint(got); text != want {
		k.t.Errorf("%s: %s, want %s", what, text, want)
	}
}

func list(values ...any) []any { return append([]any{}, values...) }

// first walks into an answer: names of fields, each an array whose first element is meant, the last one as it is.
func first(o any, names ...string) any {
	for i, name := range names {
		o = o.(kipclient.Object)[name]
		if i < len(names)-1 {
			all := o.([]any)
			if len(all) == 0 {
				return "nothing in " + name
			}
			o = all[0]
		}
	}
	return o
}

func topicsOf(names ...string) []any {
	out := []any{}
	for _, n := range names {
		out = append(out, kipclient.Object{"TopicName": n})
	}
	return out
}

// TestAClientOfTheKIPFindsTheProcesses: what an admin client asks first.
func TestAClientOfTheKIPFindsTheProcesses(t *testing.T) {
	k := newKIP(t)
	versions := k.ask("ApiVersions", kipclient.Object{"ClientSoftwareName": "kip", "ClientSoftwareVersion": "1"})
	var keys []int64
	for _, v := range versions["ApiKeys"].([]any) {
		keys = append(keys, v.(kipclient.Object)["ApiKey"].(int64))
	}
	k.is("keys", keys, "[3 10 18 32 44 60 74 94 95 96 97 98 99 100 101 102 103 104 105 106 107 30001]")
	k.is("feature", versions["FinalizedFeatures"], "[map[MaxVersionLevel:1 MinVersionLevel:1 Name:mirror.version]]")

	k.k.parts = []PartitionInfo{{Mirror: "m", Topic: "t", Partition: 0, TopicID: new("AAAAAAAAAAAAAAAAAAAAAQ"), DestinationEpoch: new(int32(7))},
		{Mirror: "m", Topic: "t", Partition: 1, TopicID: new("AAAAAAAAAAAAAAAAAAAAAQ")}, {Mirror: "m", Topic: "u", Partition: 0}}
	boot := k.ask("Metadata", kipclient.Object{"Topics": list()})
	k.is("nodes", boot["Brokers"], "[map[Host:km1 NodeId:9001 Port:9190 Rack:<nil>] map[Host:km2 NodeId:9003 Port:9190 Rack:<nil>]]")
	k.is("controller, cluster, topics", list(boot["ControllerId"], boot["ClusterId"], boot["Topics"]), "[9001 dst []]")
	all := k.ask("Metadata", kipclient.Object{"Topics": nil})["Topics"].([]any)
	k.is("leader of t-0", first(all[0], "Partitions", "LeaderId"), "9001")
	k.is("its epoch", first(all[0], "Partitions", "LeaderEpoch"), "7")
	named := k.ask("Metadata", kipclient.Object{"Topics": list(kipclient.Object{"Name": "u"}, kipclient.Object{"Name": "x"},
		kipclient.Object{"Name": nil, "TopicId": [16]byte{15: 1}}, kipclient.Object{"Name": nil, "TopicId": [16]byte{1}})})["Topics"].([]any)
	for i, want := range []int64{0, 3, 0, 100} {
		if got := named[i].(kipclient.Object)["ErrorCode"]; got != want {
			t.Errorf("topic %d: error %v, want %d", i, got, want)
		}
	}
	cluster := k.ask("DescribeCluster", kipclient.Object{})
	k.is("cluster", list(cluster["ClusterId"], cluster["ControllerId"], len(cluster["Brokers"].([]any))), "[dst 9001 2]")
	k.is("as a controller", k.ask("DescribeCluster", kipclient.Object{"EndpointType": 2})["ErrorCode"], "114")
	k.is("coordinator", first(k.ask("FindCoordinator", kipclient.Object{"CoordinatorKeys": list("g")}), "Coordinators", "ErrorCode"), "42")
}

// TestAClientOfTheKIPGoesThroughAMirrorsLife asks in the order in which an operator does.
func TestAClientOfTheKIPGoesThroughAMirrorsLife(t *testing.T) {
	k := newKIP(t)
	create := kipclient.Object{"MirrorName": "m", "Config": list(kipclient.Object{"Name": "bootstrap.servers", "Value": "a:1"})}
	k.is("create", k.ask("CreateClusterMirror", create)["ErrorCode"], "0")
	k.is("create once more", k.ask("CreateClusterMirror", create)["ErrorCode"], "136")
	k.is("list", first(k.ask("ListClusterMirrors", kipclient.Object{"IncludeTopicNames": true}), "Mirrors", "SourceClusterId"), "src")

	empty := k.ask("DescribeClusterMirrors", kipclient.Object{"MirrorNames": list(), "IncludeAuthorizedOperations": true})
	k.is("a mirror without topics", empty["Mirrors"], "[map[AuthorizedOperations:3552 ErrorCode:0 MirrorName:m Topics:[]]]")

	k.k.results = []TopicResult{{Topic: "t"}}
	start := kipclient.Object{"MirrorName": "m", "ExcludePatterns": list("x.*"), "IncludePatterns": list("t.*"),
		"Topics": list(kipclient.Object{"TopicName": "t", "TopicId": [16]byte{9}, "NumPartitions": 2})}
	k.is("start", first(k.ask("StartMirrorTopics", start), "Topics", "ErrorCode"), "0")
	want := StartRequest{Mirror: "m", Topics: []string{"t", "/t.*/"}, Exclude: []string{"/x.*/"}, TopicIDs: map[string]protocol.UUID{"t": {9}}}
	if !reflect.DeepEqual(k.k.started, []StartRequest{want}) {
		t.Errorf("started %+v", k.k.started)
	}
	k.k.parts = []PartitionInfo{{Mirror: "m", Topic: "t", Partition: 0, State: "MIRRORING", SourceOffset: new(int64(9)),
		DestinationOffset: new(int64(8)),
		Lag:               new(int64(1)), LastMirroredEpoch: new(int32(4))}}
	described := k.ask("DescribeClusterMirrors", kipclient.Object{"MirrorNames": list("m")})
	k.is("describe", first(described, "Mirrors", "Topics", "Partitions", "StateValue"), "MIRRORING")
	offsets := kipclient.Object{"MirrorName": "m", "Topics": list(kipclient.Object{"TopicName": "t", "Partitions": list(0, 5)})}
	k.is("offsets", first(k.ask("ReadMirrorOffsets", offsets), "Topics", "Partitions"),
		"[map[DestinationOffset:8 PartitionIndex:0 SourceOffset:9] map[DestinationOffset:-1 PartitionIndex:5 SourceOffset:-1]]")
	parts := list(kipclient.Object{"PartitionIndex": 0}, kipclient.Object{"PartitionIndex": 5})
	epochs := kipclient.Object{"MirrorName": "m", "Topics": list(kipclient.Object{"Name": "t", "Partitions": parts})}
	k.is("epochs", first(k.ask("LastMirroredEpochs", epochs), "Topics", "Partitions"),
		"[map[ErrorCode:0 LastMirroredEpoch:4 PartitionIndex:0] map[ErrorCode:3 LastMirroredEpoch:-1 PartitionIndex:5]]")
	read := kipclient.Object{"MirrorName": "m", "Topics": list(kipclient.Object{"Name": "orders",
		"Partitions": list(kipclient.Object{"PartitionIndex": 4})})}
	k.is("states", first(k.ask("ReadMirrorStates", read), "Topics", "Partitions", "State"), "5")
	write := kipclient.Object{"MirrorName": "m", "Topics": list(kipclient.Object{"Name": "orders",
		"Partitions": list(kipclient.Object{"PartitionIndex": 4, "State": 99},
			kipclient.Object{"PartitionIndex": 4, "State": -1, "LastMirrorEpoch": 6})})}
	written := k.ask("WriteMirrorStates", write)
	k.is("a state that there is not", first(written, "Topics", "Partitions", "ErrorCode"), "42")
	k.is("the epoch", first(k.ask("ReadMirrorStates", read), "Topics", "Partitions", "LastMirrorEpoch"), "6")

	for _, verb := range []string{"PauseMirrorTopics", "ResumeMirrorTopics", "StopMirrorTopics", "RecoverMirrorTopics"} {
		k.is(verb, first(k.ask(verb, kipclient.Object{"MirrorName": "m", "Topics": topicsOf("t")}), "Topics", "ErrorCode"), "0")
	}
	k.is("delete", k.ask("DeleteClusterMirror", kipclient.Object{"MirrorName": "m"})["ErrorCode"], "0")
	for _, verb := range []string{"create", "start", "pause", "resume", "failover", "recover", "delete", `"write states"`} {
		if !strings.Contains(k.lines.String(), "audit=true verb="+verb) {
			t.Errorf("no audit line of %s", verb)
		}
	}
}

// properties asks for the properties of a mirror.
func (k *kip) properties(mirror string, keys any) map[string]kipclient.Object {
	k.t.Helper()
	resource := kipclient.Object{"ResourceType": 64, "ResourceName": mirror, "ConfigurationKeys": keys}
	out := map[string]kipclient.Object{}
	for _, c := range first(k.ask("DescribeConfigs", kipclient.Object{"Resources": list(resource)}), "Results", "Configs").([]any) {
		c := c.(kipclient.Object)
		out[c["Name"].(string)] = c
	}
	return out
}

// change changes one property and returns the error code.
func (k *kip) change(mirror string, kind int, dry bool, name string, op int, value any) any {
	k.t.Helper()
	resource := kipclient.Object{"ResourceType": kind, "ResourceName": mirror,
		"Configs": list(kipclient.Object{"Name": name, "ConfigOperation": op, "Value": value})}
	return first(k.ask("IncrementalAlterConfigs", kipclient.Object{"Resources": list(resource), "ValidateOnly": dry}), "Responses", "ErrorCode")
}

// TestAClientOfTheKIPChangesSingleProperties: one property at a time, by what is stored in that moment.
func TestAClientOfTheKIPChangesSingleProperties(t *testing.T) {
	k := newKIP(t)
	k.k.configs["m"] = map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": "${file:/secret}", "ssl.key.password": "${env:P}"}
	k.k.mirrors = []MirrorInfo{{Mirror: "m"}}
	k.is("resources", k.ask("ListConfigResources", kipclient.Object{})["ConfigResources"], "[map[ResourceName:m ResourceType:64]]")
	k.is("topics' resources", k.ask("ListConfigResources", kipclient.Object{"ResourceTypes": list(2)})["ConfigResources"], "[]")
	got := k.properties("m", nil)
	k.is("a plain property", list(got["bootstrap.servers"]["Value"], got["bootstrap.servers"]["IsSensitive"]), "[a:1 false]")
	for _, secret := range []string{"sasl.jaas.config", "ssl.key.password"} {
		k.is(secret, list(got[secret]["Value"], got[secret]["IsSensitive"]), "[<nil> true]")
	}
	k.is("the cluster id", list(got[sourceClusterConfig]["Value"], got[sourceClusterConfig]["ReadOnly"]), "[src true]")
	k.is("one key", len(k.properties("m", list("bootstrap.servers"))), "1")

	const include = "mirror.topics.include"
	k.is("set", k.change("m", 64, false, include, 0, "a"), "0")
	k.is("append", k.change("m", 64, false, include, 2, "b,a"), "0")
	k.is("list", k.properties("m", nil)[include]["Value"], "a,b")
	k.is("subtract", k.change("m", 64, false, include, 3, "a,x"), "0")
	k.is("validate", k.change("m", 64, true, include, 0, "z"), "0")
	k.is("list after a dry run", k.properties("m", nil)[include]["Value"], "b")
	k.is("delete", k.change("m", 64, false, include, 1, nil), "0")
	k.is("afterwards", len(k.properties("m", list(include))), "0")
	k.is("others", k.k.configs["m"]["ssl.key.password"], "${env:P}")
	if last := k.k.altered[len(k.k.altered)-1]; last.Config != nil || len(last.Changes) != 1 {
		t.Errorf("asked for %+v", last)
	}
	for what, code := range map[string]any{
		"unknown mirror 137":     k.change("x", 64, false, include, 0, "a"),
		"a topic 42":             k.change("m", 2, false, include, 0, "a"),
		"set without a value 42": k.change("m", 64, false, include, 0, nil),
		"unknown operation 42":   k.change("m", 64, false, include, 9, "a"),
		"append to no list 40":   k.change("m", 64, false, "security.protocol", 2, "a"),
		"configs of x 137": first(k.ask("DescribeConfigs",
			kipclient.Object{"Resources": list(kipclient.Object{"ResourceType": 64, "ResourceName": "x"})}), "Results", "ErrorCode"),
		"configs of a topic 42": first(k.ask("DescribeConfigs",
			kipclient.Object{"Resources": list(kipclient.Object{"ResourceType": 2, "ResourceName": "x"})}), "Results", "ErrorCode"),
		"a property named twice 42": k.twice(),
	} {
		if !strings.HasSuffix(what, fmt.Sprintf(" %v", code)) {
			t.Errorf("%s: %v", what, code)
		}
	}
	if !strings.Contains(k.lines.String(), "verb=alter principal=User:ANONYMOUS") || !strings.Contains(k.lines.String(), "incremental=true") {
		t.Errorf("no audit line:\n%s", k.lines)
	}
}

func (k *kip) twice() any {
	same := kipclient.Object{"Name": "a", "ConfigOperation": 1}
	return first(k.ask("IncrementalAlterConfigs", kipclient.Object{"Resources": list(kipclient.Object{"ResourceType": 64, "ResourceName": "m",
		"Configs": list(same, same)})}), "Responses", "ErrorCode")
}

// TestErrorsOfTheKIP: what the service refuses with arrives with the KIP's code, of a request and of a topic.
func TestErrorsOfTheKIP(t *testing.T) {
	k := newKIP(t)
	k.k.configs["m"], k.k.mirrors = map[string]string{"bootstrap.servers": "a:1"}, []MirrorInfo{{Mirror: "m"}}
	topics := kipclient.Object{"MirrorName": "m", "Topics": topicsOf("t")}
	create := kipclient.Object{"MirrorName": "n", "Config": list(kipclient.Object{"Name": "bootstrap.servers", "Value": "a:1"})}
	codes := []int16{3, 7, 15, 17, 36, 40, 42, 103, 104, 124, 134, 136, 137, 138, 139, 140, 141, 142, 143, 145, 146}
	for _, code := range codes {
		refusal := &Error{Code: code, Message: "because"}
		k.k.err, k.k.results = refusal, nil
		for api, req := range map[string]kipclient.Object{
			"CreateClusterMirror": create, "StartMirrorTopics": topics, "StopMirrorTopics": topics, "PauseMirrorTopics": topics,
			"ResumeMirrorTopics": topics, "RecoverMirrorTopics": topics, "DeleteClusterMirror": {"MirrorName": "m"}, "ListClusterMirrors": {},
			"ReadMirrorOffsets": {"MirrorName": "m"}, "LastMirroredEpochs": {"MirrorName": "m"}, "DescribeClusterMirrors": {},
		} {
			got := k.ask(api, req)
			k.is(api, list(got["ErrorCode"], got["ErrorMessage"]), fmt.Sprintf("[%d because]", code))
		}
		k.k.err, k.k.results = nil, []TopicResult{{Topic: "t", Err: refusal}}
		for _, api := range []string{"StartMirrorTopics", "StopMirrorTopics", "PauseMirrorTopics", "ResumeMirrorTopics", "RecoverMirrorTopics"} {
			got := k.ask(api, topics)
			k.is(api+" of a topic", list(got["ErrorCode"], first(got, "Topics", "ErrorCode"), first(got, "Topics", "ErrorMessage")),
				fmt.Sprintf("[0 %d because]", code))
		}
	}
	k.k.results, k.k.err = nil, nil
	k.is("describe of a mirror that there is not", k.ask("DescribeClusterMirrors", kipclient.Object{"MirrorNames": list("x", "m")})["Mirrors"],
		"[map[AuthorizedOperations:-2147483648 ErrorCode:137 MirrorName:x Topics:[]] "+
			"map[AuthorizedOperations:-2147483648 ErrorCode:0 MirrorName:m Topics:[]]]")
	for _, api := range []string{"ReadMirrorStates", "WriteMirrorStates"} {
		k.is(api+" of a mirror that there is not", k.ask(api, kipclient.Object{"MirrorName": "x"})["ErrorCode"], "137")
	}
	bad := kipclient.Object{"MirrorName": "no/name", "Config": list()}
	k.is("a name that is none", k.ask("CreateClusterMirror", bad)["ErrorCode"], "42")
	k.is("without servers", k.ask("CreateClusterMirror", kipclient.Object{"MirrorName": "n", "Config": list()})["ErrorCode"], "42")
	secret := kipclient.Object{"MirrorName": "n", "Config": list(kipclient.Object{"Name": "bootstrap.servers", "Value": "a:1"},
		kipclient.Object{"Name": "ssl.key.password", "Value": "literal"})}
	k.is("a secret", k.ask("CreateClusterMirror", secret)["ErrorCode"], "40")
	k.is("no topics", k.ask("PauseMirrorTopics", kipclient.Object{"MirrorName": "m"})["ErrorCode"], "42")
}

// TestWhoMayNotIsToldWithTheKIPsCode: CLUSTER_MIRROR_AUTHORIZATION_FAILED of what is about a mirror, else CLUSTER_AUTHORIZATION_FAILED.
func TestWhoMayNotIsToldWithTheKIPsCode(t *testing.T) {
	g := serveGuarded(t, &fake{})
	conf := g.tls(t, "dev")
	conf.ServerName = "127.0.0.1"
	conn, err := tls.Dial("tcp", g.address, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	schemas, err := kipclient.Schemas()
	if err != nil {
		t.Fatal(err)
	}
	k := &kip{t: t, c: kipclient.New(conn, schemas)}
	cluster := []string{"ReadMirrorStates", "WriteMirrorStates", "BumpLeaderEpochs"}
	for _, api := range kip1279.APIs() {
		if api.Key == kip1279.KeyKmirrorCall {
			continue
		}
		want := "144"
		if slices.Contains(cluster, api.Name) {
			want = "31"
		}
		k.is(api.Name, k.ask(api.Name, kipclient.Object{})["ErrorCode"], want)
	}
	k.is("DescribeCluster", k.ask("DescribeCluster", kipclient.Object{})["ErrorCode"], "31")
	k.is("configs", first(k.ask("DescribeConfigs", kipclient.Object{"Resources": list(kipclient.Object{"ResourceType": 64})}), "Results",
		"ErrorCode"), "144")
	k.is("alter", k.change("m", 64, false, "a", 1, nil), "144")
	k.is("resources", k.ask("ListConfigResources", kipclient.Object{})["ErrorCode"], "144")
	metadata := k.ask("Metadata", kipclient.Object{"Topics": nil})
	k.is("metadata", list(len(metadata["Brokers"].([]any)), metadata["ClusterId"], metadata["Topics"]), "[1 <nil> []]")
}
