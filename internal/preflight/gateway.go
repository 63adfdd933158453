package preflight

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Gateway is what a gateway alone is to be: no node ids, no controllers, no mirrors.
type Gateway struct {
	ClusterID    string // pin, optional
	Opts         []kgo.Opt
	Listener     Listener
	KafkaVersion string // optional
	Certificates []Certificate
	// Fronts reports whether a broker is among those that clients are told of.
	Fronts func(id int32) bool
	// SecurityProtocol is Kafka's id of what the listener speaks, UpstreamTLS that of forwarded connections.
	SecurityProtocol int16
	UpstreamTLS      func() *tls.Config
	// Understood is what clients are told of the versions that a broker advertises. It may write into what it is given.
	Understood func([]kmsg.ApiVersionsResponseApiKey) []kmsg.ApiVersionsResponseApiKey
}

// RunGateway looks at what stands in front of a gateway alone. It needs no right at the destination.
func RunGateway(ctx context.Context, g Gateway) (*Report, error) {
	r := &Report{Findings: []Finding{}}
	if g.KafkaVersion != "" {
		r.frontedVersion(g.KafkaVersion)
	}
	r.expiry(g.Certificates, time.Now())
	cl, err := newClient(g.Opts)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	meta, err := r.brokers(ctx, "destination", cl, nil)
	if err != nil {
		r.unreachable("destination brokers", err)
		return r, nil
	}
	if g.ClusterID != "" && g.ClusterID != meta.Cluster {
		r.add(Fail, "destination cluster", "correct cluster_id or destination", "brokers are of cluster %s, cluster_id pins %s", meta.Cluster, g.ClusterID)
	} else {
		r.ok("destination cluster", "%s", meta.Cluster)
	}
	r.alone(ctx, g, cl)
	r.fronted(ctx, g, meta.Brokers)
	if g.Listener.secure() {
		r.asked(ctx, g, cl, meta.Brokers)
	}
	return r, nil
}

// frontedVersion judges a version by what is tested in front of a gateway alone.
func (r *Report) frontedVersion(version string) {
	const check = "kafka version"
	var major, minor int
	if n, err := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		r.add(Fail, check, "write it like 2.1.1", "%q is no version: %v", version, err)
		return
	}
	switch v := major*100 + minor; {
	case v < 201:
		r.add(Warn, check, "2.1 to 4.4 are", "%s is not tested", version)
	case v > 404:
		r.add(Warn, check, "upgrade kmirror first, then the brokers", "%s is newer than what this kmirror knows, 4.4", version)
	default:
		r.ok(check, "%s is known", version)
	}
}

// alone says what this is, and what the brokers have that clients may use.
func (r *Report) alone(ctx context.Context, g Gateway, cl *kgo.Client) {
	const check = "gateway alone"
	resp, err := ask[*kmsg.ApiVersionsResponse](ctx, cl, apiVersions())
	if err != nil {
		r.add(Warn, check, "ask again", "versions are not known: %v", err)
		return
	}
	keepers := "ZooKeeper, or KRaft before 3.3"
	if slices.ContainsFunc(resp.FinalizedFeatures, func(f kmsg.ApiVersionsResponseFinalizedFeature) bool { return f.Name == "metadata.version" }) {
		keepers = "KRaft"
	}
	if newer := withheld(resp.ApiKeys, g.Understood); len(newer) > 0 {
		r.add(Warn, check, "upgrade kmirror to have clients use them", "versions that clients are not told of: %s", strings.Join(newer, ", "))
	}
	r.ok(check, "no controllers are configured: no mirrors, no read-only topics; the brokers have %s", keepers)
}

// withheld names what clients could use at a broker and are not told of, in the order of the broker's list.
func withheld(broker []kmsg.ApiVersionsResponseApiKey, understood func([]kmsg.ApiVersionsResponseApiKey) []kmsg.ApiVersionsResponseApiKey) []string {
	told := map[int16]int16{}
	for _, k := range understood(slices.Clone(broker)) {
		told[k.ApiKey] = k.MaxVersion
	}
	var newer []string
	for _, k := range broker {
		api, known := protocol.LookupAPI(k.ApiKey)
		upTo, ok := told[k.ApiKey]
		switch {
		case !known:
			newer = append(newer, fmt.Sprintf("API key %d", k.ApiKey))
		case api.Role != protocol.Hidden && (!ok || upTo < k.MaxVersion):
			newer = append(newer, fmt.Sprintf("%s %d", api.Name, k.MaxVersion))
		}
	}
	return newer
}

// fronted looks whether all brokers are fronted, and connects to each as forwarded connections do.
func (r *Report) fronted(ctx context.Context, g Gateway, brokers kadm.BrokerDetails) {
	const check = "gateway"
	answered := 0
	for _, d := range brokers {
		if !g.Fronts(d.NodeID) {
			r.add(Warn, check, fmt.Sprintf("append \"%d\" to node_id_ranges", d.NodeID), "clients are not told of broker %d, which is outside node_id_ranges", d.NodeID)
			continue
		}
		b := &kraft.Broker{ID: d.NodeID, Endpoints: []kraft.Endpoint{{Name: g.Listener.Name, Host: d.Host, Port: uint16(d.Port),
			SecurityProtocol: g.SecurityProtocol}}}
		if _, err := reachBroker(ctx, Config{UpstreamTLS: g.UpstreamTLS}, b, g.Listener.Name); err != nil {
			r.add(Fail, check, "open the way from this host to what the brokers advertise, and let destination.client trust their certificates",
				"clients would not be served: %v", err)
			continue
		}
		answered++
	}
	if answered > 0 {
		r.ok(check, "%d of %d brokers are fronted and reached", answered, len(brokers))
	}
}

// asked looks whether brokers want certificates, which nobody can show through a gateway.
func (r *Report) asked(ctx context.Context, g Gateway, cl *kgo.Client, brokers kadm.BrokerDetails) {
	if len(brokers) == 0 {
		return
	}
	config, err := brokerConfig(ctx, cl, brokers[0].NodeID)
	if err != nil {
		r.add(Warn, "listener "+g.Listener.Name, "allow DESCRIBE_CONFIGS on CLUSTER kafka-cluster, or see the brokers' ssl.client.auth",
			"it is not known whether brokers ask clients for certificates, which could not be relayed: %v", err)
		return
	}
	r.Findings = append(r.Findings, g.Listener.certificates(config))
}
