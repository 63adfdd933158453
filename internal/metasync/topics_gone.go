package metasync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/coordinator"
	"kmirror/protocol"
)

// goneRounds is in how many rounds in a row a topic must be missing at the source before it counts as deleted there: a broker that
// has just started may not know all topics yet.
// Rounds follow each other closely where topics change, as they do when a broker restarts, so they must be goneFor apart as well.
const (
	goneRounds = 2
	goneFor    = 3 * time.Second
)

// absence is in how many rounds in a row a topic was missing, and since when.
type absence struct {
	rounds int
	since  time.Time
}

// missed counts a round in which a topic was missing at the source, and reports whether it counts as deleted by now.
func (w *worker) missed(topic protocol.UUID, now time.Time) bool {
	a := w.gone[topic]
	if a.rounds == 0 {
		a.since = now
	}
	a.rounds++
	w.gone[topic] = a
	return a.rounds >= goneRounds && now.Sub(a.since) >= goneFor
}

// remade reports whether a topic of the source has another id than the one that is mirrored. Brokers before Kafka 2.8 have none.
func remade(t coordinator.Topic, d kadm.TopicDetail) bool {
	id := protocol.UUID(d.ID)
	return !id.IsZero() && !t.SourceTopicID.IsZero() && id != t.SourceTopicID
}

// lost asks for topics by name that a listing did not hold, or held with another id, and returns why those that the source has no more
// are to end. One that may not be described is not in a listing either, and must not be taken for deleted; nor one that a single broker
// does not know: a broker that is cut off from its controllers goes on answering with what it knew.
func (j *job) lost(ctx context.Context, topics []coordinator.Topic) (map[string]string, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	byName := map[string]coordinator.Topic{}
	for _, t := range topics {
		byName[t.Name] = t
	}
	names := slices.Sorted(maps.Keys(byName))
	details, err := j.src.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("ask the source for topics that are missing: %w", err)
	}
	out := map[string]string{}
	var errs []error
	for _, name := range names {
		switch d, ok := details[name]; {
		case !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			out[name] = "the source's topic was deleted"
		case d.Err != nil:
			errs = append(errs, fmt.Errorf("topic %s at the source: %w", name, d.Err))
		case remade(byName[name], d):
			out[name] = fmt.Sprintf("the source's topic was deleted and made anew: its id was %s, is %s now", byName[name].SourceTopicID,
				protocol.UUID(d.ID))
		}
	}
	if len(out) == 0 {
		return nil, bounded(errs)
	}
	keepers, err := j.keepers(ctx, slices.Sorted(maps.Keys(out)), byName)
	if err != nil {
		return nil, errors.Join(bounded(errs), err)
	}
	for name, broker := range keepers {
		delete(out, name)
		errs = append(errs, fmt.Errorf("topic %s: broker %d of the source has it, and another broker does not know it; one of the two may be cut off "+
			"from its controllers", name, broker))
	}
	return out, bounded(errs)
}

// keepers asks every broker of the source for topics, and returns for those that one has as they are mirrored which one that is. Brokers
// that don't answer have nothing to say.
func (j *job) keepers(ctx context.Context, names []string, mirrored map[string]coordinator.Topic) (map[string]int32, error) {
	brokers, err := j.src.ListBrokers(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the source for its brokers: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var mu sync.Mutex
	out := map[string]int32{}
	var work errgroup.Group
	work.SetLimit(readsAtOnce)
	for _, id := range brokers.NodeIDs() {
		work.Go(func() error {
			req := kmsg.NewPtrMetadataRequest()
			for _, name := range names {
				t := kmsg.NewMetadataRequestTopic()
				t.Topic = kmsg.StringPtr(name)
				req.Topics = append(req.Topics, t)
			}
			r, err := j.srcClient.Broker(int(id)).Request(ctx, req)
			if err != nil {
				j.log.Debug("a broker of the source does not say whether it has topics that another one misses", "broker", id, "err", err)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, t := range r.(*kmsg.MetadataResponse).Topics {
				if t.Topic != nil && t.ErrorCode == 0 && !remade(mirrored[*t.Topic], kadm.TopicDetail{ID: t.TopicID}) {
					out[*t.Topic] = id
				}
			}
			return nil
		})
	}
	return out, work.Wait()
}
