package coordinator

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
	"kmirror/protocol/kip1279"
)

var readOrders = ACL{ResourceType: "TOPIC", ResourceName: "orders", PatternType: "LITERAL", Principal: "User:CN=a,O=<b>&c", Host: "*",
	Operation: "READ", Permission: "ALLOW"}

// TestACLsHaveOneKeyEach: wherever fields end, two ACLs have two keys.
func TestACLsHaveOneKeyEach(t *testing.T) {
	acls := []ACL{{}, readOrders}
	fields := reflect.ValueOf(readOrders)
	for i := range fields.NumField() {
		other := readOrders
		f := reflect.ValueOf(&other).Elem().Field(i)
		f.SetString(f.String() + "x")
		acls = append(acls, other)
		if i > 0 { // the same letters, with the bounds elsewhere
			before, end := reflect.ValueOf(&other).Elem().Field(i-1), f.String()
			before.SetString(before.String() + end[:1])
			f.SetString(end[1:])
			acls = append(acls, other)
		}
	}
	seen := map[string]ACL{}
	for _, a := range acls {
		r, err := aclRecord("m", a, 50)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[string(r.keyBytes)]; ok {
			t.Errorf("%q and %q have one key", a.fields(), other.fields())
		}
		seen[string(r.keyBytes)] = a
		if r.partition != kip1279.MirrorPartitionOf("m", 50) {
			t.Errorf("in partition %d, not with the metadata coordinator", r.partition)
		}
	}
	if got := readOrders.id().String(); got != "vpepnUkdZo4jCpUNgxInZQ" {
		t.Errorf("the key of an ACL is %s: what was stored before would be found no more", got)
	}
}

func TestACLsInTheTable(t *testing.T) {
	tab, l := silent(), log{}
	other := readOrders
	other.Operation = "DESCRIBE"
	for _, a := range []ACL{readOrders, other} {
		r, err := one(aclRecord("m", a, 50))
		l.write(t, tab, r, err)
	}
	r, err := one(aclRecord("n", other, 50))
	l.write(t, tab, r, err)
	if got := tab.aclList("m"); !slices.Equal(got, []ACL{other, readOrders}) {
		t.Errorf("of m: %v", got)
	}
	l.write(t, tab, []record{newRecord(aclKey("m", other), nil, 50)}, nil)
	if got := tab.aclList("m"); !slices.Equal(got, []ACL{readOrders}) {
		t.Errorf("of m: %v", got)
	}
	if got := tab.aclList("n"); !slices.Equal(got, []ACL{other}) {
		t.Errorf("of n: %v", got)
	}
	// One under the key of another could never be removed.
	wrong := newRecord(aclKey("o", other), nil, 50)
	tab.apply(wrong.keyBytes, r[0].value, 100)
	bad, _ := aclRecord("o", readOrders, 50)
	tab.apply(wrong.keyBytes, bad.value, 101)
	if got := tab.aclList("o"); !slices.Equal(got, []ACL{other}) {
		t.Errorf("of o: %v", got)
	}
	broken := readOrders
	broken.ResourceName = "a\xff"
	if _, err := aclRecord("m", broken, 50); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("one that is not UTF-8: %v", err)
	}
}

func TestACLsAsText(t *testing.T) {
	if got, want := readOrders.String(), `ALLOW READ TOPIC "orders" for User:CN=a,O=<b>&c from *: LITERAL`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// checkACLs: as many as fill several batches, in two processes, until the mirror is deleted.
func checkACLs(t *testing.T, c *testkafka.Cluster, s *Store, w *wire) {
	other, stopOther := run(t, c, w)
	defer stopOther()
	var acls []ACL
	for i := range 3000 {
		a := readOrders
		a.ResourceName = fmt.Sprintf("topic-%04d", i)
		acls = append(acls, a)
	}
	for _, by := range []*Store{s, other} { // one of them asks the other to write
		must(t, by.PutACLs(limit(t, 30*time.Second), "dc1", acls...))
		if got := by.ACLs("dc1"); !slices.Equal(got, acls) {
			t.Errorf("%d ACLs once they are stored, want %d", len(got), len(acls))
		}
		must(t, by.DeleteACLs(limit(t, 30*time.Second), "dc1", acls[1000:]...))
		must(t, by.DeleteACLs(limit(t, 30*time.Second), "dc1", acls[1000:]...)) // nothing is left to do
		if got := by.ACLs("dc1"); !slices.Equal(got, acls[:1000]) {
			t.Errorf("%d ACLs once some are forgotten, want 1000", len(got))
		}
	}
	changed := other.Changed()
	waitFor(t, other, changed, func() bool { return slices.Equal(other.ACLs("dc1"), s.ACLs("dc1")) })
	if err := s.PutACLs(limit(t, 10*time.Second), "nobody", readOrders); !errors.Is(err, ErrNoMirror) {
		t.Errorf("of a mirror that is not defined: %v", err)
	}
	if got := s.ACLs("nobody"); len(got) != 0 {
		t.Errorf("of a mirror that is not defined: %v", got)
	}
}
