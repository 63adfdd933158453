package metasync

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
)

// acl is short for tests: "TOPIC a READ", and more fields behind it.
func acl(text string) coordinator.ACL {
	parts := strings.Fields(text)
	a := coordinator.ACL{ResourceType: parts[0], ResourceName: parts[1], Operation: parts[2], PatternType: "LITERAL", Principal: "User:alice",
		Host: "*", Permission: "ALLOW"}
	for i, into := range []*string{&a.PatternType, &a.Principal, &a.Host, &a.Permission} {
		if len(parts) > 3+i {
			*into = parts[3+i]
		}
	}
	return a
}

func aclsOf(texts ...string) []coordinator.ACL {
	var out []coordinator.ACL
	for _, t := range texts {
		out = append(out, acl(t))
	}
	return out
}

func rulesOf(t testing.TB, rules string) *filters.Filters {
	t.Helper()
	f, err := filters.Parse(map[string]string{filters.ACLsInclude: rules})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPlanACLs(t *testing.T) {
	a, b, c, d := "TOPIC a READ", "TOPIC a READ PREFIXED", "GROUP g READ", "CLUSTER kafka-cluster ALTER"
	type texts []string
	for _, tt := range []struct {
		name                        string
		source, there, ours         texts
		rules                       string
		pruneAll                    bool
		wantCreate, wantDrop, prune texts
	}{
		{name: "missing ones are created", source: texts{a, b, c}, there: texts{c}, wantCreate: texts{a, b}},
		{name: "nothing to do", source: texts{a, b}, there: texts{a, b}, ours: texts{a}},
		{name: "foreign ones stay", source: texts{a}, there: texts{a, b, c, d}},
		{name: "ours go with the source's", source: texts{a}, there: texts{a, b, c, d}, ours: texts{a, b}, wantDrop: texts{b}},
		{name: "ours that an operator deleted come back", source: texts{a, b}, there: texts{b}, ours: texts{a, b}, wantCreate: texts{a}},
		{name: "ours that are nowhere are forgotten", source: texts{a}, there: texts{a}, ours: texts{c}, wantDrop: texts{c}},
		{name: "an empty source deletes nothing", there: texts{a, b}, ours: texts{a}},
		{name: "an empty source prunes nothing", there: texts{a, b}, ours: texts{a}, pruneAll: true},
		{name: "rules choose", source: texts{a, b, c, d}, rules: "GROUP,CLUSTER;*;ALTER", wantCreate: texts{d, c}},
		{name: "rules that mean it no more", source: texts{a, c}, there: texts{a, c, d}, ours: texts{a, c}, rules: "GROUP", wantDrop: texts{a}},
		{name: "no rules", source: texts{a, c}, there: texts{a, c, d}, ours: texts{a}, rules: " ", wantDrop: texts{a}},
		{name: "prune", source: texts{a}, there: texts{a, b, c, d}, ours: texts{b}, pruneAll: true, wantDrop: texts{b}, prune: texts{d, c}},
		{name: "prune by rules", source: texts{a, c}, there: texts{a, c}, rules: "GROUP", pruneAll: true, prune: texts{a}},
		{name: "rules that leave nothing prune nothing", source: texts{a}, there: texts{a, c}, ours: texts{a}, rules: "USER", pruneAll: true,
			wantDrop: texts{a}},
		{name: "listed twice", source: texts{a, a}, there: texts{c, c}, ours: texts{b, b}, wantCreate: texts{a}, wantDrop: texts{b}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.rules == "" {
				tt.rules = "*"
			}
			p := planACLs(aclsOf(tt.source...), aclsOf(tt.there...), aclsOf(tt.ours...), rulesOf(t, tt.rules).ACL, tt.pruneAll)
			for _, part := range []struct {
				what string
				got  []coordinator.ACL
				want texts
			}{{"create", p.create, tt.wantCreate}, {"drop", p.drop, tt.wantDrop}, {"prune", p.prune, tt.prune}} {
				if want := aclsOf(part.want...); !slices.Equal(part.got, want) {
					t.Errorf("%s %v, want %v", part.what, part.got, want)
				}
			}
		})
	}
}

// TestPlanACLsNeverGoesTooFar: whatever lies where, only ours are deleted, and only while the source shows something.
func TestPlanACLsNeverGoesTooFar(t *testing.T) {
	var all []coordinator.ACL
	for _, kind := range []string{"TOPIC", "GROUP"} {
		for _, name := range []string{"a", "b"} {
			for _, pattern := range []string{"LITERAL", "PREFIXED"} {
				all = append(all, acl(kind+" "+name+" READ "+pattern))
			}
		}
	}
	subset := func(bits uint8) map[coordinator.ACL]bool {
		out := map[coordinator.ACL]bool{}
		for i, a := range all {
			if bits>>i&1 == 1 {
				out[a] = true
			}
		}
		return out
	}
	list := func(m map[coordinator.ACL]bool) []coordinator.ACL { return slices.Collect(maps.Keys(m)) }
	rules := []*filters.Filters{rulesOf(t, "*"), rulesOf(t, "TOPIC"), rulesOf(t, "GROUP;a"), rulesOf(t, "USER")}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		bits := rnd.Uint64()
		source, there, ours := subset(uint8(bits)), subset(uint8(bits>>8)), subset(uint8(bits>>16))
		f, pruneAll := rules[bits>>24&3], bits>>26&1 == 1
		if bits>>27&7 == 0 {
			clear(source)
		}
		p := planACLs(list(source), list(there), list(ours), f.ACL, pruneAll)
		if len(source) == 0 && len(p.create)+len(p.drop)+len(p.prune) > 0 {
			t.Fatalf("an empty source: %+v", p)
		}
		if !pruneAll && len(p.prune) > 0 {
			t.Fatalf("prunes unasked: %v", p.prune)
		}
		if errs := carryOut(p, source, there, ours, f); len(errs) > 0 {
			t.Fatal(errs)
		}
		if again := planACLs(list(source), list(there), list(ours), f.ACL, pruneAll); len(again.create)+len(again.drop)+len(again.prune) > 0 {
			t.Fatalf("a second round has something to do: %+v", again)
		}
	}
}

// carryOut does what a plan says and returns what of it goes too far, or not far enough.
func carryOut(p aclPlan, source, there, ours map[coordinator.ACL]bool, f *filters.Filters) (errs []error) {
	for _, a := range p.drop {
		if !ours[a] || source[a] && f.ACL(a) {
			errs = append(errs, fmt.Errorf("drops %v: ours %v, at the source %v", a, ours[a], source[a]))
		}
		delete(there, a)
		delete(ours, a)
	}
	for _, a := range p.prune {
		if ours[a] || !there[a] || source[a] && f.ACL(a) {
			errs = append(errs, fmt.Errorf("prunes %v: ours %v, at the source %v", a, ours[a], source[a]))
		}
		delete(there, a)
	}
	for _, a := range p.create {
		if there[a] || !source[a] || !f.ACL(a) {
			errs = append(errs, fmt.Errorf("creates %v: there %v, at the source %v", a, there[a], source[a]))
		}
		there[a], ours[a] = true, true
	}
	for a := range source {
		if f.ACL(a) && !there[a] {
			errs = append(errs, fmt.Errorf("%v is missing after the round", a))
		}
	}
	return errs
}

// TestTwoMirrorsShareAnACL: it goes when the source of the mirror that created it drops it, and the other mirror brings it back as its own.
func TestTwoMirrorsShareAnACL(t *testing.T) {
	shared, other := acl("TOPIC shared READ"), acl("GROUP g READ")
	there, memory := map[coordinator.ACL]bool{}, map[string]map[coordinator.ACL]bool{"first": {}, "second": {}}
	round := func(mirror string, source ...coordinator.ACL) {
		ours := memory[mirror]
		p := planACLs(source, slices.Collect(maps.Keys(there)), slices.Collect(maps.Keys(ours)), rulesOf(t, "*").ACL, false)
		for _, a := range p.create {
			there[a], ours[a] = true, true
		}
		for _, a := range p.drop {
			delete(there, a)
			delete(ours, a)
		}
	}
	round("first", shared, other)
	round("second", shared)
	if len(memory["second"]) > 0 {
		t.Fatalf("the second mirror takes for its own what was there: %v", memory["second"])
	}
	round("first", other)
	round("second", shared)
	if !there[shared] || memory["first"][shared] || !memory["second"][shared] {
		t.Errorf("there: %v, remembered by: %v", there, memory)
	}
	round("first", other)
	if !there[shared] {
		t.Error("the first mirror deletes what is the second's")
	}
}

// TestACLWords: every word has its number in Kafka's protocol, and only what can be part of an ACL has a word.
func TestACLWords(t *testing.T) {
	for _, c := range []struct {
		words []string
		last  int8
		want  map[int8]string
	}{
		{filters.ResourceTypes, 7, map[int8]string{2: "TOPIC", 5: "TRANSACTIONAL_ID", 7: "USER"}},
		{filters.PatternTypes, 4, map[int8]string{3: "LITERAL", 4: "PREFIXED"}},
		{filters.Operations, 15, map[int8]string{2: "ALL", 8: "DESCRIBE", 15: "TWO_PHASE_COMMIT"}},
		{filters.Permissions, 3, map[int8]string{2: "DENY", 3: "ALLOW"}},
	} {
		for n := int8(-128); ; n++ {
			w := word(c.words, n)
			if want, ok := c.want[n]; ok && w != want {
				t.Errorf("%d is %q, want %q", n, w, want)
			}
			if w != "" && (n > c.last || code[int8](c.words, w) != n) || w == "" && n == c.last {
				t.Errorf("%d is %q", n, w)
			}
			if n == 127 {
				break
			}
		}
	}
}

func TestACLBatches(t *testing.T) {
	var sizes []int
	var seen []coordinator.ACL
	list := make([]coordinator.ACL, 2*aclBatch+3)
	for i := range list {
		list[i].ResourceName = strings.Repeat("x", i)
	}
	for b := range batches(list) {
		sizes, seen = append(sizes, len(b)), append(seen, b...)
	}
	if !slices.Equal(sizes, []int{1, aclBatch, aclBatch, 2}) || !slices.Equal(seen, list) {
		t.Errorf("batches of %v", sizes)
	}
	for b := range batches(nil) {
		t.Errorf("a batch of nothing: %v", b)
	}
}
