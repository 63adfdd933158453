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
// lists unfenced ones only. Nodes that speak no plaintext are taken as ready when they say that they have started.
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
	return strings.Contains(string(text), startedLine), err
}

// askBrokers returns nil once the node's metadata names all of the given brokers.
func (n *Node) askBrokers(ctx context.Context, want []int32) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	names := n.cluster.opts.Listeners
	i := slices.IndexFunc(names, n.plaintext)
	if i < 0 {
		return nil
	}
	resp, err := ask(ctx, n.Addr(names[i]), req)
	if err != nil {
		return err
	}
	for _, id := range want {
		if !slices.ContainsFunc(resp.(*kmsg.MetadataResponse).Brokers,
			func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == id }) {
			return fmt.Errorf("broker %d is not in the metadata of %d", id, n.ID)
		}
	}
	return nil
}

// askQuorum returns nil once the controller knows the quorum's leader.
func (n *Node) askQuorum(ctx context.Context) error {
	if !n.plaintext(ControllerListener) {
		return nil
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	p := kmsg.NewDescribeQuorumRequestTopicPartition()
	t := kmsg.NewDescribeQuorumRequestTopic()
	t.Topic, t.Partitions = "__cluster_metadata", append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask(ctx, n.Addr(ControllerListener), req)
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

// plaintext reports whether a listener of the node speaks without TLS and SASL.
func (n *Node) plaintext(listener string) bool {
	for m := range strings.SplitSeq(n.properties["listener.security.protocol.map"], ",") {
		if name, protocol, _ := strings.Cut(strings.TrimSpace(m), ":"); name == listener {
			return protocol == "PLAINTEXT"
		}
	}
	return false
}

// ask sends one request to one address.
func ask(ctx context.Context, addr string, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DialTimeout(askLimit))
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
