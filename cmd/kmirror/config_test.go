package main

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"kmirror/internal/admin"
)

const goodConfig = `
cluster_id: 5L6g3nShT-eMCtK--X86sw
node_ids: [9001, 9002]
rack: dc2-a
tls: &tls {certificate: tls.crt, key: tls.key, ca: ca.crt}
admin: 127.0.0.1:9190
http: 127.0.0.1:9191
destination:
  bootstrap_servers: [b1:9093]
  controllers: [c1:9090, c2:9090]
  client: {}
  controller_client: {}
  replication_client: {}
  inter_broker_listener: REPL
listeners:
  - {name: CLIENT, bind: 0.0.0.0:9093, advertised: km1.dc2:9093, protocol: PLAINTEXT}
  - {name: REPL, bind: 0.0.0.0:9091, advertised: km1.dc2:9091, protocol: SASL_PLAINTEXT}
lock: [size, min_isr]
min_real_insync: 2
on_evicted: reregister
limits: {source_bytes_per_second: 10MB, connections: 500, memory: 2GiB}
metrics: {per_partition: false}
log: {format: text, level: debug}
shutdown_timeout: 45s
read_only_error: read_only_topic
fence_after: 20s
fence_slower_than: 1500ms
`

func TestConfig(t *testing.T) {
	c, err := parseConfig([]byte(goodConfig), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		ClusterID: "5L6g3nShT-eMCtK--X86sw", NodeIDs: []int32{9001, 9002}, Rack: "dc2-a",
		TLS:   &TLSFiles{Certificate: "tls.crt", Key: "tls.key", CA: "ca.crt"},
		Admin: AdminConfig{Bind: "127.0.0.1:9190"}, HTTP: "127.0.0.1:9191",
		Destination: DestinationConfig{
			BootstrapServers: []string{"b1:9093"}, Controllers: []string{"c1:9090", "c2:9090"}, Client: map[string]string{},
			ControllerClient: map[string]string{}, ReplicationClient: map[string]string{}, InterBrokerListener: "REPL",
		},
		Listeners: []ListenerConfig{
			{Name: "CLIENT", Bind: "0.0.0.0:9093", Advertised: "km1.dc2:9093", Protocol: "PLAINTEXT"},
			{Name: "REPL", Bind: "0.0.0.0:9091", Advertised: "km1.dc2:9091", Protocol: "SASL_PLAINTEXT"},
		},
		Lock: []string{"size", "min_isr"}, MinRealInsync: 2, OnEvicted: "reregister",
		Limits: LimitsConfig{SourceBytesPerSecond: 10_000_000, Connections: 500, Memory: 2 << 30}, Log: LogConfig{"text", "debug"},
		ShutdownTimeout: 45 * time.Second, ReadOnlyError: "read_only_topic", FenceAfter: 20 * time.Second, FenceSlowerThan: 1500 * time.Millisecond,
		Trace: defaultTrace(),
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestConfigDefaults(t *testing.T) {
	c, err := parseConfig([]byte(`
node_ids: [1001, 1002]
admin: {bind: "localhost:9190", advertised: "km1:9190"}
destination: {bootstrap_servers: [b:1], controllers: [c:1], inter_broker_listener: A}
listeners: [{name: A, bind: ":9091", advertised: "km1:9091", protocol: PLAINTEXT}]
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.OnEvicted != "alarm" || c.Limits.Memory != 1<<30 || c.Limits.Connections != 10_000 || !c.Metrics.PerPartition ||
		c.ShutdownTimeout != 30*time.Second || c.ReadOnlyError != "policy_violation" || c.Log.Format != "json" ||
		c.Admin.Advertised != "km1:9190" || len(c.Lock) != 2 || c.FenceAfter != 10*time.Second || c.FenceSlowerThan != 5*time.Second {
		t.Errorf("%+v", c)
	}
	if bind, host, port := c.Listeners[0].endpoint(1); bind != ":9092" || host != "km1" || port != 9092 {
		t.Errorf("second node id: %s %s %d", bind, host, port)
	}
}

func TestConfigEnvironmentWins(t *testing.T) {
	// Three node ids need three ports each, and the listeners' ports are two apart.
	_, err := parseConfig([]byte(goodConfig), []string{"KMIRROR_NODE_IDS=7001,7002,7003"})
	if err == nil || !strings.Contains(err.Error(), "listeners.REPL") {
		t.Fatalf("overlapping ports: %v", err)
	}
	c, err := parseConfig([]byte(goodConfig), []string{
		"KMIRROR_NODE_IDS=7001,7002", "KMIRROR_HTTP=127.0.0.1:1", "KMIRROR_LIMITS_MEMORY=128MiB", "KMIRROR_LOG_LEVEL=warn",
		"KMIRROR_DESTINATION_CONTROLLERS=x:1", "KMIRROR_METRICS_PER_PARTITION=true", "KMIRROR_SHUTDOWN_TIMEOUT=5s",
		"KMIRROR_ADMIN=127.0.0.1:7", "KMIRROR_BOOTSTRAP_SERVER=ignored:1", "KMIRROR_LISTENERS=nonsense",
		"KMIRROR_SERVICE_HOST=10.0.0.1", "KMIRROR_RACK=",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.NodeIDs, []int32{7001, 7002}) || c.HTTP != "127.0.0.1:1" || c.Limits.Memory != 128<<20 || c.Log.Level != "warn" ||
		!reflect.DeepEqual(c.Destination.Controllers, []string{"x:1"}) || !c.Metrics.PerPartition || c.ShutdownTimeout != 5*time.Second ||
		c.Admin.Bind != "127.0.0.1:7" || c.Rack != "" {
		t.Errorf("%+v", c)
	}
	if _, err := parseConfig([]byte(goodConfig), []string{"KMIRROR_MIN_REAL_INSYNC=two"}); err == nil ||
		!strings.Contains(err.Error(), "KMIRROR_MIN_REAL_INSYNC") {
		t.Errorf("a value that does not fit: %v", err)
	}
}

func TestConfigProblems(t *testing.T) {
	for _, c := range []struct {
		name, old, new, want string
	}{
		{"unknown key", "rack:", "rock:", "unknown key rock"},
		{"unknown nested key", "per_partition", "per_topic", "unknown key per_topic"},
		{"unknown admin key", "admin: 127.0.0.1:9190", "admin: {bind: \"127.0.0.1:9190\", port: 1}", "unknown key admin.port"},
		{"not YAML", "rack: dc2-a", "rack: [", "yaml"},
		{"two documents", "read_only_error: read_only_topic", "---\na: b", "more than one"},
		{"cluster id", "5L6g3nShT-eMCtK--X86sw", "abc", "cluster_id"},
		{"one node id", "[9001, 9002]", "[9001]", "node_ids: 1 given"},
		{"same node id", "[9001, 9002]", "[9001, 9001]", "stands twice"},
		{"negative node id", "[9001, 9002]", "[-1, 9001]", "negative"},
		{"no admin", "admin: 127.0.0.1:9190", "", "admin: missing"},
		{"open admin", "127.0.0.1:9190", "0.0.0.0:9190", "add admin.tls and admin.allow"},
		{"admin TLS", "admin: 127.0.0.1:9190", "admin: {bind: \"0.0.0.0:9190\", tls: *tls, allow: [\"User:CN=x\"]}", "admin.advertised: missing"},
		{"admin TLS files", "admin: 127.0.0.1:9190", "admin: {bind: \"127.0.0.1:9190\", tls: *tls, allow: [\"User:CN=x\"]}", "admin.tls: open tls.crt"},
		{"admin TLS without ca", "admin: 127.0.0.1:9190", "admin: {bind: \":9190\", tls: {certificate: c}, allow: [\"User:CN=x\"]}",
			"admin.tls.ca: missing"},
		{"admin TLS without allow", "admin: 127.0.0.1:9190", "admin: {bind: \":9190\", tls: *tls}", "admin.allow: missing"},
		{"allow without admin TLS", "admin: 127.0.0.1:9190", "admin: {bind: \"127.0.0.1:9190\", allow: [\"User:CN=x\"]}", "add admin.tls with"},
		{"allow of a bare name", "admin: 127.0.0.1:9190", "admin: {bind: \":9190\", tls: *tls, allow: [sre]}", "\"sre\" is no principal"},
		{"allow with spaces", "admin: 127.0.0.1:9190", "admin: {bind: \":9190\", tls: *tls, allow: [\"User:CN=a, O=b\"]}", "space after a comma"},
		{"http", "127.0.0.1:9191", "9191", "http:"},
		{"no controllers", "[c1:9090, c2:9090]", "[]", "destination.controllers: missing"},
		{"bootstrap", "[b1:9093]", "[b1]", "destination.bootstrap_servers"},
		{"client property", "client: {}", "client: {security.protocol: FOO}", "security.protocol"},
		{"literal secret", "client: {}", "client: {ssl.key.password: hunter2}", "ssl.key.password"},
		{"bootstrap in client", "client: {}", "client: {bootstrap.servers: \"a:1\"}", "destination.bootstrap_servers"},
		{"inter broker listener", "inter_broker_listener: REPL", "inter_broker_listener: X", "not among listeners"},
		{"no inter broker listener", "inter_broker_listener: REPL", "", "inter_broker_listener: missing"},
		{"protocol", "protocol: PLAINTEXT", "protocol: FOO", "listeners.CLIENT.protocol"},
		{"TLS listener without a certificate", "protocol: PLAINTEXT", "protocol: SSL", "listeners.CLIENT.tls: missing for protocol SSL"},
		{"no such certificate", "protocol: PLAINTEXT", "protocol: SASL_SSL, tls: {certificate: none.crt, key: none.key}", "none.crt: no such file"},
		{"client certificates", "protocol: PLAINTEXT", "protocol: SSL, tls: *tls", "can't be relayed to the broker"},
		{"TLS without TLS", "protocol: PLAINTEXT", "protocol: PLAINTEXT, tls: *tls", "listeners.CLIENT.tls"},
		{"allow", "protocol: PLAINTEXT", "protocol: PLAINTEXT, allow: [x]", "brokers' authorizer judges"},
		{"advertised", "km1.dc2:9093", "0.0.0.0:9093", "can't be connected to"},
		{"port overlap", "0.0.0.0:9091", "0.0.0.0:9092", "taken by"},
		{"advertised overlap", "km1.dc2:9091", "km1.dc2:9094", "taken by"},
		{"high port", "km1.dc2:9093", "km1.dc2:65535", "beyond 65535"},
		{"same listener", "name: CLIENT", "name: REPL", "stands twice"},
		{"half a lock", "[size, min_isr]", "[size]", "min_isr is missing"},
		{"lock", "[size, min_isr]", "[size, min_isr, foo]", `"foo" is not known`},
		{"deny_acl", "[size, min_isr]", "[size, min_isr, deny_acl]", "deny_acl is not supported"},
		{"on_evicted", "reregister", "fight", "alarm or reregister"},
		{"read_only_error", "read_only_topic", "x", "read_only_error"},
		{"log", "level: debug", "level: loud", "log.level"},
		{"memory", "2GiB", "1MiB", "limits.memory"},
		{"size", "2GiB", "2 elephants", "size in bytes"},
		{"type of an element", "[9001, 9002]", "[a, 9002]", `node_ids[0]: "a" is not a whole number`},
		{"type of a list", "[c1:9090, c2:9090]", "c1:9090", `destination.controllers: "c1:9090" is not a list`},
		{"type inside a list", "name: CLIENT", "name: [CLIENT]", "listeners[0].name: a list is not text"},
		{"type of a duration", "45s", "soon", `shutdown_timeout: "soon" is not a time such as 30s`},
		{"type of a flag", "per_partition: false", "per_partition: perhaps", `metrics.per_partition: "perhaps" is not true or false`},
		{"type of a block", "client: {}", "client: 5", `destination.client: "5" is not a block of keys`},
		{"type of a size", "2GiB", "[1]", "limits.memory: a list is not a size in bytes"},
		{"long value of a wrong type", "connections: 500", "connections: several hundred of them", `limits.connections: "several`},
		{"connections", "connections: 500", "connections: 0", "limits.connections"},
		{"timeout", "45s", "1ms", "shutdown_timeout"},
		{"min_real_insync", "min_real_insync: 2", "min_real_insync: -1", "min_real_insync"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(goodConfig, c.old) {
				t.Fatalf("%q is not in the file", c.old)
			}
			_, err := parseConfig([]byte(strings.Replace(goodConfig, c.old, c.new, 1)), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "main.") {
				t.Errorf("the error shows what it should not: %v", err)
			}
		})
	}
}

func TestConfigTellsAllAtOnce(t *testing.T) {
	path := file(t, "kmirror.yaml", "node_ids: [1]\non_evicted: x\n")
	_, err := loadConfig(path, nil)
	var e *admin.Error
	if !errors.As(err, &e) || e.Exit != admin.ExitUsage {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{path, "node_ids", "on_evicted", "admin: missing", "listeners: none", "destination.controllers"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("%s is not told:\n%s", want, e.Message)
		}
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]byteSize{"0": 0, "1048576": 1 << 20, "10MB": 10_000_000, "1 GiB": 1 << 30, "7KiB": 7 << 10, "5B": 5} {
		var b byteSize
		if err := b.Set(text); err != nil || b != want {
			t.Errorf("%s: %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5GiB", "GiB", "9999999999999GiB", "1TB"} {
		var b byteSize
		if err := b.Set(text); err == nil {
			t.Errorf("%q gave %d", text, b)
		}
	}
}
