package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// acl allows an operation on a resource, from any host. A name that ends in * is a prefix, * alone is all.
type acl struct{ resource, name, operation string }

// documented are the ACLs that the operator's page lists under a heading.
func documented(t *testing.T, heading string) (acls []acl) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n### "+heading+"\n")
	if !found {
		t.Fatalf("docs/operations.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "resource" {
			continue
		}
		acls = append(acls, acl{strings.TrimSpace(cells[1]), strings.Trim(cells[2], " `"), strings.TrimSpace(cells[3])})
	}
	if len(acls) == 0 {
		t.Fatalf("docs/operations.md has no table below %q", heading)
	}
	return acls
}

// grant gives a user rights and waits until every broker and controller must know them.
func grant(t *testing.T, c *testkafka.Cluster, user string, acls ...acl) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, a := range acls {
		n := kmsg.NewCreateACLsRequestCreation()
		kind, err := kmsg.ParseACLResourceType(a.resource)
		if err != nil {
			t.Fatal(err)
		}
		operation, err := kmsg.ParseACLOperation(a.operation)
		if err != nil {
			t.Fatal(err)
		}
		n.ResourceType, n.ResourceName, n.ResourcePatternType = kind, a.name, kmsg.ACLResourcePatternTypeLiteral
		if prefix, ok := strings.CutSuffix(a.name, "*"); ok && prefix != "" {
			n.ResourceName, n.ResourcePatternType = prefix, kmsg.ACLResourcePatternTypePrefixed
		}
		n.Principal, n.Host, n.Operation, n.PermissionType = "User:"+user, "*", operation, kmsg.ACLPermissionTypeAllow
		req.Creations = append(req.Creations, n)
	}
	resp, err := req.RequestWith(timeout(t, 20*time.Second), client(t, c))
	if err != nil {
		t.Fatalf("rights of %s: %v", user, err)
	}
	for i, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Fatalf("right %v of %s: %v", acls[i], user, err)
		}
	}
	for _, addr := range c.Bootstrap(testkafka.ClientListener) {
		eventually(t, 30*time.Second, "ACLs at "+addr, func() error { return knowsACLs(t, c, addr, user, len(acls)) })
	}
}

// knowsACLs returns nil once a broker lists n ACLs of a user, or more.
func knowsACLs(t *testing.T, c *testkafka.Cluster, addr, user string, n int) error {
	t.Helper()
	known, err := countACLs(timeout(t, 5*time.Second), as(t, c, testkafka.AdminUser, addr).SeedBrokers()[0], user)
	if err == nil && known < n {
		err = fmt.Errorf("%d of %d are known", known, n)
	}
	return err
}

// countACLs returns how many ACLs of a user are listed by whoever is asked, a broker or a cluster.
func countACLs(ctx context.Context, asked kmsg.Requestor, user string) (n int, err error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType, req.Principal = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny, kmsg.StringPtr("User:"+user)
	resp, err := req.RequestWith(ctx, asked)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return 0, err
	}
	for _, r := range resp.Resources {
		n += len(r.ACLs)
	}
	return n, nil
}
