package proxy

import (
	"fmt"
	"testing"
)

func TestAListenerIsNamedInTheLogAsOperatorsKnowIt(t *testing.T) {
	f := &front{}
	for want, l := range map[string]Listener{
		"[listener CLIENT node 9001]":         {Name: "CLIENT", NodeID: 9001},
		"[listener gateway CLIENT]":           {Name: "CLIENT", NodeID: noNode, front: f},
		"[listener gateway CLIENT node 9001]": {Name: "CLIENT", NodeID: 9001, front: f},
	} {
		if got := fmt.Sprint(l.logged()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
