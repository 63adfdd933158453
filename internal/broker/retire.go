package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kraft"
)

// unregisterTimeout bounds the unregistration of all node ids.
const unregisterTimeout = 30 * time.Second

// Retire makes the leaving at the end of Run for good: after the controlled shutdown the node ids' broker configs are
// removed and the ids are unregistered. Run's error says so where that could not be done. The caller has seen to it that no
// replica list names the ids any more: the controller unregisters a broker whatever it leads. An id that is named after all
// stays registered.
func (b *Broker) Retire() { b.retiring.Store(true) }

// unregister removes what the destination knows of the node ids. It outlives ctx. Doing it twice does no harm.
func (b *Broker) unregister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unregisterTimeout)
	defer cancel()
	var errs []error
	for _, m := range b.members {
		if n, first := namedIn(b.Image(), m.node.ID); n > 0 {
			errs = append(errs, fmt.Errorf("node id %d stays registered: %d partitions name it, %s among them; "+
				"start kmirror and retire it again", m.node.ID, n, first))
			continue
		}
		// Configs go first: the controller takes none for an id that it does not know.
		if err := b.removeBrokerConfigs(ctx, m.node.ID); err != nil {
			errs = append(errs, fmt.Errorf("broker configs of node id %d stay behind: %w", m.node.ID, err))
		}
		if err := b.unregisterNode(ctx, m.node.ID); err != nil {
			errs = append(errs, fmt.Errorf("node id %d stays registered, kafka-cluster unregister --id %d removes it: %w",
				m.node.ID, m.node.ID, err))
			continue
		}
		m.log.Info("unregistered")
	}
	return errors.Join(errs...)
}

// namedIn counts the partitions whose replica lists name an id, and names one: others may have placed it since all was
// handed back, where there is no cordon.
func namedIn(img *kraft.Image, id int32) (n int, first string) {
	for _, t := range img.Topics {
		for i, p := range t.Partitions {
			if slices.Contains(p.Replicas, id) {
				n, first = n+1, fmt.Sprintf("%s-%d", t.Name, i)
			}
		}
	}
	return n, first
}

// removeBrokerConfigs asks the controller, since a real broker refuses configs of any id but its own.
func (b *Broker) removeBrokerConfigs(ctx context.Context, id int32) error {
	name := strconv.Itoa(int(id))
	keys := slices.Sorted(maps.Keys(b.Image().Configs[kraft.ConfigResource{Type: kraft.ConfigBroker, Name: name}]))
	if len(keys) == 0 {
		return nil
	}
	kr, _, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, name
		for _, k := range keys {
			c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			c.Name, c.Op = k, kmsg.IncrementalAlterConfigOpDelete
			r.Configs = append(r.Configs, c)
		}
		req.Resources = append(req.Resources, r)
		return req
	})
	if err != nil {
		return err
	}
	for _, r := range kr.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		err = errors.Join(err, codeError(r.ErrorCode, r.ErrorMessage))
	}
	return err
}

// unregisterNode repeats the request until the controller says that the id is not registered any more.
func (b *Broker) unregisterNode(ctx context.Context, id int32) error {
	wait := backoff{min: 50 * time.Millisecond, max: time.Second}
	for {
		kr, _, err := b.ctl.insist(ctx, operatorTimeout, func() kmsg.Request {
			req := kmsg.NewPtrUnregisterBrokerRequest()
			req.BrokerID = id
			return req
		})
		if err != nil {
			return err
		}
		resp := kr.(*kmsg.UnregisterBrokerResponse)
		err = codeError(resp.ErrorCode, resp.ErrorMessage)
		switch {
		case err == nil, resp.ErrorCode == kerr.BrokerIDNotRegistered.Code:
			return nil
		case !kerr.IsRetriable(err):
			return err
		}
		if wait.wait(ctx) != nil {
			return err
		}
	}
}
