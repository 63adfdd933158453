package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/testkafka"
)

// aclsOf returns how many ACLs a cluster has of a user.
func aclsOf(t *testing.T, c *testkafka.Cluster, user string) int {
	t.Helper()
	n, err := countACLs(timeout(t, 20*time.Second), client(t, c), user)
	if err != nil {
		t.Fatalf("ACLs of %s: %v", user, err)
	}
	return n
}

// awaitACLs waits until every broker of a cluster has so many ACLs of a user.
func awaitACLs(t *testing.T, c *testkafka.Cluster, user string, want int) {
	t.Helper()
	for _, addr := range c.Bootstrap(testkafka.ClientListener) {
		asked := as(t, c, testkafka.AdminUser, addr).SeedBrokers()[0]
		eventually(t, 30*time.Second, "ACLs of "+user+" at "+addr, func() error {
			n, err := countACLs(timeout(t, 20*time.Second), asked, user)
			if err == nil && n != want {
				err = fmt.Errorf("%d, want %d", n, want)
			}
			return err
		})
	}
}

// revoke takes all rights to a kind of resource away from a user.
func revoke(t *testing.T, c *testkafka.Cluster, user, resource string) {
	t.Helper()
	kind, err := kmsg.ParseACLResourceType(resource)
	if err != nil {
		t.Fatal(err)
	}
	f := kmsg.NewDeleteACLsRequestFilter()
	f.ResourceType, f.ResourcePatternType = kind, kmsg.ACLResourcePatternTypeAny
	f.Operation, f.PermissionType, f.Principal = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny, kmsg.StringPtr("User:"+user)
	req := kmsg.NewPtrDeleteACLsRequest()
	req.Filters = append(req.Filters, f)
	resp, err := req.RequestWith(timeout(t, 20*time.Second), client(t, c))
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil || len(resp.Results[0].MatchingACLs) == 0 {
		t.Fatalf("rights of %s to %s: %d taken, %v", user, resource, len(resp.Results[0].MatchingACLs), err)
	}
}

// aclsFollow: ACLs of the source come and go at the destination, others stay there.
func aclsFollow(t *testing.T, src, dst *testkafka.Cluster) {
	grant(t, dst, "bob", acl{"TOPIC", "app.*", "READ"})
	grant(t, src, "alice", acl{"TOPIC", "app.*", "READ"}, acl{"GROUP", "app", "READ"})
	awaitACLs(t, dst, "alice", 2)
	revoke(t, src, "alice", "GROUP")
	awaitACLs(t, dst, "alice", 1)
	if bob, own := aclsOf(t, dst, "bob"), aclsOf(t, dst, kmirrorUser); bob != 1 || own == 0 {
		t.Errorf("of ACLs that the destination had of its own %d of bob's and %d of kmirror's are left", bob, own)
	}
}

// rightsAreLost: topics that may not be seen any more at the source are not taken for deleted, nor their ACLs for revoked.
func rightsAreLost(t *testing.T, s *shim, src, dst *testkafka.Cluster) {
	configs, acls := topicConfigs(t, dst, "app.orders"), aclsOf(t, dst, "alice")
	revoke(t, src, mirrorUser, "TOPIC")
	revoke(t, src, mirrorUser, "CLUSTER")
	eventually(t, 30*time.Second, "the loss of rights to be shown", func() error {
		parts, err := s.describe("--topics", "app.orders")
		if err != nil {
			return err
		}
		for _, kind := range []string{"topics", "acls"} {
			why := parts[0].Sync[kind].Error
			if why == nil || !strings.Contains(*why, "AUTHORIZATION_FAILED") && !strings.Contains(*why, "DESCRIBE") {
				return fmt.Errorf("%s: %v", kind, deref(why))
			}
		}
		return nil
	})
	time.Sleep(2 * time.Second) // four rounds
	parts, err := s.describe("--topics", "app.orders")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if p.State == "STOPPED" || p.State == "STOPPING" {
			t.Errorf("%s-%d is %s: %v", p.Topic, p.Partition, p.State, deref(p.Error))
		}
	}
	for k, v := range configs {
		if now := topicConfigs(t, dst, "app.orders")[k]; now != v {
			t.Errorf("%s was %q and is %q", k, v, now)
		}
	}
	if now := aclsOf(t, dst, "alice"); now != acls {
		t.Errorf("%d ACLs of alice are left of %d", now, acls)
	}
	grant(t, src, mirrorUser, documented(t, "Rights at the source")...)
	produce(t, client(t, src), "app.orders", 4, 100, 100)
	s.caughtUp(src, 3, time.Minute, "app.orders")
}
