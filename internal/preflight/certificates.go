package preflight

import (
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

// CertificateError says which listeners can't work because brokers ask for certificates there.
type CertificateError struct{ Findings []Finding }

// Error names the listeners, what is wrong with each, and what to do.
func (e *CertificateError) Error() string {
	var all []string
	for _, f := range e.Findings {
		all = append(all, fmt.Sprintf("%s: %s (%s)", f.Check, f.Detail, f.Hint))
	}
	return strings.Join(all, "; ")
}

// CheckCertificates asks brokers, one after the other until one answers, whether there are listeners whose clients must show a certificate:
// *CertificateError if so. Any other error is why that is not known. Nobody is asked where no listener has TLS.
func CheckCertificates(ctx context.Context, opts []kgo.Opt, brokers []int32, listeners []Listener) error {
	var secure []Listener
	for _, l := range listeners {
		if l.secure() {
			secure = append(secure, l)
		}
	}
	if len(secure) == 0 {
		return nil
	}
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
		var bad []Finding
		for _, l := range secure {
			if f := l.certificates(config); f.Level == Fail {
				bad = append(bad, f)
			}
		}
		if len(bad) > 0 {
			return &CertificateError{bad}
		}
		return nil
	}
	return err
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
