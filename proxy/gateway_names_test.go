package proxy

import (
	"math"
	"strings"
	"testing"
)

func testNames(t testing.TB) *Names {
	t.Helper()
	n, err := ParseNames("b{id}.kafka.example.com", 9443)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestParseNames(t *testing.T) {
	for _, good := range []string{"b{id}.kafka.example.com", "{id}.kafka.example.com", "kafka-{id}.local", "broker.{id}.example.com",
		"B{id}.Example.COM",
		"{id}-broker", "rack_1-{id}.x"} {
		n, err := ParseNames(good, 1)
		if err != nil {
			t.Errorf("%q: %v", good, err)
			continue
		}
		for _, id := range []int32{0, 1, 9001, math.MaxInt32} {
			if got, ok := n.ID(n.Of(id)); !ok || got != id {
				t.Errorf("%q: %d becomes %q, and that %d, %v", good, id, n.Of(id), got, ok)
			}
		}
	}
	for _, bad := range []string{"", "kafka.example.com", "{id}", "b{id}.{id}.x", "b1{id}.x", "b{id}1.x", "b{ID}x{id}.x", "b{id}..x",
		".b{id}.x", "b{id}.x.",
		"b {id}.x", "b{id}.x:9", "*{id}.x", "-{id}.x", "{id}.0.0.1", "10.0.0.{id}", "b{id}.ünïcode", "b{id}/x", strings.Repeat("a", 60) + "{id}.x",
		"b{id}." + strings.Repeat("abcdefgh.", 30) + "x", "b{id}.\x00"} {
		if n, err := ParseNames(bad, 1); err == nil {
			t.Errorf("%q is taken: %v", bad, n)
		}
	}
	if _, err := ParseNames("b{id}.x", 0); err == nil {
		t.Error("port 0 is taken")
	}
}

// TestHostileNames: a broker has one name only.
func TestHostileNames(t *testing.T) {
	n := testNames(t)
	for _, name := range []string{"b.kafka.example.com", "b01.kafka.example.com", "b+1.kafka.example.com", "b-1.kafka.example.com",
		"b1.kafka.example.com.",
		"b1.kafka.example.comx", "xb1.kafka.example.com", "b2147483648.kafka.example.com", "b99999999999999999999.kafka.example.com",
		"b1 .kafka.example.com", "b1_0.kafka.example.com", "b0x1.kafka.example.com", "b1e1.kafka.example.com", "b١.kafka.example.com",
		"bb1.kafka.example.com",
		"b1.kafka.example.com.kafka.example.com", "", "b", ".kafka.example.com", "b.kafka.example.co", "b1\x00.kafka.example.com", "127.0.0.1"} {
		if id, ok := n.ID(name); ok {
			t.Errorf("%q is broker %d", name, id)
		}
	}
}

// FuzzNames: whatever stands for a broker is the name that this broker is given.
func FuzzNames(f *testing.F) {
	f.Add("b{id}.x", "b1.x")
	f.Add("{id}-a.b", "0-a.b")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		n, err := ParseNames(pattern, 1)
		if err != nil {
			return
		}
		if id, ok := n.ID(name); ok && (id < 0 || n.Of(id) != name) {
			t.Errorf("%q of %q is broker %d, whose name is %q", name, pattern, id, n.Of(id))
		}
	})
}
