package preflight

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// report runs a part and returns its lines as "level check: detail".
func report(part func(*Report)) string {
	r := &Report{}
	part(r)
	var out []string
	for _, f := range r.Findings {
		if (f.Level == OK) != (f.Hint == "") {
			out = append(out, "a hint is missing, or too many:")
		}
		out = append(out, f.Level+" "+f.Check+": "+f.Detail)
	}
	return strings.Join(out, "\n")
}

func wants(t *testing.T, name, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) || strings.Contains(got, "a hint is") {
			t.Errorf("%s: no %q in\n%s", name, p, got)
		}
	}
}

func TestClientCertificates(t *testing.T) {
	c := Config{Listeners: []Listener{{Name: "A", Protocol: "SSL"}, {Name: "B", Protocol: "SASL_SSL"}, {Name: "C", Protocol: "SASL_PLAINTEXT"}}}
	got := report(func(r *Report) {
		r.clientCertificates(c, map[string]string{"ssl.client.auth": "required"})
	})
	wants(t, "A", got, "FAIL listener A: brokers ask clients for a certificate", "ok listener B")
	if strings.Contains(got, "listener C") {
		t.Errorf("C has no TLS: %s", got)
	}
	got = report(func(r *Report) {
		r.clientCertificates(c, map[string]string{"listener.name.a.ssl.client.auth": "requested"})
	})
	wants(t, "requested", got, "warn listener A", "ok listener B")
	c.Listeners = []Listener{{Name: "A", Protocol: "SSL", Own: true, Asks: true}, {Name: "B", Protocol: "SASL_SSL", Own: true},
		{Name: "E", Protocol: "SASL_SSL", Own: true}}
	got = report(func(r *Report) {
		r.clientCertificates(c, map[string]string{"ssl.client.auth": "required", "listener.name.b.ssl.client.auth": "required",
			"listener.name.e.ssl.client.auth": "requested"})
	})
	wants(t, "brokers' own", got, "ok listener A: brokers know each other", "FAIL listener B: brokers ask each other", "ok listener E")
}

func TestAutomatic(t *testing.T) {
	real := []*kraft.Broker{{ID: 1}, {ID: 2, Fenced: true}}
	got := report(func(r *Report) {
		r.automatic(map[string]string{"auto.create.topics.enable": "true", "default.replication.factor": "2"}, real)
	})
	wants(t, "bad", got, "warn automatic topics", "FAIL replication factor: default.replication.factor is 2, 1 real brokers are alive")
	got = report(func(r *Report) {
		r.automatic(map[string]string{"auto.create.topics.enable": "false", "default.replication.factor": "1"}, real)
	})
	wants(t, "good", got, "ok automatic topics", "ok replication factor")
	wants(t, "unknown", report(func(r *Report) { r.automatic(nil, real) }), "warn replication factor: not known")
}

func TestManagers(t *testing.T) {
	for want, c := range map[string]struct {
		topic  string
		config map[string]string
	}{
		"ok other managers":                                   {"orders", nil},
		"warn other managers: Strimzi, by super.users":        {"orders", map[string]string{"super.users": "User:CN=my-cluster-kafka,O=io.strimzi"}},
		"Strimzi, by strimzi.cruisecontrol.metrics":           {"strimzi.cruisecontrol.metrics", nil},
		"Cruise Control, by __CruiseControlMetrics":           {"__CruiseControlMetrics", nil},
		"Cruise Control, by __KafkaCruiseControlModelSamples": {"__KafkaCruiseControlModelSamples", nil},
		"Cruise Control, by metric.reporters": {"orders", map[string]string{
			"metric.reporters": "com.linkedin.kafka.cruisecontrol.metricsreporter.CruiseControlMetricsReporter"}},
		"MirrorMaker 2, by mm2-offset-syncs.a.internal": {"mm2-offset-syncs.a.internal", nil},
		"MirrorMaker 2, by heartbeats":                  {"heartbeats", nil},
		"MirrorMaker 2, by a.checkpoints.internal":      {"a.checkpoints.internal", nil},
	} {
		img := kraft.Empty()
		img.Names = map[string]protocol.UUID{c.topic: {1}}
		wants(t, want, report(func(r *Report) { r.managers(c.config, img) }), want)
	}
}

func TestNodeIDs(t *testing.T) {
	img := kraft.Empty()
	img.Brokers = map[int32]*kraft.Broker{1: {ID: 1, LogDirs: []protocol.UUID{{1}}}}
	got := report(func(r *Report) { r.nodeIDs(Config{NodeIDs: []int32{1, 9001}}, "c", img) })
	wants(t, "node ids", got, "FAIL node ids: 1 is a real broker", "ok node ids: 9001 is free")
}

func TestKafkaVersion(t *testing.T) {
	for version, want := range map[string]string{"4.4.0": "ok", "4.0": "ok", "3.9.1": "warn", "4.5.0": "warn", "5.0.0": "warn",
		"2.8": "FAIL", "new": "FAIL"} {
		if got := report(func(r *Report) { r.kafkaVersion(version) }); !strings.HasPrefix(got, want+" kafka version") {
			t.Errorf("%s: %s", version, got)
		}
	}
}

func TestTiered(t *testing.T) {
	img := kraft.Empty()
	wants(t, "none", report(func(r *Report) { r.tiered(img) }), "ok tiered storage")
	img.Configs = map[kraft.ConfigResource]map[string]string{{Type: kraft.ConfigTopic, Name: "a"}: {"remote.storage.enable": "true"}}
	wants(t, "one", report(func(r *Report) { r.tiered(img) }), "warn tiered storage: a")
}

func TestTopicRights(t *testing.T) {
	all := []kadm.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationAlter}
	list := []topicRight{{kmsg.ACLOperationRead, "nothing works"}}
	must := func(name string) bool { return name == "wanted" }
	for want, seen := range map[string]map[string]seenTopic{
		"warn x rights: READ on TOPIC *: not known": {"__mirror_state": {internal: true}, "old": {}},
		"ok x rights: READ on TOPIC (each of 2)":    {"a": {ops: all}, "b": {ops: all}},
		"warn x rights: READ on TOPIC b is missing": {"a": {ops: all}, "b": {ops: []kadm.ACLOperation{}}},
		"FAIL x rights: READ on TOPIC * is missing": {"a": {ops: all[1:]}, "b": {ops: all[1:]}},
		"FAIL x rights: READ on TOPIC wanted is":    {"a": {ops: all}, "wanted": {ops: all[1:]}},
	} {
		wants(t, want, report(func(r *Report) { r.topicRights("x", seen, list, must, Warn) }), want)
	}
	hidden := withHidden(map[string]seenTopic{"a": {ops: all}}, &kraft.Image{Names: map[string]protocol.UUID{"a": {1}, "b": {2}, "__x": {3}}})
	if len(hidden) != 2 || hidden["b"].ops == nil {
		t.Errorf("hidden topics: %+v", hidden)
	}
}

func TestJudge(t *testing.T) {
	x := right{"GROUP", "*", "READ", Warn, "groups are not synced", nil}
	got := report(func(r *Report) { r.judge("x", x, kerr.GroupAuthorizationFailed.Code, nil) })
	wants(t, "missing", got, "warn x rights: READ on GROUP * is missing: groups are not synced")
	wants(t, "there", report(func(r *Report) { r.judge("x", x, kerr.NotCoordinator.Code, nil) }), "ok x rights: READ on GROUP *")
	wants(t, "unknown", report(func(r *Report) { r.judge("x", x, 0, kerr.RequestTimedOut) }), "warn x rights: READ on GROUP *: not known")
	if names := some([]string{"f", "e", "d", "c", "b", "a"}); names != "a, b, c, d, e and 1 more" {
		t.Error(names)
	}
	if !slices.ContainsFunc(destinationRights, func(x right) bool { return x.probe == nil }) {
		t.Error("the right to write to __mirror_state is not among the destination's")
	}
}

func TestMisfitsEndServe(t *testing.T) {
	listeners := []Listener{{Name: "CLIENT", Protocol: "SSL"}, {Name: "REPL", Protocol: "PLAINTEXT", Own: true}}
	for name, c := range map[string]struct {
		config map[string]string
		want   []string
	}{
		"as it is":         {map[string]string{"inter.broker.listener.name": "REPL"}, nil},
		"another listener": {map[string]string{"inter.broker.listener.name": "CLIENT"}, []string{"inter-broker listener"}},
		"by its protocol":  {map[string]string{"security.inter.broker.protocol": "REPL"}, nil},
		"nobody says":      {nil, nil},
		"both": {map[string]string{"inter.broker.listener.name": "X", "ssl.client.auth": "required"},
			[]string{"inter-broker listener", "listener CLIENT"}},
	} {
		var got []string
		for _, f := range misfits(c.config, listeners, "REPL") {
			got = append(got, f.Check)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
