// Package clientconf turns Kafka client properties into franz-go options. Secrets are references that are resolved when
// they are used: at each login for SASL, for TLS when the options are made and
// when files that they refer to have changed. No error or warning holds a secret.
package clientconf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"kmirror/internal/filters"
)

// Options returns the options of a client, and a warning for each property that has no effect. bootstrap.servers may be
// absent: then the caller adds seed brokers. With TLS each connection is made by the stores of then, as ClientTLS says, log included.
func Options(props map[string]string, log *slog.Logger) (opts []kgo.Opt, warnings []string, err error) {
	if v, ok := props["bootstrap.servers"]; ok {
		seeds, err := Servers(v)
		if err != nil {
			return nil, nil, fmt.Errorf("bootstrap.servers: %w", err)
		}
		opts = append(opts, kgo.SeedBrokers(seeds...))
	}
	if v := props["client.id"]; v != "" {
		opts = append(opts, kgo.ClientID(v))
	}
	dialTimeout := 10 * time.Second // as in franz-go and Kafka
	for _, t := range timeouts {
		v, ok := props[t.key]
		if !ok {
			continue
		}
		ms, err := strconv.ParseInt(strings.TrimSpace(v), 10, 32)
		if err != nil || ms <= 0 {
			return nil, nil, fmt.Errorf("%s: not a positive number of milliseconds", t.key)
		}
		d := min(max(time.Duration(ms)*time.Millisecond, t.least), t.most)
		if t.key == setupTimeout {
			dialTimeout = d
		}
		opts = append(opts, t.opt(d))
	}
	secure, err := ClientTLS(props, log)
	if err != nil {
		return nil, nil, err
	}
	if secure != nil {
		opts = append(opts, kgo.Dialer(Dialer(secure, dialTimeout)))
	}
	if usesSASL(props) {
		m, err := mechanism(props)
		if err != nil {
			return nil, nil, err
		}
		opts = append(opts, kgo.SASL(m))
	}
	return opts, Warnings(props), nil
}

// Dialer connects by TLS, with a new configuration for each connection, to the server that its address names. timeout bounds connecting and
// the handshake together.
func Dialer(secure func() *tls.Config, timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return (&tls.Dialer{Config: secure()}).DialContext(ctx, network, address) // which takes the host as the ServerName
	}
}

const setupTimeout = "socket.connection.setup.timeout.ms"

// timeouts are clamped to what franz-go accepts.
var timeouts = []timeout{
	{"request.timeout.ms", 100 * time.Millisecond, 15 * time.Minute, func(d time.Duration) kgo.Opt {
		return kgo.RequestTimeoutOverhead(d)
	}},
	{setupTimeout, 100 * time.Millisecond, time.Minute, func(d time.Duration) kgo.Opt {
		return kgo.DialTimeout(d)
	}},
	{"connections.max.idle.ms", 100 * time.Millisecond, 15 * time.Minute, func(d time.Duration) kgo.Opt {
		return kgo.ConnIdleTimeout(d)
	}},
	{"metadata.max.age.ms", 10 * time.Second, time.Hour, func(d time.Duration) kgo.Opt { return kgo.MetadataMaxAge(d) }},
}

type timeout struct {
	key         string
	least, most time.Duration
	opt         func(time.Duration) kgo.Opt
}

// Servers splits and checks a list of host:port.
func Servers(list string) ([]string, error) {
	var out []string
	for s := range strings.SplitSeq(list, ",") {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		host, port, err := net.SplitHostPort(s)
		n, convErr := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || convErr != nil || n == 0 {
			return nil, fmt.Errorf("%q is not host:port", s)
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("no host:port given")
	}
	return out, nil
}

// securityProtocol returns the upper-case protocol, PLAINTEXT where none is given.
func securityProtocol(props map[string]string) (string, error) {
	p := strings.ToUpper(strings.TrimSpace(props["security.protocol"]))
	switch p {
	case "":
		return "PLAINTEXT", nil
	case "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL":
		return p, nil
	}
	return "", errors.New("security.protocol: must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
}

func usesSASL(props map[string]string) bool {
	p, err := securityProtocol(props)
	return err == nil && strings.HasPrefix(p, "SASL_")
}

// mechanism makes the SASL mechanism and resolves its secrets once, so that a wrong reference shows now and not at the
// first connection.
func mechanism(props map[string]string) (sasl.Mechanism, error) {
	name := strings.ToUpper(strings.TrimSpace(props["sasl.mechanism"]))
	raw, ok := props["sasl.jaas.config"]
	if !ok {
		return nil, errors.New("sasl.jaas.config is missing: it names the login module, user and password")
	}
	switch name {
	case "PLAIN":
		if _, _, err := credentials(raw, "username", "password"); err != nil {
			return nil, err
		}
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			user, pass, err := credentials(raw, "username", "password")
			return plain.Auth{User: user, Pass: pass}, err
		}), nil
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		login := func(context.Context) (scram.Auth, error) {
			user, pass, err := credentials(raw, "username", "password")
			j, _ := resolveJAAS(raw)
			return scram.Auth{User: user, Pass: pass, IsToken: strings.EqualFold(j.options["tokenauth"], "true")}, err
		}
		if _, err := login(context.Background()); err != nil {
			return nil, err
		}
		if name == "SCRAM-SHA-256" {
			return scram.Sha256(login), nil
		}
		return scram.Sha512(login), nil
	case "OAUTHBEARER":
		login := func(context.Context) (oauth.Auth, error) {
			token, _, err := credentials(raw, "token", "")
			return oauth.Auth{Token: token}, err
		}
		if _, err := login(context.Background()); err != nil {
			return nil, fmt.Errorf("%w; OAUTHBEARER needs a ready token: "+
				"OAuthBearerLoginModule required token=\"${file:PATH}\";", err)
		}
		return oauth.Oauth(login), nil
	case "":
		return nil, errors.New("sasl.mechanism is missing: give PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
	}
	return nil, errors.New("sasl.mechanism: only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER are supported")
}

// resolveJAAS parses a JAAS configuration. Where it is one reference as a whole, the text it refers to is parsed; otherwise
// references stay within the options until they are used, so that no secret can break the quoting.
func resolveJAAS(raw string) (jaas, error) {
	if isReference(raw) {
		text, err := Resolve(raw)
		if err != nil {
			return jaas{}, fmt.Errorf("sasl.jaas.config: %w", err)
		}
		raw = text
	}
	return parseJAAS(raw)
}

// credentials returns one or two options of a JAAS configuration, resolved now.
func credentials(raw, first, second string) (a, b string, err error) {
	j, err := resolveJAAS(raw)
	if err != nil {
		return "", "", err
	}
	if a, err = j.option(first); err != nil || second == "" {
		return a, "", err
	}
	b, err = j.option(second)
	return a, b, err
}

// understood are the properties that have an effect, here or elsewhere in kmirror.
var understood = []string{
	"bootstrap.servers", "client.id", "security.protocol", "sasl.mechanism", "sasl.jaas.config",
	"ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.password",
	"ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.key.password",
	"ssl.keystore.password", "ssl.endpoint.identification.algorithm", "ssl.enabled.protocols", "ssl.protocol",
}

// mirrorKeys are the properties of a mirror that others read.
var mirrorKeys = slices.Concat(filters.Keys, []string{
	"mirror.source.cluster.id", "mirror.num.replica.fetchers", "mirror.fetch.wait.max.ms", "mirror.fetch.min.bytes",
	"mirror.fetch.response.max.bytes", "mirror.fetch.max.bytes", "mirror.throttle.bytes.per.second",
})

// Warnings returns a sentence for each property that has no effect. Nothing is resolved.
func Warnings(props map[string]string) []string {
	sasl := usesSASL(props)
	p, _ := securityProtocol(props)
	var out []string
	for key := range props {
		known := slices.Contains(understood, key) || slices.Contains(mirrorKeys, key) || strings.HasPrefix(key, RemoteAdminPrefix) ||
			slices.ContainsFunc(timeouts, func(t timeout) bool { return t.key == key })
		switch {
		case !known:
			out = append(out, key+" is not known here and has no effect")
		case strings.HasPrefix(key, "sasl.") && !sasl:
			out = append(out, key+" has no effect with security.protocol "+p)
		case strings.HasPrefix(key, "ssl.") && !strings.HasSuffix(p, "SSL"):
			out = append(out, key+" has no effect with security.protocol "+p)
		}
	}
	slices.Sort(out)
	return out
}
