package preflight

import (
	"strings"
	"time"
)

// ExpiresSoon is how long before its end a certificate is warned of.
const ExpiresSoon = 14 * 24 * time.Hour

// Certificate is one that kmirror shows to others, and until when it is valid.
type Certificate struct {
	Where string
	End   time.Time
}

// expiry judges how long certificates are still good for; without any there is nothing to say.
func (r *Report) expiry(list []Certificate, now time.Time) {
	const check, hint = "certificates", "have a new one made; kmirror takes it from the same files without a restart"
	good := 0
	for _, c := range list {
		switch until := c.End.UTC().Format(time.RFC3339); {
		case !c.End.After(now):
			r.add(Fail, check, hint, "that of %s has expired, it was valid until %s", c.Where, until)
		case c.End.Before(now.Add(ExpiresSoon)):
			r.add(Warn, check, hint, "that of %s is valid until %s only", c.Where, until)
		default:
			good++
		}
	}
	if good > 0 {
		r.ok(check, "%d of %d are valid for two weeks and more", good, len(list))
	}
}

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
