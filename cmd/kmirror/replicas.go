package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// replicas asks real brokers of the destination under kmirror's own principal, for clients that are logged in at another broker.
type replicas struct{ client *kgo.Client }

// newReplicas makes a client, which connects when it is first used.
func newReplicas(opts []kgo.Opt) (*replicas, error) {
	cl, err := kgo.NewClient(append(opts, kgo.DisableClientMetrics())...)
	return &replicas{cl}, err
}

// Ask sends a request to a broker.
func (r *replicas) Ask(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error) {
	return r.client.Broker(int(broker)).Request(ctx, req)
}
