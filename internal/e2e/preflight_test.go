package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/admin"
	"kmirror/internal/preflight"
	"kmirror/internal/testkafka"
	"kmirror/records"
)

// TestPreflight looks at secure clusters with the documented rights, and with one right less at a time.
func TestPreflight(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs real brokers")
	}
	src := secureCluster(t, testkafka.Options{Name: "src"}, mirrorUser, "Rights at the source")
	// Asked for, but not required: kmirror has none.
	asked := map[string]string{"listener.name.client.ssl.client.auth": "requested"}
	dst := secureCluster(t, testkafka.Options{Name: "dst", Properties: asked}, kmirrorUser, "Rights at the destination")
	createTopic(t, src, "orders", 1, nil)
	createTopic(t, dst, "local", 1, nil)
	s := makeShim(t, dst, 9001, "")
	mirror := filepath.Join(t.TempDir(), "m.properties")
	lines := append([]string{"bootstrap.servers=" + strings.Join(src.Bootstrap("CLIENT"), ",")}, loginLines(t, src)...)
	if err := os.WriteFile(mirror, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &looker{s: s, src: src, dst: dst, mirror: mirror}
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{{"all rights", p.allRights}, {"a right less", p.lessRights}, {"wrong configuration", p.misconfigured}} {
		t.Run(step.name, step.run)
	}
}

// looker asks preflight of two clusters.
type looker struct {
	s        *shim
	src, dst *testkafka.Cluster
	mirror   string // file of the source's properties
}

// look returns the lines and the exit code.
func (p *looker) look(t *testing.T, more ...string) ([]preflight.Finding, int) {
	t.Helper()
	out, errs, code := p.s.local(append([]string{"preflight", "--config", p.s.config, "--mirror-config", p.mirror, "-o", "json"}, more...)...)
	var found []preflight.Finding
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatalf("exit %d: %v\n%s%s", code, err, out, errs)
	}
	return found, code
}

// allRights: nothing fails, and nothing is changed.
func (p *looker) allRights(t *testing.T) {
	before := metadataRecords(t, p.dst)
	found, code := p.look(t, "--kafka-version", "4.4.0")
	for _, f := range found {
		if f.Level == preflight.Fail || strings.Contains(f.Check, "rights") && f.Level != preflight.OK || f.Detail == "" {
			t.Errorf("%+v", f)
		}
		t.Logf("%s %s: %s", f.Level, f.Check, f.Detail)
	}
	if !says(found, preflight.Warn, "clients with a certificate are nobody") {
		t.Error("a listener that asks for client certificates is not told of")
	}
	if code != 0 || len(found) < 25 {
		t.Errorf("exit %d with %d lines", code, len(found))
	}
	if after := metadataRecords(t, p.dst); after != before {
		t.Errorf("%d records in the metadata log before, %d after", before, after)
	}
}

// lessRights: each right that is taken away is named.
func (p *looker) lessRights(t *testing.T) {
	for _, c := range []struct {
		acl   acl
		level string
		named string // where it is not the ACL's name
	}{
		{acl{"CLUSTER", "kafka-cluster", "CLUSTER_ACTION"}, preflight.Fail, ""},
		{acl{"CLUSTER", "kafka-cluster", "ALTER"}, preflight.Fail, ""},
		{acl{"CLUSTER", "kafka-cluster", "CREATE"}, preflight.Fail, ""},
		{acl{"CLUSTER", "kafka-cluster", "ALTER_CONFIGS"}, preflight.Fail, ""},
		{acl{"TOPIC", "__mirror_state", "WRITE"}, preflight.Fail, ""},
		{acl{"TOPIC", "*", "READ"}, preflight.Fail, ""},
		{acl{"TOPIC", "*", "ALTER"}, preflight.Fail, ""},
		{acl{"TOPIC", "*", "ALTER_CONFIGS"}, preflight.Fail, ""},
		{acl{"TRANSACTIONAL_ID", "kmirror-*", "WRITE"}, preflight.Fail, ""},
		{acl{"TRANSACTIONAL_ID", "*", "DESCRIBE"}, preflight.Warn, ""},
		{acl{"GROUP", "*", "READ"}, preflight.Fail, "READ on GROUP kmirror-state-*"},
	} {
		p.without(t, p.dst, kmirrorUser, c.acl, c.level, c.named)
	}
	for _, c := range []struct {
		acl   acl
		level string
	}{
		{acl{"TOPIC", "*", "DESCRIBE_CONFIGS"}, preflight.Fail},
		{acl{"GROUP", "*", "DESCRIBE"}, preflight.Warn},
		{acl{"CLUSTER", "kafka-cluster", "DESCRIBE"}, preflight.Warn},
	} {
		p.without(t, p.src, mirrorUser, c.acl, c.level, "")
	}
}

// without takes a right away until it is named, and gives it back.
func (p *looker) without(t *testing.T, c *testkafka.Cluster, user string, a acl, level, named string) {
	t.Helper()
	named = cmp.Or(named, fmt.Sprintf("%s on %s %s", a.operation, a.resource, a.name))
	want := map[string]int{preflight.Fail: admin.ExitRefused}[level]
	withdraw(t, c, user, a)
	eventually(t, 30*time.Second, named+" missing", func() error {
		found, code := p.look(t)
		if !says(found, level, named+" is missing") || code != want {
			return fmt.Errorf("exit %d, want %d: %+v", code, want, found)
		}
		return nil
	})
	grant(t, c, user, a)
}

// misconfigured: what is wrong in kmirror.yaml is named.
func (p *looker) misconfigured(t *testing.T) {
	p.s.rewrite("node_ids: [9001, 9002]", "node_ids: [1, 9002]")
	if found, code := p.look(t); code != admin.ExitRefused || !says(found, preflight.Fail, "1 is a real broker") {
		t.Errorf("another's node id: exit %d, %+v", code, found)
	}
	p.s.rewrite("node_ids: [1, 9002]", "node_ids: [9001, 9002]")
	p.s.rewrite("inter_broker_listener: REPL", "inter_broker_listener: CLIENT")
	if found, code := p.look(t); code == 0 || !says(found, preflight.Fail, "brokers replicate over REPL") {
		t.Errorf("another inter-broker listener: exit %d, %+v", code, found)
	}
	p.s.rewrite("inter_broker_listener: CLIENT", "inter_broker_listener: REPL")
	p.s.rewrite("name: CLIENT", "name: OTHER")
	if found, code := p.look(t); code != admin.ExitRefused || !says(found, preflight.Fail, "does not name: CLIENT") {
		t.Errorf("a listener less: exit %d, %+v", code, found)
	}
	p.s.rewrite(p.dst.Bootstrap("CLIENT")[0], fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	if found, code := p.look(t); code != admin.ExitUnreachable || !says(found, preflight.Fail, "") {
		t.Errorf("nobody there: exit %d, %+v", code, found)
	}
}

// says reports whether a line of a level holds a text.
func says(found []preflight.Finding, level, part string) bool {
	for _, f := range found {
		if f.Level == level && strings.Contains(f.Detail, part) {
			return true
		}
	}
	return false
}

// metadataRecords counts the records of a cluster's metadata log, but for those that controllers write while nothing happens.
func metadataRecords(t *testing.T, c *testkafka.Cluster) (n int) {
	t.Helper()
	const noOp = 20
	for _, b := range batchesOf(t, c.Nodes()[0], "__cluster_metadata", 0) {
		if b.IsControl() {
			continue
		}
		values, err := records.Values(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if len(v) > 1 && v[1] != noOp { // behind the version of the frame
				n++
			}
		}
	}
	return n
}

// withdraw takes a right away that grant gave.
func withdraw(t *testing.T, c *testkafka.Cluster, user string, a acl) {
	t.Helper()
	kind, err := kmsg.ParseACLResourceType(a.resource)
	if err != nil {
		t.Fatal(err)
	}
	operation, err := kmsg.ParseACLOperation(a.operation)
	if err != nil {
		t.Fatal(err)
	}
	f := kmsg.NewDeleteACLsRequestFilter()
	f.ResourceType, f.ResourceName, f.ResourcePatternType = kind, &a.name, kmsg.ACLResourcePatternTypeLiteral
	if prefix, ok := strings.CutSuffix(a.name, "*"); ok && prefix != "" {
		f.ResourceName, f.ResourcePatternType = &prefix, kmsg.ACLResourcePatternTypePrefixed
	}
	f.Principal, f.Operation, f.PermissionType = new("User:"+user), operation, kmsg.ACLPermissionTypeAllow
	req := kmsg.NewPtrDeleteACLsRequest()
	req.Filters = append(req.Filters, f)
	resp, err := req.RequestWith(timeout(t, 20*time.Second), client(t, c))
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil || len(resp.Results[0].MatchingACLs) != 1 {
		t.Fatalf("right %v of %s: %v", a, user, err)
	}
}
