package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Listener is one that kmirror is to have. Own: it is the brokers' own, where nobody is relayed. Asks: kmirror asks for certificates there,
// as brokers do, and shows its own to them.
type Listener struct {
	Name, Protocol string
	Own, Asks      bool
}

// secure reports whether a listener has TLS.
func (l Listener) secure() bool { return l.Protocol == "SSL" || l.Protocol == "SASL_SSL" }

// clientAuth is whether brokers want a certificate from those who connect to a listener: required, requested, none, or empty, which is
// none.
func (l Listener) clientAuth(config map[string]string) string {
	auth, ok := config["listener.name."+strings.ToLower(l.Name)+".ssl.client.auth"]
	if !ok && l.Protocol == "SSL" { // with SASL the setting for all listeners has no effect (KIP-684)
		auth = config["ssl.client.auth"]
	}
	return auth
}

// certificates judges a listener by a broker's configuration.
func (l Listener) certificates(config map[string]string) Finding {
	f := Finding{Check: "listener " + l.Name, Level: OK, Detail: "brokers ask for no client certificates"}
	switch auth := l.clientAuth(config); {
	case auth != "required" && auth != "requested":
	case l.Own && l.Asks:
		f.Detail = "brokers know each other by certificates, and so does kmirror"
	case l.Own && auth == "required":
		f.Level, f.Detail = Fail, "brokers ask each other for certificates, kmirror neither asks for theirs nor shows its own"
		f.Hint = "give listeners." + l.Name + ".tls a ca, and replication_client an ssl.keystore"
	case l.Own:
	case auth == "required":
		f.Level, f.Detail = Fail, "brokers ask clients for a certificate, which kmirror can't show in their place"
		f.Hint = "let clients log in by SASL there, and set ssl.client.auth=none"
	default:
		f.Level, f.Detail = Warn, "clients with a certificate are nobody to brokers when they come through kmirror"
		f.Hint = "let clients log in by SASL there"
	}
	return f
}

// clientCertificates looks at what brokers ask for.
func (r *Report) clientCertificates(c Config, config map[string]string) {
	for _, l := range c.Listeners {
		if l.secure() {
			r.Findings = append(r.Findings, l.certificates(config))
		}
	}
}

// SettingsError says what can't work because of how brokers are configured.
type SettingsError struct{ Findings []Finding }

// Error names the listeners, what is wrong with each, and what to do.
func (e *SettingsError) Error() string {
	var all []string
	for _, f := range e.Findings {
		all = append(all, fmt.Sprintf("%s: %s (%s)", f.Check, f.Detail, f.Hint))
	}
	return strings.Join(all, "; ")
}

// CheckSettings asks brokers, one after the other until one answers, for what must fit before anything is registered: which listener they
// replicate over, and whether there are listeners whose clients must show a certificate. *SettingsError if something does not; any other
// error is why that is not known.
func CheckSettings(ctx context.Context, opts []kgo.Opt, brokers []int32, listeners []Listener, interBroker string) error {
	cl, err := newClient(opts)
	if err != nil {
		return err
	}
	defer cl.Close()
	err = errors.New("no broker is alive")
	for _, id := range brokers {
		var config map[string]string
		if config, err = brokerConfig(ctx, cl, id); err != nil {
			continue
		}
		if bad := misfits(config, listeners, interBroker); len(bad) > 0 {
			return &SettingsError{bad}
		}
		return nil
	}
	return err
}

// misfits are the findings by a broker's configuration with which kmirror would not work.
func misfits(config map[string]string, listeners []Listener, interBroker string) (bad []Finding) {
	var findings []Finding
	if interBroker != "" { // a gateway alone has nothing to do with it
		findings = append(findings, replicatesOver(config, interBroker))
	}
	for _, l := range listeners {
		if l.secure() {
			findings = append(findings, l.certificates(config))
		}
	}
	for _, f := range findings {
		if f.Level == Fail {
			bad = append(bad, f)
		}
	}
	return bad
}

// replicatesOver compares the listener that is named as the brokers' own with what they say. Where they name none it is the one called as
// their security protocol.
func replicatesOver(config map[string]string, named string) Finding {
	f := Finding{Check: "inter-broker listener", Level: OK}
	switch name := cmp.Or(config["inter.broker.listener.name"], config["security.inter.broker.protocol"]); name {
	case named:
		f.Detail = name + ", as brokers say"
	case "":
		f.Level, f.Detail = Warn, "brokers don't say which it is"
		f.Hint = "compare destination.inter_broker_listener with the brokers' inter.broker.listener.name"
	default:
		f.Level, f.Detail = Fail, fmt.Sprintf("brokers replicate over %s, destination.inter_broker_listener says %s", name, named)
		f.Hint = "write destination.inter_broker_listener: " + name
	}
	return f
}

// brokerConfig asks a broker for its configuration.
func brokerConfig(ctx context.Context, cl *kgo.Client, id int32) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	config := map[string]string{}
	described, err := kadm.NewClient(cl).DescribeBrokerConfigs(ctx, id)
	for _, d := range described {
		err = errors.Join(err, d.Err)
		for _, e := range d.Configs {
			config[e.Key] = e.MaybeValue()
		}
	}
	return config, err
}
