package broker

import (
	"strings"
	"testing"
)

func TestConfigIsChecked(t *testing.T) {
	good := Listener{Name: "CLIENT", Host: "km1", Port: 9093}
	for want, cfg := range map[string]Config{
		"no node ids":          {Controllers: []string{"c:1"}},
		"no controllers":       {Nodes: []Node{{ID: 1, Listeners: []Listener{good}}}},
		"named twice":          {Controllers: []string{"c:1"}, Nodes: []Node{{ID: 1, Listeners: []Listener{good}}, {ID: 1, Listeners: []Listener{good}}}},
		"no client can reach":  {Controllers: []string{"c:1"}, Nodes: []Node{{ID: 1, Listeners: []Listener{{Name: "C", Host: "0.0.0.0", Port: 1}}}}},
		"has no port":          {Controllers: []string{"c:1"}, Nodes: []Node{{ID: 1, Listeners: []Listener{{Name: "C", Host: "h"}}}}},
		"on_evicted \"fight\"": {Controllers: []string{"c:1"}, OnEvicted: "fight", Nodes: []Node{{ID: 1, Listeners: []Listener{good}}}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
