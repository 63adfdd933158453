package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/testkafka"
	"kmirror/protocol"
)

// guarded are two processes whose admin listeners have TLS, and the properties with which somebody asks them.
type guarded struct {
	sec      *testkafka.Security
	a, b     *shim
	src, dst *testkafka.Cluster
}

// TestAdminSecured runs two processes that know each other, and operators, by their certificates.
func TestAdminSecured(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	sec := testkafka.NewSecurity(t)
	g := &guarded{sec: sec, src: testkafka.Start(t, testkafka.Options{Name: "src"}), dst: testkafka.Start(t, testkafka.Options{Name: "dst"})}
	g.a, g.b = makeShim(t, g.dst, 9001, ""), makeShim(t, g.dst, 9003, "")
	g.guard(t, g.a, "km-a", "sre", "km-b")
	g.guard(t, g.b, "km-b", "sre", "km-a")
	g.a.start()
	g.b.start()
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"processes see each other", g.seeEachOther}, {"forwarded", g.forwarded}, {"mirrored", g.mirrored}, {"others", g.others},
		{"allow changes", g.allowChanges},
		{"a mirror's source", g.lookup}, {"a process that is not allowed", g.stranger},
	} {
		g.a.tb, g.b.tb = t, t
		t.Run(step.name, func(t *testing.T) {
			g.a.tb, g.b.tb = t, t
			step.run(t)
		})
		if g.a.tb, g.b.tb = t, t; t.Failed() {
			return
		}
	}
}

// guard gives a process's admin listener a certificate and names those who may use it; commands ask it as sre.
func (g *guarded) guard(t *testing.T, s *shim, name string, allow ...string) {
	t.Helper()
	certificate, key, err := g.sec.Certificate(name)
	if err != nil {
		t.Fatal(err)
	}
	s.rewrite("admin: "+s.admin, fmt.Sprintf(`admin: {bind: "%s", tls: {certificate: %q, key: %q, ca: %q}, allow: ["User:CN=%s"]}`,
		s.admin, certificate, key, g.sec.CA(), strings.Join(allow, `", "User:CN=`)))
	s.commands = g.properties(t, "sre", true)
}

// properties writes the properties of one who has a certificate, or just trusts the processes'.
func (g *guarded) properties(t *testing.T, name string, certificate bool) string {
	t.Helper()
	lines := g.lines(t, name)
	if !certificate {
		lines = lines[:3]
	}
	path := filepath.Join(t.TempDir(), name+".properties")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lines are the properties of one with a certificate; what it trusts comes first.
func (g *guarded) lines(t *testing.T, name string) []string {
	t.Helper()
	certificate, key, err := g.sec.Certificate(name)
	if err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(t.TempDir(), "store.pem")
	if err := os.WriteFile(store, []byte(mustRead(t, key)+mustRead(t, certificate)), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"security.protocol=SSL", "ssl.truststore.type=PEM", "ssl.truststore.location=" + g.sec.CA(), "ssl.keystore.type=PEM",
		"ssl.keystore.location=" + store}
}

func (g *guarded) seeEachOther(t *testing.T) {
	for _, s := range [][2]*shim{{g.a, g.b}, {g.b, g.a}} {
		eventually(t, 30*time.Second, "the other process in the log", func() error {
			for line := range strings.Lines(mustRead(t, s[0].log)) {
				if strings.Contains(line, "process answers") && strings.Contains(line, s[1].admin) {
					return nil
				}
			}
			return errors.New("not yet")
		})
	}
	// Who has just come owns nothing until their group has taken it in.
	eventually(t, 30*time.Second, "the state topic spread over both", func() error {
		if a, b := owns(t, g.a), owns(t, g.b); a == 0 || b == 0 || a+b != statePartitions {
			return fmt.Errorf("they own %d and %d of %d partitions", a, b, statePartitions)
		}
		return nil
	})
}

// statePartitions are those of __mirror_state.
const statePartitions = 50

var ownedLine = regexp.MustCompile(`that this process owns" .*now=(\d+)`)

// owns is how many partitions of __mirror_state a process has said last that it owns.
func owns(t *testing.T, s *shim) (n int) {
	t.Helper()
	if all := ownedLine.FindAllStringSubmatch(mustRead(t, s.log), -1); len(all) > 0 {
		n, _ = strconv.Atoi(all[len(all)-1][1])
	}
	return n
}

// forwarded: mirrors are created at one process; those that the other one coordinates it creates on the first one's behalf.
func (g *guarded) forwarded(t *testing.T) {
	for i := range 12 {
		g.a.createAs(fmt.Sprintf("m%d", i), g.src)
	}
	atA, atB := audited(t, g.a, "create"), audited(t, g.b, "create")
	if len(atA) != 12 || len(atB) == 0 || len(atB) == 12 {
		t.Errorf("12 were created, %d lines at the one that was asked, %d at the other", len(atA), len(atB))
	}
	for _, line := range atA {
		if !strings.Contains(line, `principal="User:CN=sre"`) || strings.Contains(line, "forwarded") {
			t.Errorf("where it was asked: %s", line)
		}
	}
	for _, line := range atB {
		if !strings.Contains(line, `principal="User:CN=km-a"`) || !strings.Contains(line, "forwarded=true") {
			t.Errorf("where it was done: %s", line)
		}
	}
	eventually(t, 30*time.Second, "the same at both", func() error { // one reads what the other has written a moment later
		if a, b := g.a.must("list"), g.b.must("list"); a != b || strings.Count(a, "\n") < 12 {
			return fmt.Errorf("list at both:\n%s\n%s", a, b)
		}
		return nil
	})
}

// audited are the audit lines of a verb.
func audited(t *testing.T, s *shim, verb string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(mustRead(t, s.log)) {
		if strings.Contains(line, "audit=true verb="+verb+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (g *guarded) mirrored(t *testing.T) {
	createTopic(t, g.src, "orders", 4, nil)
	produce(t, client(t, g.src), "orders", 4, 100, 100)
	g.b.create(g.src)
	g.b.mirror("orders")
	g.a.caughtUp(g.src, 1, time.Minute, "orders")
	g.b.caughtUp(g.src, 1, time.Minute, "orders")
}

// others: a principal that is not in allow, one without a certificate, and a plain client are told why not.
func (g *guarded) others(t *testing.T) {
	dev, none, good := g.properties(t, "dev", true), g.properties(t, "dev", false), g.a.commands
	defer func() { g.a.commands = good }()
	for _, c := range []struct{ properties, want string }{
		{dev, `add "User:CN=dev" to admin.allow`}, {none, "refuses our certificate, or that there is none"}, {"", "it may want TLS"},
	} {
		g.a.commands = c.properties
		for _, verb := range [][]string{{"list"}, {"pause", "--mirror", "m", "--topics", "orders"}} {
			if out, errs, code := g.a.run(verb...); code != admin.ExitUnreachable || !strings.Contains(errs, c.want) {
				t.Errorf("%v: exit %d\n%s%s", verb, code, out, errs)
			}
		}
	}
	g.a.commands = dev
	if _, errs, _ := g.a.run("list", "-o", "json"); !strings.Contains(errs, "CLUSTER_MIRROR_AUTHORIZATION_FAILED") {
		t.Errorf("no error 144: %s", errs)
	}
	if !strings.Contains(mustRead(t, g.a.log), `principal="User:CN=dev"`) || len(audited(t, g.a, "pause")) != 0 {
		t.Error("the log names nobody who was refused, or a verb of theirs")
	}
}

// allowChanges: who is added to allow in the file is served without a restart, and refused again when SIGHUP has it read once more.
func (g *guarded) allowChanges(t *testing.T) {
	const sre, both = `allow: ["User:CN=sre"`, `allow: ["User:CN=sre", "User:CN=dev"`
	good := g.a.commands
	defer func() { g.a.commands = good }()
	g.a.commands = g.properties(t, "dev", true)
	served := func(want int) func() error {
		return func() error {
			if out, errs, code := g.a.run("list"); code != want {
				return fmt.Errorf("exit %d, want %d\n%s%s", code, want, out, errs)
			}
			return nil
		}
	}
	g.a.rewrite(sre, both)
	eventually(t, 30*time.Second, "to be served", served(admin.ExitOK))
	if lines := audited(t, g.a, "list"); !strings.Contains(lines[len(lines)-1], `principal="User:CN=dev"`) {
		t.Errorf("the last question is %s", lines[len(lines)-1])
	}
	g.a.rewrite(both, sre)
	if err := g.a.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "to be refused", served(admin.ExitUnreachable))
}

// lookup: the kmirror of another cluster asks by the properties of its mirror.
func (g *guarded) lookup(t *testing.T) {
	props := map[string]string{}
	for _, line := range g.lines(t, "sre") {
		key, value, _ := strings.Cut(line, "=")
		props[key] = value
	}
	conf, err := clientconf.ClientTLS(props, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := admin.NewClient(admin.ClientConfig{Addresses: []string{g.b.admin}, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id := protocol.PartitionID{Topic: protocol.UUID{1}}
	if got, err := c.LastMirrorEpochs(timeout(t, 10*time.Second), g.src.ID(), []protocol.PartitionID{id}); err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// stranger: a process that another one does not allow is named there, and both go on.
func (g *guarded) stranger(t *testing.T) {
	g.a.kill()
	g.a.rewrite(`, "User:CN=km-b"`, "")
	g.a.start()
	eventually(t, 30*time.Second, "the principal to add", func() error {
		if !strings.Contains(mustRead(t, g.b.log), `add \"User:CN=km-b\" to admin.allow`) {
			return errors.New("the log of the one that is refused does not name it")
		}
		return nil
	})
	produce(t, client(t, g.src), "orders", 4, 100, 100)
	g.a.caughtUp(g.src, 1, time.Minute, "orders")
	if strings.Contains(mustRead(t, g.b.log), "is FAILED") {
		t.Error("something is FAILED")
	}
}
