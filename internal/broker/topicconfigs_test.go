package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// altered answers a change of configs; topics with "bad" in their names fail.
func altered(r *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	for _, t := range r.Resources {
		x := kmsg.NewIncrementalAlterConfigsResponseResource()
		x.ResourceType, x.ResourceName = t.ResourceType, t.ResourceName
		if strings.Contains(t.ResourceName, "bad") {
			x.ErrorCode = kerr.InvalidConfig.Code
		}
		resp.Resources = append(resp.Resources, x)
	}
	return resp
}

// waitingConfigs waits until n changes wait for the one that is under way.
func waitingConfigs(t *testing.T, b *Broker, n int) {
	t.Helper()
	eventually(t, 10*time.Second, "changes wait", func() error {
		b.configs.mu.Lock()
		defer b.configs.mu.Unlock()
		if len(b.configs.waiting) != n {
			return fmt.Errorf("%d, want %d", len(b.configs.waiting), n)
		}
		return nil
	})
}

// What comes while a request is under way goes together, one change of each topic, and each gets the outcome of its own.
func TestTopicConfigsGoTogether(t *testing.T) {
	q := newFakeQuorum(t, 1)
	first, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.IncrementalAlterConfigsRequest)
		if !ok {
			return nil
		}
		once.Do(func() { close(first); <-release })
		return altered(r)
	}
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	topics := []string{"a", "b", "bad", "c", "c"}
	results := make(chan error, len(topics))
	var g sync.WaitGroup
	g.Go(func() {
		if err := b.SetTopicConfigs(t.Context(), "alone", map[string]string{"k": "v"}, []string{"old"}); err != nil {
			t.Error(err)
		}
	})
	<-first
	for _, name := range topics {
		g.Go(func() {
			err := b.SetTopicConfigs(t.Context(), name, map[string]string{"k": name}, nil)
			if name == "bad" != errors.Is(err, kerr.InvalidConfig) || name != "bad" && err != nil {
				t.Errorf("%s: %v", name, err)
			}
			results <- err
		})
	}
	waitingConfigs(t, b, len(topics))
	close(release)
	g.Wait()
	var sizes []int
	for _, r := range of[*kmsg.IncrementalAlterConfigsRequest](q) {
		sizes = append(sizes, len(r.Resources))
	}
	if fmt.Sprint(sizes) != "[1 4 1]" {
		t.Errorf("topics a request: %v", sizes)
	}
	if len(results) != len(topics) {
		t.Errorf("%d outcomes", len(results))
	}
}

// One who gives up waiting is not sent for; one who gives up while it sends for others takes nobody with it.
func TestTopicConfigsOutliveTheSender(t *testing.T) {
	q := newFakeQuorum(t, 1)
	blocked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	q.hook = func(_ int, req kmsg.Request) kmsg.Response {
		r, ok := req.(*kmsg.IncrementalAlterConfigsRequest)
		if !ok {
			return nil
		}
		once.Do(func() { close(blocked); <-release })
		return altered(r)
	}
	b, _ := startFake(t, fakeConfig(q, 9001))
	ready(t, b)
	var g sync.WaitGroup
	gone := func(ctx context.Context, topic string) {
		g.Go(func() {
			if err := b.SetTopicConfigs(ctx, topic, map[string]string{"k": "v"}, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", topic, err)
			}
		})
	}
	b.configs.turn <- struct{}{} // nobody sends
	ctx, giveUp := context.WithCancel(t.Context())
	gone(ctx, "gives up")
	waitingConfigs(t, b, 1)
	giveUp()
	waitingConfigs(t, b, 0)
	stays := &configChange{topic: "stays", done: make(chan error, 1)}
	b.configs.put(stays)
	ctx, giveUp = context.WithCancel(t.Context())
	gone(ctx, "sends")
	waitingConfigs(t, b, 2)
	<-b.configs.turn
	<-blocked
	giveUp()
	waitingConfigs(t, b, 1)
	close(release)
	if err := b.SetTopicConfigs(t.Context(), "next", map[string]string{"k": "v"}, nil); err != nil {
		t.Error(err)
	}
	if err := <-stays.done; err != nil {
		t.Error(err)
	}
	g.Wait()
	for _, r := range of[*kmsg.IncrementalAlterConfigsRequest](q) {
		for _, x := range r.Resources {
			if x.ResourceName == "gives up" {
				t.Error("sent for nobody")
			}
		}
	}
}
