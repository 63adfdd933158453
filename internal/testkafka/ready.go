package testkafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	pollInterval = 50 * time.Millisecond
	askLimit     = 2 * time.Second
	startedLine  = "Kafka Server started"
)

// poll calls f until it returns true or an error.
func poll(ctx context.Context, f func() (bool, error)) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ready waits until the node has started and, if it is a broker, has all of the given brokers in its metadata, which
// lists unfenced ones only. A secure cluster is asked as its admin; nodes that can't be asked are ready
// once they say that they have started.
func (n *Node) ready(ctx context.Context, brokers []int32) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		if p := n.process(); p == nil {
			return false, errors.New("ended")
		} else if state, ended := p.exited(); ended {
			return false, errors.New("ended: " + state)
		}
		started, err := n.hasStarted()
		if err != nil || !started {
			return false, err
		}
		if n.Controller {
			if last = n.askQuorum(ctx); last != nil {
				return false, nil
			}
		}
		if n.Broker {
			last = n.askBrokers(ctx, brokers)
		}
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("%v is not ready: %w\n%s", n, errors.Join(err, last), n.tail())
}

// hasStarted reports whether the present process has logged the end of its start-up.
func (n *Node) hasStarted() (bool, error) {
	n.mu.Lock()
	pos := n.logPos
	n.mu.Unlock()
	f, err := os.Open(n.Log())
	if err != nil {
		return false, err
	}
	defer f.Close()
	if _, err := f.Seek(pos, io.SeekStart); err != nil {
		return false, err
	}
	text, err := io.ReadAll(f)
	return strings.Contains(string(text), n.started()), err
}

// askBrokers returns nil once the node's metadata names all of the given brokers.
func (n *Node) askBrokers(ctx context.Context, want []int32) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	for _, name := range n.cluster.opts.Listeners {
		opts, ok := n.credentials(name)
		if !ok {
			continue
		}
		resp, err := ask(ctx, n.Addr(name), req, opts...)
		if err != nil {
			return err
		}
		return n.knows(resp.(*kmsg.MetadataResponse), want)
	}
	return nil
}

// knows returns nil when the node's metadata names all of the given brokers.
func (n *Node) knows(meta *kmsg.MetadataResponse, want []int32) error {
	for _, id := range want {
		if !slices.ContainsFunc(meta.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == id }) {
			return fmt.Errorf("broker %d is not in the metadata of %d", id, n.ID)
		}
	}
	return nil
}

// askQuorum returns nil once the controller knows the quorum's leader.
func (n *Node) askQuorum(ctx context.Context) error {
	opts, ok := n.credentials(ControllerListener)
	if !ok {
		return nil
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	p := kmsg.NewDescribeQuorumRequestTopicPartition()
	t := kmsg.NewDescribeQuorumRequestTopic()
	t.Topic, t.Partitions = "__cluster_metadata", append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask(ctx, n.Addr(ControllerListener), req, opts...)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.DescribeQuorumResponse).Topics {
		for _, p := range t.Partitions {
			// Only the leader knows more; NOT_LEADER_OR_FOLLOWER of others comes with the leader's id.
			if p.LeaderID >= 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("controller %d knows no leader of the quorum", n.ID)
}

// protocol is the security protocol of a listener of the node, "" when it has none of that name.
func (n *Node) protocol(listener string) string {
	for m := range strings.SplitSeq(n.properties["listener.security.protocol.map"], ",") {
		if name, protocol, _ := strings.Cut(strings.TrimSpace(m), ":"); name == listener {
			return protocol
		}
	}
	return ""
}

// ask sends one request to one address.
func ask(ctx context.Context, addr string, req kmsg.Request, opts ...kgo.Opt) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(addr), kgo.DialTimeout(askLimit))...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return cl.SeedBrokers()[0].Request(ctx, req)
}

// tail is the end of the node's log, for messages.
func (n *Node) tail() string {
	const lines = 12
	text, err := os.ReadFile(n.Log())
	if err != nil {
		return err.Error()
	}
	return n.Log() + " ends:\n" + lastLines(string(text), lines)
}
