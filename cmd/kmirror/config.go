package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"kmirror/internal/clientconf"
)

// Config is kmirror.yaml.
type Config struct {
	// ClusterID pins the destination: kmirror registers nowhere else. Optional.
	ClusterID string `yaml:"cluster_id"`
	// NodeIDs are the broker ids of this process only, at least two.
	NodeIDs []int32 `yaml:"node_ids"`
	Rack    string  `yaml:"rack"`
	// TLS is a place for an anchor that others refer to.
	TLS         *TLSFiles         `yaml:"tls"`
	Admin       AdminConfig       `yaml:"admin"`
	HTTP        string            `yaml:"http"`
	Destination DestinationConfig `yaml:"destination"`
	// Listeners are all listener names of the destination's brokers.
	Listeners []ListenerConfig `yaml:"listeners"`
	// Lock is how mirror topics are kept from being written: size, min_isr.
	Lock []string `yaml:"lock"`
	// MinRealInsync is the least number of real in-sync replicas; 0 is each topic's own min.insync.replicas.
	MinRealInsync int `yaml:"min_real_insync"`
	// OnEvicted is alarm or reregister.
	OnEvicted       string          `yaml:"on_evicted"`
	Limits          LimitsConfig    `yaml:"limits"`
	Metrics         MetricsConfig   `yaml:"metrics"`
	Log             LogConfig       `yaml:"log"`
	ShutdownTimeout time.Duration   `yaml:"shutdown_timeout"`
	Gateway         []GatewayConfig `yaml:"gateway"`
	// ReadOnlyError is policy_violation or read_only_topic.
	ReadOnlyError string `yaml:"read_only_error"`
	// FenceAfter is for how long a listener must have been without a broker that answers within FenceSlowerThan before the process fences
	// itself; 0 is never.
	FenceAfter      time.Duration `yaml:"fence_after"`
	FenceSlowerThan time.Duration `yaml:"fence_slower_than"`
	Trace           TraceConfig   `yaml:"trace"`
}

// TLSFiles name a server's certificate with its chain, its key, which may stand in the same file and is not named then, and the
// authorities of peers' certificates: PEM, PKCS12 or JKS files.
type TLSFiles struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	CA          string `yaml:"ca"`
	// Password opens Certificate where that is PKCS12 or JKS, KeyPassword the key in it, CAPassword CA; the last two are Password by
	// default. They are references to secrets.
	Password    string `yaml:"password"`
	KeyPassword string `yaml:"key_password"`
	CAPassword  string `yaml:"ca_password"`
}

// files are those of a server that asks nobody for a certificate.
func (f *TLSFiles) files() clientconf.ServerFiles {
	files := f.mutual()
	files.CA = ""
	return files
}

// mutual is files with the authorities that the other side is held against.
func (f *TLSFiles) mutual() clientconf.ServerFiles {
	return clientconf.ServerFiles{Certificate: f.Certificate, Key: f.Key, CA: f.CA,
		Password: f.Password, KeyPassword: f.KeyPassword, CAPassword: f.CAPassword}
}

// AdminConfig is the admin listener. A plain string is short for Bind.
type AdminConfig struct {
	Bind       string `yaml:"bind"`
	Advertised string `yaml:"advertised"`
	// TLS makes clients show a certificate that its CA signed, and is the process's own when it asks others. Allow are the principals
	// that are served then, each "User:" and the subject of a certificate as Kafka writes it; other processes' are among them.
	TLS   *TLSFiles `yaml:"tls"`
	Allow []string  `yaml:"allow"`
}

// DestinationConfig is how the destination is reached. Client maps hold Kafka client properties.
type DestinationConfig struct {
	BootstrapServers []string `yaml:"bootstrap_servers"`
	Controllers      []string `yaml:"controllers"`
	// Client is for brokers, ControllerClient for controllers, ReplicationClient for replica fetches; the last two default
	// to the first when they are empty.
	Client              map[string]string `yaml:"client"`
	ControllerClient    map[string]string `yaml:"controller_client"`
	ReplicationClient   map[string]string `yaml:"replication_client"`
	InterBrokerListener string            `yaml:"inter_broker_listener"`
}

// ListenerConfig is one listener that our node ids advertise. The first node id has the ports given, the next ones the
// ports that follow them: a broker knows which of our ids it talks to by the port alone.
type ListenerConfig struct {
	Name       string `yaml:"name"`
	Bind       string `yaml:"bind"`
	Advertised string `yaml:"advertised"`
	// Protocol is that of the destination's brokers: PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL.
	Protocol string `yaml:"protocol"`
	// TLS is needed for SSL and SASL_SSL. Only that of the inter-broker listener can have a CA: client certificates can't be relayed.
	TLS *TLSFiles `yaml:"tls"`
	// Allow are the principals of the destination's brokers where they know each other by certificates, on an inter-broker listener of
	// protocol SSL; each "User:" and the subject of a certificate as Kafka writes it.
	Allow []string `yaml:"allow"`
	// PrincipalMappingRules are the brokers' ssl.principal.mapping.rules: what they make of a subject stands in Allow behind "User:".
	PrincipalMappingRules string `yaml:"principal_mapping_rules"`
}

// endpoint returns where the i-th node id (from 0) listens and what it advertises. Call it on checked configurations; bind
// port 0 stays 0.
func (l ListenerConfig) endpoint(i int) (bind, host string, port uint16) {
	bindHost, bindPort := splitPort(l.Bind)
	if bindPort != 0 {
		bindPort += i
	}
	host, advertised := splitPort(l.Advertised)
	return net.JoinHostPort(bindHost, strconv.Itoa(bindPort)), host, uint16(advertised + i)
}

// splitPort splits a checked host:port.
func splitPort(address string) (host string, port int) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return address, 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

// LimitsConfig bounds what one process takes; 0 is no bound for the rate.
type LimitsConfig struct {
	SourceBytesPerSecond byteSize `yaml:"source_bytes_per_second"`
	Connections          int      `yaml:"connections"`
	Memory               byteSize `yaml:"memory"`
}

// share is the part of Memory that records on their way may take, and that requests of clients may take besides.
func (l LimitsConfig) share() int64 { return int64(l.Memory) / 4 }

// MetricsConfig says how fine metrics are.
type MetricsConfig struct {
	PerPartition bool `yaml:"per_partition"`
}

// LogConfig is format json or text, level debug, info, warn or error.
type LogConfig struct {
	Format string `yaml:"format"`
	Level  string `yaml:"level"`
}

// defaultConfig is what a file's absent keys mean.
func defaultConfig() *Config {
	return &Config{
		Lock: []string{"size", "min_isr"}, OnEvicted: "alarm", ReadOnlyError: "policy_violation",
		ShutdownTimeout: 30 * time.Second, FenceAfter: 10 * time.Second, FenceSlowerThan: 5 * time.Second,
		Limits: LimitsConfig{Connections: 10_000, Memory: 1 << 30}, Metrics: MetricsConfig{PerPartition: true},
		Log: LogConfig{Format: "json", Level: "info"}, Trace: defaultTrace(),
	}
}

// loadConfig reads and validates a file; env, in os.Environ's form, wins over it. The error lists all that is wrong.
func loadConfig(path string, env []string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError("configuration: "+err.Error(), "give a readable file with --config")
	}
	c, err := parseConfig(text, env)
	if err != nil {
		return nil, usageError(path+": "+err.Error(), "correct the file or the environment; docs/operations.md lists all keys")
	}
	return c, nil
}

func parseConfig(text []byte, env []string) (*Config, error) {
	c := defaultConfig()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, plainYAMLError(err, text)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file holds more than one YAML document")
	}
	problems := applyEnv(reflect.ValueOf(c).Elem(), "KMIRROR", envMap(env))
	problems = append(problems, c.problems()...)
	if len(problems) == 0 {
		return c, nil
	}
	return nil, errors.New(strings.Join(problems, "\n  "))
}

// UnmarshalYAML reads the long or the short form. Decoding a node is not strict by itself, so keys are checked here.
func (a *AdminConfig) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&a.Bind)
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i < len(n.Content); i += 2 {
			if key := n.Content[i]; !slices.Contains([]string{"bind", "advertised", "tls", "allow", "<<"}, key.Value) {
				return fmt.Errorf("line %d: unknown key admin.%s", key.Line, key.Value)
			}
		}
	}
	type plain AdminConfig
	return n.Decode((*plain)(a))
}

// applyEnv sets fields from variables named after their path: limits.memory is KMIRROR_LIMITS_MEMORY. Lists of plain
// values are separated by commas. Lists of structures and maps have no variables.
func applyEnv(v reflect.Value, prefix string, env map[string]string) (problems []string) {
	for i := range v.NumField() {
		field := v.Field(i)
		name := prefix + "_" + strings.ToUpper(v.Type().Field(i).Tag.Get("yaml"))
		if field.Type() == reflect.TypeFor[AdminConfig]() {
			if text, ok := env[name]; ok {
				field.FieldByName("Bind").SetString(text)
			}
		}
		if field.Kind() == reflect.Struct {
			problems = append(problems, applyEnv(field, name, env)...)
			continue
		}
		text, ok := env[name]
		if !ok || !plainField(field.Type()) {
			continue
		}
		switch field.Kind() {
		case reflect.String:
			field.SetString(text)
			continue
		case reflect.Slice:
			text = "[" + text + "]"
		}
		if err := yaml.Unmarshal([]byte(text), field.Addr().Interface()); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %q is not a value for it", name, text))
		}
	}
	return problems
}

func plainField(t reflect.Type) bool {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Map && t.Kind() != reflect.Pointer
}

func envMap(env []string) map[string]string {
	out := map[string]string{}
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			out[k] = v
		}
	}
	return out
}

// byteSize is a number of bytes; text may have a unit: KB, MB, GB (powers of 1000), KiB, MiB, GiB.
type byteSize int64

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1000}, {"MB", 1000_000}, {"GB", 1000_000_000},
	{"B", 1}, {"", 1},
}

// Set reads text; it serves command-line flags too.
func (b *byteSize) Set(text string) error {
	text = strings.TrimSpace(text)
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.factor {
			break
		}
		*b = byteSize(n * u.factor)
		return nil
	}
	return fmt.Errorf("%q is not a size in bytes such as 1048576, 10MB or 1GiB", text)
}

// String prints plain bytes.
func (b *byteSize) String() string { return strconv.FormatInt(int64(*b), 10) }

// Type names the flag's value in the help.
func (b *byteSize) Type() string { return "bytes" }

// UnmarshalYAML reads a scalar.
func (b *byteSize) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || b.Set(n.Value) != nil {
		return mistyped(n, *b)
	}
	return nil
}
