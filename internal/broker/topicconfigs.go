package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// configsAtOnce bounds the topics in a request that changes configs: a controller writes what a request changes as one batch of at
// most 10,000 records.
const configsAtOnce = 1000

// topicConfigs sends changes of topic configs. A controller answers one request of a connection after the other, and commits each on
// its own, so changes that come while a request is under way go together in the next one.
type topicConfigs struct {
	turn chan struct{} // 1: a value is in it while somebody sends

	mu      sync.Mutex
	waiting []*configChange
}

type configChange struct {
	topic  string
	set    map[string]string
	remove []string
	done   chan error // buffered
}

func newTopicConfigs() *topicConfigs { return &topicConfigs{turn: make(chan struct{}, 1)} }

// SetTopicConfigs sets and removes dynamic configs of a topic, all or none of them.
func (b *Broker) SetTopicConfigs(ctx context.Context, topic string, set map[string]string, remove []string) error {
	q, c := b.configs, &configChange{topic: topic, set: set, remove: remove, done: make(chan error, 1)}
	q.put(c)
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		q.drop(c)
		return ctx.Err()
	case q.turn <- struct{}{}:
	}
	defer func() { <-q.turn }()
	select {
	case err := <-c.done: // by who had the turn before
		return err
	default:
	}
	batch := q.take(c)
	outcomes, err := b.alterConfigs(ctx, batch)
	for _, o := range batch {
		switch failed := outcomes[o.topic]; {
		case err == nil:
			o.done <- failed
		case o != c && ctx.Err() != nil:
			q.put(o) // our time is over, not theirs
		default:
			o.done <- err
		}
	}
	return <-c.done
}

func (q *topicConfigs) put(c *configChange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
}

// drop forgets a change that nobody waits for any more, unless it is under way.
func (q *topicConfigs) drop(c *configChange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(o *configChange) bool { return o == c })
}

// take returns what goes into one request: first, and of the others one of each topic.
func (q *topicConfigs) take(first *configChange) []*configChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch, topics := []*configChange{first}, map[string]bool{first.topic: true}
	q.waiting = slices.DeleteFunc(q.waiting, func(c *configChange) bool {
		if c != first && (topics[c.topic] || len(batch) == configsAtOnce) {
			return false
		}
		if c != first {
			batch, topics[c.topic] = append(batch, c), true
		}
		return true
	})
	return batch
}

// alterConfigs sends changes in one request and returns the outcome of each topic, or why there is none.
func (b *Broker) alterConfigs(ctx context.Context, batch []*configChange) (map[string]error, error) {
	kr, _, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		for _, c := range batch {
			req.Resources = append(req.Resources, c.resource())
		}
		return req
	})
	if err != nil {
		return nil, err
	}
	outcomes := map[string]error{}
	for _, c := range batch {
		outcomes[c.topic] = fmt.Errorf("configs of topic %s: %w", c.topic, errLeftOut)
	}
	for _, r := range kr.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		if outcomes[r.ResourceName] = codeError(r.ErrorCode, r.ErrorMessage); outcomes[r.ResourceName] != nil {
			outcomes[r.ResourceName] = fmt.Errorf("configs of topic %s: %w", r.ResourceName, outcomes[r.ResourceName])
		}
	}
	return outcomes, nil
}

var errLeftOut = errors.New("the controller left the topic out of its answer")

func (c *configChange) resource() kmsg.IncrementalAlterConfigsRequestResource {
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, c.topic
	for _, k := range slices.Sorted(maps.Keys(c.set)) {
		v := c.set[k]
		x := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		x.Name, x.Op, x.Value = k, kmsg.IncrementalAlterConfigOpSet, &v
		r.Configs = append(r.Configs, x)
	}
	for _, k := range c.remove {
		x := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		x.Name, x.Op = k, kmsg.IncrementalAlterConfigOpDelete
		r.Configs = append(r.Configs, x)
	}
	return r
}
