package preflight

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// leastFetch is the version of Fetch from Kafka 2.1, the oldest that speaks of leader epochs wherever kmirror needs it.
const leastFetch = 10

// source looks at the cluster that is to be mirrored.
func (r *Report) source(ctx context.Context, c Config, destination string) error {
	cl, err := newClient(c.Source)
	if err != nil {
		return err
	}
	defer cl.Close()
	meta, err := r.brokers(ctx, "source", cl, nil)
	if err != nil {
		r.unreachable("source brokers", err)
		return nil
	}
	if meta.Cluster != "" && meta.Cluster == destination {
		r.add(Fail, "source cluster", "give bootstrap.servers of another cluster in the mirror's properties",
			"source and destination are one cluster, %s", destination)
	} else {
		r.ok("source cluster", "%s", meta.Cluster)
	}
	r.fetchVersion(ctx, cl)
	seen, err := topics(ctx, cl)
	if err != nil {
		r.unreachable("source topics", err)
		return nil
	}
	wanted := func(topic string) bool { return c.SourceFilters.DiscoversAny() && c.SourceFilters.Discovers(topic) }
	list := []topicRight{{kmsg.ACLOperationRead, "the topic is not mirrored"}, {kmsg.ACLOperationDescribeConfigs, "start fails"}}
	r.topicRights("source", mirrored(c, seen), list, wanted, Fail)
	r.rights(ctx, "source", cl, sourceRights)
	return nil
}

// mirrored leaves out topics that may not be mirrored.
func mirrored(c Config, seen map[string]seenTopic) map[string]seenTopic {
	out := map[string]seenTopic{}
	for name, t := range seen {
		if !c.SourceFilters.TopicExcluded(name) {
			out[name] = t
		}
	}
	return out
}

// brokers asks every broker that the cluster has for its versions, but for ids that are to be kmirror's: what an earlier run left of them
// is not a broker that fails.
func (r *Report) brokers(ctx context.Context, where string, cl *kgo.Client, ours []int32) (kadm.Metadata, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	meta, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return meta, err
	}
	asked, answered := 0, 0
	for _, b := range meta.Brokers {
		if slices.Contains(ours, b.NodeID) {
			continue
		}
		asked++
		if _, err := cl.Broker(int(b.NodeID)).Request(ctx, apiVersions()); err != nil {
			r.add(Fail, where+" brokers", "check that it runs, its advertised listener and the network from here",
				"broker %d at %s:%d gives no answer: %v", b.NodeID, b.Host, b.Port, err)
			continue
		}
		answered++
	}
	if answered > 0 {
		r.ok(where+" brokers", "%d of %d answer, cluster %s", answered, asked, meta.Cluster)
	}
	return meta, nil
}

// fetchVersion wants all that brokers say to be new enough.
func (r *Report) fetchVersion(ctx context.Context, cl *kgo.Client) {
	resp, err := ask[*kmsg.ApiVersionsResponse](ctx, cl, apiVersions())
	if err != nil {
		r.add(Warn, "source version", "ask again", "not known: %v", err)
		return
	}
	i := slices.IndexFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == int16(kmsg.Fetch) })
	if i < 0 || resp.ApiKeys[i].MaxVersion < leastFetch {
		r.add(Fail, "source version", "upgrade the source to Kafka 2.1 or newer", "its brokers are older than Kafka 2.1")
		return
	}
	r.ok("source version", "Fetch up to version %d", resp.ApiKeys[i].MaxVersion)
}
