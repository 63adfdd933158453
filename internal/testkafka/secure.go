package testkafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// AdminUser is the super user of a secure cluster: its brokers and controllers log in as it.
const AdminUser = "admin"

// Users that may log in on REPL and CONTROLLER besides AdminUser; they have no rights.
const (
	// GuestUser is meant for a kmirror process.
	GuestUser = "kmirror"
	// FollowerUser is meant for one that does what brokers do.
	FollowerUser = "follower"
)

const (
	scramMechanism = "SCRAM-SHA-512"
	scramModule    = "org.apache.kafka.common.security.scram.ScramLoginModule"
	plainModule    = "org.apache.kafka.common.security.plain.PlainLoginModule"
)

// Security is what secure clusters and their clients share: an authority, the brokers' certificate, and the users' passwords.
// Clients log in on CLIENT by SCRAM-SHA-512 over TLS; brokers, controllers and the users above on REPL and CONTROLLER by PLAIN, where
// Mutual does not replace that by certificates. On REPL users with a SCRAM password may also log in by that.
// Every request is judged by StandardAuthorizer. One Security may serve several clusters.
type Security struct {
	dir string
	ca  *authority
}

// NewSecurity makes an authority and a certificate for brokers on this host, or fails the test. All files go with the test.
func NewSecurity(tb testing.TB) *Security {
	tb.Helper()
	s, err := newSecurity(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func newSecurity(dir string) (*Security, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Security{dir: dir}
	return s, s.Rotate()
}

// Rotate replaces the authority and the brokers' certificate. Nodes read both when they start, clients of this Security when they are made:
// those of the one understand those of the other again after a restart.
func (s *Security) Rotate() (err error) {
	if s.ca, err = newAuthority(); err != nil {
		return fmt.Errorf("testkafka: authority: %w", err)
	}
	if err := replace(s.CA(), s.ca.pem); err != nil {
		return err
	}
	_, err = s.Store(brokerName)
	return err
}

// CA is the file with the authority's certificate, in PEM.
func (s *Security) CA() string { return filepath.Join(s.dir, "ca.pem") }

func (s *Security) brokerStore() string { return filepath.Join(s.dir, brokerName+".pem") }

// Certificate issues a certificate for 127.0.0.1, localhost and further hosts (names or addresses), and returns the files with it and
// its key, in PEM. The same name again replaces the files, as one who renews a certificate does.
func (s *Security) Certificate(name string, hosts ...string) (certificate, key string, err error) {
	cert, priv, err := s.ca.issue(name, hosts...)
	if err != nil {
		return "", "", fmt.Errorf("testkafka: certificate %s: %w", name, err)
	}
	certificate, key = filepath.Join(s.dir, name+".crt"), filepath.Join(s.dir, name+".key")
	if err := replace(certificate, cert); err != nil {
		return "", "", err
	}
	return certificate, key, replace(key, priv)
}

// replace writes a file in one step, so that nobody reads half of it.
func replace(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// join writes the contents of files into one.
func join(into string, from ...string) error {
	var all []byte
	for _, f := range from {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all = append(all, text...)
	}
	return os.WriteFile(into, all, 0o600)
}

// Password is a user's. It is fixed: formatted directories with the admin's are cached.
func (s *Security) Password(user string) string { return user + "-secret" }

// secretFile holds a user's password, for references to it.
func (s *Security) secretFile(user string) (string, error) {
	path := filepath.Join(s.dir, user+".password")
	return path, os.WriteFile(path, []byte(s.Password(user)), 0o600)
}

// Secure makes options those of a secure cluster: properties of o win over what it sets. Listeners of brokers other than REPL
// have the security of CLIENT.
func (s *Security) Secure(o Options) Options {
	names := o.Listeners
	if len(names) == 0 {
		names = []string{ClientListener, ReplListener}
	}
	protocols := []string{ControllerListener + ":SASL_PLAINTEXT"}
	p := map[string]string{
		"authorizer.class.name":                "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                          "User:" + AdminUser,
		"sasl.mechanism.inter.broker.protocol": "PLAIN",
		"sasl.mechanism.controller.protocol":   "PLAIN",
	}
	s.plainListener(p, ControllerListener)
	for _, name := range names {
		if name == ReplListener {
			protocols = append(protocols, name+":SASL_PLAINTEXT")
			s.plainListener(p, name)
			l := "listener.name." + strings.ToLower(name) + "."
			p[l+"sasl.enabled.mechanisms"] += ",SCRAM-SHA-256,SCRAM-SHA-512"
			for _, scram := range []string{"scram-sha-256", "scram-sha-512"} {
				p[l+scram+".sasl.jaas.config"] = scramModule + " required;"
			}
			continue
		}
		protocols = append(protocols, name+":SASL_SSL")
		l := "listener.name." + strings.ToLower(name) + "."
		p[l+"sasl.enabled.mechanisms"] = scramMechanism
		p[l+strings.ToLower(scramMechanism)+".sasl.jaas.config"] = scramModule + " required;"
		p[l+"ssl.keystore.type"], p[l+"ssl.keystore.location"] = "PEM", s.brokerStore()
	}
	p["listener.security.protocol.map"] = strings.Join(protocols, ",")
	maps.Copy(p, o.Properties)
	o.Properties = p
	o.FormatArgs = append([]string{"--add-scram",
		fmt.Sprintf("%s=[name=%s,password=%s]", scramMechanism, AdminUser, s.Password(AdminUser))}, o.FormatArgs...)
	o.security = s
	return o
}

// plainListener sets the server properties of a listener with PLAIN.
func (s *Security) plainListener(p map[string]string, name string) {
	l := "listener.name." + strings.ToLower(name) + "."
	p[l+"sasl.enabled.mechanisms"] = "PLAIN"
	jaas := fmt.Sprintf(`%s required username="%s" password="%s"`, plainModule, AdminUser, s.Password(AdminUser))
	for _, user := range []string{AdminUser, GuestUser, FollowerUser} {
		jaas += fmt.Sprintf(` user_%s="%s"`, user, s.Password(user))
	}
	p[l+"plain.sasl.jaas.config"] = jaas + ";"
}

// Opts are the options of a client that logs in on CLIENT as a user.
func (s *Security) Opts(user string) []kgo.Opt {
	return []kgo.Opt{
		kgo.DialTLSConfig(&tls.Config{RootCAs: s.ca.pool, MinVersion: tls.VersionTLS12}),
		kgo.SASL(scram.Auth{User: user, Pass: s.Password(user)}.AsSha512Mechanism()),
	}
}

// PlainOpts are the options of a client that logs in on REPL or CONTROLLER, as one of the users named above.
func (s *Security) PlainOpts(user string) []kgo.Opt {
	return []kgo.Opt{kgo.SASL(plain.Auth{User: user, Pass: s.Password(user)}.AsMechanism())}
}

// Properties are the client properties with which Kafka's tools log in on CLIENT as a user.
func (s *Security) Properties(user string) map[string]string {
	return s.properties(user, s.Password(user))
}

// References is Properties with a reference instead of the password, as kmirror wants them.
func (s *Security) References(user string) (map[string]string, error) {
	file, err := s.secretFile(user)
	return s.properties(user, "${file:"+file+"}"), err
}

func (s *Security) properties(user, password string) map[string]string {
	return map[string]string{
		"security.protocol": "SASL_SSL", "sasl.mechanism": scramMechanism, "sasl.jaas.config": jaasLine(scramModule, user, password),
		"ssl.truststore.type": "PEM", "ssl.truststore.location": s.CA(),
	}
}

// PlainReferences are the client properties with which kmirror logs in on REPL and CONTROLLER.
func (s *Security) PlainReferences(user string) (map[string]string, error) {
	file, err := s.secretFile(user)
	return map[string]string{
		"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaasLine(plainModule, user, "${file:"+file+"}"),
	}, err
}

func jaasLine(module, user, password string) string {
	return fmt.Sprintf(`%s required username="%s" password="%s";`, module, user, password)
}

// WriteProperties writes a Java properties file for Kafka's tools or for kmirror and returns its path.
func (s *Security) WriteProperties(name string, props map[string]string) (string, error) {
	path := filepath.Join(s.dir, name)
	return path, os.WriteFile(path, formatProperties(props), 0o600)
}

// AddUser gives users a SCRAM password on a cluster and returns when they can log in at every broker. They have no rights.
func (s *Security) AddUser(ctx context.Context, c *Cluster, users ...string) error {
	cl, err := kgo.NewClient(append(s.Opts(AdminUser), kgo.SeedBrokers(c.Bootstrap(ClientListener)...))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	var upserts []kadm.UpsertSCRAM
	for _, user := range users {
		upserts = append(upserts, kadm.UpsertSCRAM{User: user, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: s.Password(user)})
	}
	altered, err := kadm.NewClient(cl).AlterUserSCRAMs(ctx, nil, upserts)
	if err == nil {
		err = altered.Error()
	}
	if err != nil {
		return fmt.Errorf("testkafka: users %v: %w", users, err)
	}
	for _, user := range users {
		for _, addr := range c.Bootstrap(ClientListener) {
			if err := s.canLogIn(ctx, addr, user); err != nil {
				return fmt.Errorf("testkafka: user %s at %s: %w", user, addr, err)
			}
		}
	}
	return nil
}

// canLogIn waits until a broker lets a user in.
func (s *Security) canLogIn(ctx context.Context, addr, user string) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	var last error
	err := poll(ctx, func() (bool, error) {
		_, last = ask(ctx, addr, req, s.Opts(user)...)
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// Security of a cluster that Secure made the options of, else nil.
func (c *Cluster) Security() *Security { return c.opts.security }

// Mutual reports whether the cluster's options are those of Security.Mutual.
func (c *Cluster) Mutual() bool { return c.opts.mutual }

// Opts are the options of a client of CLIENT that may do everything.
func (c *Cluster) Opts() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap(ClientListener)...)}
	if c.opts.security == nil {
		return opts
	}
	return append(opts, c.opts.security.Opts(AdminUser)...)
}

// brokerName is the common name of the brokers' certificate.
const brokerName = "brokers"

// Mutual is Secure with brokers and controllers that know each other, and who else comes to REPL and CONTROLLER, by certificates of the
// authority. The brokers' own makes its owner a super user.
func (s *Security) Mutual(o Options) Options {
	own := maps.Clone(o.Properties)
	o = s.Secure(o)
	o.mutual = true
	var protocols []string
	for protocol := range strings.SplitSeq(o.Properties["listener.security.protocol.map"], ",") {
		protocols = append(protocols, strings.Replace(protocol, ":SASL_PLAINTEXT", ":SSL", 1))
	}
	p := map[string]string{
		"listener.security.protocol.map": strings.Join(protocols, ","),
		"super.users":                    "User:" + AdminUser + ";User:CN=" + brokerName,
	}
	for _, name := range []string{ReplListener, ControllerListener} {
		l := "listener.name." + strings.ToLower(name) + ".ssl."
		p[l+"keystore.type"], p[l+"keystore.location"] = "PEM", s.brokerStore()
		p[l+"truststore.type"], p[l+"truststore.location"] = "PEM", s.CA()
		p[l+"client.auth"] = "required"
	}
	maps.Copy(o.Properties, p)
	maps.Copy(o.Properties, own)
	return o
}

// Store issues a certificate as Certificate does and returns a file with it and its key, as brokers and clients read it.
func (s *Security) Store(name string) (string, error) {
	certificate, key, err := s.Certificate(name)
	path := filepath.Join(s.dir, name+".pem")
	if err != nil {
		return path, err
	}
	return path, join(path, key, certificate)
}

// PeerProperties are the client properties with which kmirror shows the certificate of a name on REPL and CONTROLLER.
func (s *Security) PeerProperties(name string) (map[string]string, error) {
	store, err := s.Store(name)
	return map[string]string{
		"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": s.CA(),
		"ssl.keystore.type": "PEM", "ssl.keystore.location": store,
	}, err
}

// PeerTLS is the side of a client that trusts the authority, and shows the certificate of a name unless that is empty.
func (s *Security) PeerTLS(name string) (*tls.Config, error) {
	conf := &tls.Config{RootCAs: s.ca.pool, MinVersion: tls.VersionTLS12}
	if name == "" {
		return conf, nil
	}
	certificate, key, err := s.Certificate(name)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(certificate, key)
	conf.Certificates = []tls.Certificate{cert}
	return conf, err
}

// credentials are the options with which readiness asks a listener of the node; false when it can't.
func (n *Node) credentials(listener string) ([]kgo.Opt, bool) {
	s := n.cluster.opts.security
	switch protocol := n.protocol(listener); {
	case protocol == "PLAINTEXT":
		return nil, true
	case s == nil:
		return nil, false
	case protocol == "SASL_PLAINTEXT":
		return s.PlainOpts(AdminUser), true
	case protocol == "SSL" && n.cluster.opts.mutual:
		cert, err := tls.LoadX509KeyPair(s.brokerStore(), s.brokerStore())
		conf := &tls.Config{RootCAs: s.ca.pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		return []kgo.Opt{kgo.DialTLSConfig(conf)}, err == nil
	}
	return s.Opts(AdminUser), true
}
