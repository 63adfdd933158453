package metasync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/internal/testkafka"
)

// Users of the clusters: kmirror may what it needs for ACLs, watcher may only look, eve may nothing.
const (
	kmirror = testkafka.GuestUser
	watcher = "watcher"
	eve     = "eve"
)

// aclWorld is a mirror's view of two clusters with an authorizer each, and of one without.
type aclWorld struct {
	whole, t      *testing.T // what clients live for, and the step under way
	sec           *testkafka.Security
	src, dst      *testkafka.Cluster
	bare          *kgo.Client
	store         *memory
	seen          counts
	log           bytes.Buffer
	clients       map[string]*kgo.Client
	base, foreign []coordinator.ACL // at the source for kmirror, at the destination of others
	ours          []coordinator.ACL // what the mirror is to have at the destination, and to remember
	fences        int
}

func newACLWorld(t *testing.T) *aclWorld {
	sec := testkafka.NewSecurity(t)
	w := &aclWorld{whole: t, t: t, sec: sec, clients: map[string]*kgo.Client{},
		src:   testkafka.Start(t, sec.Secure(testkafka.Options{Name: "src", Version: testkafka.Previous})),
		dst:   testkafka.Start(t, sec.Secure(testkafka.Options{Name: "dst"})),
		store: &memory{mirrors: map[string]coordinator.Mirror{"m": {Name: "m"}}}}
	bare := testkafka.Start(t, testkafka.Options{Name: "bare"})
	var err error
	if w.bare, err = kgo.NewClient(bare.Opts()...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.bare.Close)
	for _, c := range []*testkafka.Cluster{w.src, w.dst} {
		if err := sec.AddUser(w.limit(), c, kmirror, watcher, eve); err != nil {
			t.Fatal(err)
		}
	}
	w.base = aclsOf("CLUSTER kafka-cluster DESCRIBE LITERAL User:kmirror")
	w.foreign = aclsOf("CLUSTER kafka-cluster DESCRIBE LITERAL User:kmirror", "CLUSTER kafka-cluster ALTER LITERAL User:kmirror",
		"CLUSTER kafka-cluster DESCRIBE LITERAL User:watcher", "TOPIC kept READ", "TOPIC same READ")
	w.make(w.dst, w.foreign...)
	w.setSource(true)
	return w
}

func (w *aclWorld) limit() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), 90*time.Second)
	w.t.Cleanup(cancel)
	return ctx
}

// as returns a client of a cluster that is logged in as a user.
func (w *aclWorld) as(c *testkafka.Cluster, user string) *kgo.Client {
	w.t.Helper()
	key := c.ID() + user
	if w.clients[key] == nil {
		cl, err := kgo.NewClient(append(w.sec.Opts(user), kgo.SeedBrokers(c.Bootstrap(testkafka.ClientListener)...))...)
		if err != nil {
			w.t.Fatal(err)
		}
		w.whole.Cleanup(cl.Close)
		w.clients[key] = cl
	}
	return w.clients[key]
}

// list asks a cluster by other code than what is tested.
func (w *aclWorld) list(c *testkafka.Cluster) []coordinator.ACL {
	w.t.Helper()
	b := kadm.NewACLs().AnyResource().ResourcePatternType(kadm.ACLPatternAny).Operations(kadm.OpAny).Allow().AllowHosts().Deny().DenyHosts()
	results, err := kadm.NewClient(w.as(c, testkafka.AdminUser)).DescribeACLs(w.limit(), b)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []coordinator.ACL
	for _, r := range results {
		if r.Err != nil {
			w.t.Fatal(r.Err)
		}
		for _, d := range r.Described {
			op := d.Operation.String()
			if d.Operation == 15 { // the client has no name for it
				op = "TWO_PHASE_COMMIT"
			}
			out = append(out, coordinator.ACL{ResourceType: d.Type.String(), ResourceName: d.Name, PatternType: d.Pattern.String(),
				Principal: d.Principal, Host: d.Host, Operation: op, Permission: d.Permission.String()})
		}
	}
	slices.SortFunc(out, coordinator.ACL.Compare)
	return slices.Compact(out)
}

func (w *aclWorld) make(c *testkafka.Cluster, acls ...coordinator.ACL) {
	w.t.Helper()
	results, err := createACLs(w.limit(), w.as(c, testkafka.AdminUser), acls)
	if err = errors.Join(append(results, err)...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *aclWorld) unmake(c *testkafka.Cluster, acls ...coordinator.ACL) {
	w.t.Helper()
	results, err := deleteACLs(w.limit(), w.as(c, testkafka.AdminUser), acls)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, r := range results {
		if !r.deleted {
			w.t.Fatalf("%s was to be there: %v", acls[i], r.err)
		}
	}
}

// setSource makes the source's ACLs these, with kmirror's right to see them or without, and waits until the broker shows it.
func (w *aclWorld) setSource(rights bool, acls ...coordinator.ACL) {
	w.t.Helper()
	want := slices.Clone(acls)
	if rights {
		want = append(want, w.base...)
	}
	slices.SortFunc(want, coordinator.ACL.Compare)
	there := w.list(w.src)
	if add := without(set(want), set(there)); len(add) > 0 {
		w.make(w.src, add...)
	}
	if drop := without(set(there), set(want)); len(drop) > 0 {
		w.unmake(w.src, drop...)
	}
	eventually(w.t, "the source's ACLs", func() bool { return slices.Equal(w.list(w.src), want) })
}

// there returns the destination's ACLs after all that was done before has reached the broker. What tells it is an ACL created after it:
// changes reach it in their order.
func (w *aclWorld) there() []coordinator.ACL {
	w.t.Helper()
	w.fences++
	fence := acl(fmt.Sprintf("TOPIC fence-%d READ", w.fences))
	w.make(w.dst, fence)
	eventually(w.t, "the destination's broker", func() bool { return slices.Contains(w.list(w.dst), fence) })
	w.unmake(w.dst, fence)
	eventually(w.t, "the destination's broker", func() bool { return !slices.Contains(w.list(w.dst), fence) })
	return w.list(w.dst)
}

// expect compares what is remembered with ours, and the destination with that and what else is to be there.
func (w *aclWorld) expect(others []coordinator.ACL) {
	w.t.Helper()
	got, there, ours := w.there(), slices.Concat(others, w.ours), w.ours
	if lack, more := without(set(there), set(got)), without(set(got), set(there)); len(lack)+len(more) > 0 {
		w.t.Errorf("at the destination %d are missing: %v; %d should not be there: %v", len(lack), few(lack), len(more), few(more))
	}
	got = w.store.ACLs("m")
	if lack, more := without(set(ours), set(got)), without(set(got), set(ours)); len(lack)+len(more) > 0 {
		w.t.Errorf("%d are not remembered: %v; %d should not be: %v", len(lack), few(lack), len(more), few(more))
	}
}

func few(list []coordinator.ACL) []coordinator.ACL { return list[:min(3, len(list))] }

func (w *aclWorld) job(src, dst *kgo.Client, config map[string]string) *job {
	w.t.Helper()
	f, err := filters.Parse(config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.log.Reset()
	w.seen.take()
	cluster, err := kadm.NewClient(src).BrokerMetadata(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	def := coordinator.Mirror{Name: "m", SourceClusterID: cluster.Cluster, Config: config}
	return &job{s: &Syncer{cfg: Config{Store: w.store, Observer: &w.seen}}, def: def, f: f,
		log: slog.New(slog.NewTextHandler(&w.log, nil)), srcClient: src, dstClient: dst}
}

// round runs one as kmirror on both sides; counted is what the observer is to have seen.
func (w *aclWorld) round(config map[string]string, counted string) {
	w.t.Helper()
	if err := w.job(w.as(w.src, kmirror), w.as(w.dst, kmirror), config).acls(w.limit()); err != nil {
		w.t.Error(err)
	}
	w.counted(counted)
}

func (w *aclWorld) counted(want string) {
	w.t.Helper()
	if got := w.seen.take(); got != want {
		w.t.Errorf("counted %q, want %q", got, want)
	}
}

// allACLs are ACLs of every kind that there is, and enough for several requests.
func allACLs() []coordinator.ACL {
	out := aclsOf("TOPIC orders READ", "TOPIC orders READ PREFIXED", "TOPIC * WRITE", "GROUP g,h READ PREFIXED User:CN=a,O=b,C=c 10.0.0.1",
		"TOPIC secret ALL LITERAL User:* * DENY", "CLUSTER kafka-cluster IDEMPOTENT_WRITE", "TRANSACTIONAL_ID t WRITE",
		"TRANSACTIONAL_ID t TWO_PHASE_COMMIT", "DELEGATION_TOKEN d DESCRIBE", "USER User:bob CREATE_TOKENS", "USER User:bob DESCRIBE_TOKENS",
		"TOPIC same READ")
	for i := range 1100 {
		out = append(out, acl(fmt.Sprintf("TOPIC t-%04d DESCRIBE_CONFIGS", i)))
	}
	return out
}

func except(list []coordinator.ACL, not ...coordinator.ACL) []coordinator.ACL {
	return slices.DeleteFunc(slices.Clone(list), func(a coordinator.ACL) bool { return slices.Contains(not, a) })
}

func TestACLsOnKafka(t *testing.T) {
	w := newACLWorld(t)
	for _, step := range []struct {
		name string
		run  func(w *aclWorld, t *testing.T)
	}{
		{"no authorizer", (*aclWorld).noAuthorizer}, {"not remembered", (*aclWorld).notRemembered}, {"created", (*aclWorld).created},
		{"deleted", (*aclWorld).deleted}, {"nothing is shown", (*aclWorld).nothingShown}, {"another cluster", (*aclWorld).anotherCluster},
		{"rights", (*aclWorld).rights},
		{"one is refused", (*aclWorld).oneRefused}, {"rules", (*aclWorld).rules}, {"prune", (*aclWorld).prune},
	} {
		t.Run(step.name, func(t *testing.T) {
			w.t = t
			step.run(w, t)
		})
		if w.t = t; t.Failed() {
			return // each begins where the one before it ended
		}
	}
}

// Of the source's ACLs sameACL is at the destination already, and prefixedACL is deleted at the source in the course of the test.
var sameACL, prefixedACL = acl("TOPIC same READ"), acl("TOPIC orders READ PREFIXED")

func (w *aclWorld) noAuthorizer(t *testing.T) {
	for name, run := range map[string]*job{
		"source":      w.job(w.bare, w.as(w.dst, kmirror), nil),
		"destination": w.job(w.as(w.src, kmirror), w.bare, nil),
	} {
		if err := run.acls(w.limit()); err != nil {
			t.Errorf("a %s without an authorizer: %v", name, err)
		}
		w.counted("skipped acls no_authorizer: 1; ")
	}
	w.expect(w.foreign)
}

// notRemembered: what can't be remembered is not created.
func (w *aclWorld) notRemembered(t *testing.T) {
	w.setSource(true, allACLs()...)
	w.store.broken = errBroken
	if err := w.job(w.as(w.src, kmirror), w.as(w.dst, kmirror), nil).acls(w.limit()); !errors.Is(err, errBroken) {
		t.Errorf("what can't be remembered: %v", err)
	}
	w.expect(w.foreign)
	w.store.broken = nil
}

func (w *aclWorld) created(t *testing.T) {
	w.ours = except(allACLs(), sameACL)
	w.round(nil, fmt.Sprintf("changed acls: %d; ", len(w.ours)))
	line := `level=INFO msg="ACL created" resource_type=GROUP resource_name=g,h pattern_type=PREFIXED ` +
		`principal="User:CN=a,O=b,C=c" host=10.0.0.1 operation=READ permission=ALLOW`
	if n := strings.Count(w.log.String(), "\n"); n != len(w.ours) || !strings.Contains(w.log.String(), line) {
		t.Errorf("%d lines in the log, and among them is to be %s", n, line)
	}
	w.expect(w.foreign)
	w.round(nil, "")
}

// deleted: at the source, at the destination, on both sides.
func (w *aclWorld) deleted(t *testing.T) {
	w.setSource(true, except(allACLs(), sameACL, prefixedACL)...)
	w.round(nil, "changed acls: 1; ")
	if !strings.Contains(w.log.String(), `msg="ACL deleted" resource_type=TOPIC resource_name=orders pattern_type=PREFIXED`) {
		t.Errorf("the log says %s", w.log.String())
	}
	w.ours = except(w.ours, prefixedACL)
	w.expect(w.foreign)

	w.unmake(w.dst, w.ours[0])
	w.there()
	w.round(nil, "changed acls: 1; ")
	w.expect(w.foreign)

	last := len(w.ours) - 1
	w.unmake(w.dst, w.ours[last])
	w.setSource(true, w.ours[:last]...)
	w.there()
	w.round(nil, "") // only to forget it is left
	w.ours = w.ours[:last]
	w.expect(w.foreign)
}

// nothingShown: a source that shows no ACLs, since kmirror may not see them or since there are none, deletes nothing.
func (w *aclWorld) nothingShown(t *testing.T) {
	for name, src := range map[string]string{"unauthorised": eve, "no ACLs at all": testkafka.AdminUser} {
		w.setSource(false, map[string][]coordinator.ACL{eve: allACLs()}[src]...)
		for _, prune := range []string{"own", "all"} {
			err := w.job(w.as(w.src, src), w.as(w.dst, kmirror), map[string]string{filters.ACLsPrune: prune}).acls(w.limit())
			if src == eve {
				fails(t, name, err, kerr.ClusterAuthorizationFailed, "grant DESCRIBE on CLUSTER to kmirror's principal at the source")
				w.counted("")
			} else {
				fails(t, name, err, nil, "")
				w.counted("skipped acls empty_source: 1; ")
			}
			w.expect(w.foreign)
		}
	}
}

// anotherCluster: the source's client comes to another cluster, with other ACLs, after the round has begun.
func (w *aclWorld) anotherCluster(t *testing.T) {
	w.setSource(true, acl("GROUP others READ"))
	for _, prune := range []string{"own", "all"} {
		j := w.job(w.as(w.src, kmirror), w.as(w.dst, kmirror), map[string]string{filters.ACLsPrune: prune})
		j.def.SourceClusterID = "another"
		fails(t, "another cluster", j.acls(w.limit()), errWrongCluster, "")
		w.counted("")
		w.expect(w.foreign)
	}
}

// rights at the destination: what can't be created without them is not taken for ours.
func (w *aclWorld) rights(t *testing.T) {
	fresh := aclsOf("GROUP fresh READ", "GROUP fresh READ PREFIXED", "GROUP fresh DELETE")
	w.setSource(true, append(slices.Clone(w.ours[1:]), fresh...)...)
	for user, right := range map[string]string{eve: "DESCRIBE", watcher: "ALTER"} {
		err := w.job(w.as(w.src, kmirror), w.as(w.dst, user), nil).acls(w.limit())
		fails(t, user, err, kerr.ClusterAuthorizationFailed, "grant "+right+" on CLUSTER to kmirror's principal at the destination")
		if n := strings.Count(err.Error(), "create ACL "); n > 1 {
			t.Errorf("%d ACLs were tried in vain, one would do", n)
		}
		w.counted("")
		w.expect(w.foreign)
	}
	w.round(nil, "changed acls: 4; ")
	w.ours = append(w.ours[1:], fresh...)
	w.expect(w.foreign)
}

func (w *aclWorld) oneRefused(t *testing.T) {
	good := aclsOf("GROUP good-1 READ", "GROUP good-2 READ")
	bad := acl("CLUSTER other-cluster READ")
	err := w.job(w.as(w.src, kmirror), w.as(w.dst, kmirror), nil).createACLs(w.limit(), []coordinator.ACL{good[0], bad, good[1]})
	fails(t, "a cluster of another name", err, kerr.InvalidRequest, bad.String())
	w.counted("changed acls: 2; ")
	w.ours = append(w.ours, good...)
	w.expect(w.foreign)
}

// rules: what no rule means any more is deleted.
func (w *aclWorld) rules(*testing.T) {
	groups := slices.DeleteFunc(slices.Clone(w.ours), func(a coordinator.ACL) bool {
		return a.ResourceType != "GROUP" || strings.HasPrefix(a.ResourceName, "good")
	})
	w.round(map[string]string{filters.ACLsInclude: "GROUP"}, fmt.Sprintf("changed acls: %d; ", len(w.ours)-len(groups)))
	w.ours = groups
	w.expect(w.foreign)
}

func (w *aclWorld) prune(t *testing.T) {
	config := map[string]string{filters.ACLsInclude: "GROUP,CLUSTER", filters.ACLsPrune: "all"}
	dst := w.as(w.dst, testkafka.AdminUser) // kmirror's own right to change ACLs goes as well
	fails(t, "prune", w.job(w.as(w.src, kmirror), dst, config).acls(w.limit()), nil, "")
	w.counted(fmt.Sprintf("changed acls: %d; ", 1+len(w.foreign)-1))
	if !strings.Contains(w.log.String(), `resource_name=kept`) || !strings.Contains(w.log.String(), "mirror.acls.prune is all") {
		t.Errorf("the log says %s", w.log.String())
	}
	w.ours = append(w.ours, acl("CLUSTER kafka-cluster IDEMPOTENT_WRITE"))
	w.expect(w.base)
}

func fails(t *testing.T, what string, err, is error, says string) {
	t.Helper()
	if !errors.Is(err, is) || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want %v that says %q", what, err, is, says)
	}
}
