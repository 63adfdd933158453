package broker

import (
	"errors"
	"testing"
	"time"
)

func TestFencesItself(t *testing.T) {
	q := newFakeQuorum(t, 1)
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	b.WantFence("test")
	if err := b.Ready(); !errors.Is(err, ErrSelfFenced) {
		t.Errorf("ready at once: %v", err)
	}
	eventually(t, 10*time.Second, "fenced", func() error {
		if b.Nodes()[0].State != StateFenced || b.Ready() == nil || b.Current() != nil {
			return errors.New("not fenced")
		}
		return nil
	})
	b.ClearFence()
	ready(t, b)
}
