package metasync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
	"kmirror/protocol"
	"kmirror/statemachine"
)

// job is one round of one mirror: what all its steps share.
type job struct {
	s   *Syncer
	w   *worker
	def coordinator.Mirror
	f   *filters.Filters
	log *slog.Logger
	// src and dst are admin clients of both sides, srcClient and dstClient what they wrap.
	src, dst             *kadm.Client
	srcClient, dstClient *kgo.Client
	// last, where it is not nil, are the topics of a promote whose groups are synced for the last time: only these count, and
	// they are at the end of a stop instead of mirroring.
	last []coordinator.Topic
}

// errWrongCluster: the source is not the cluster that the mirror was made for. Nothing of such a mirror is synced.
var errWrongCluster = errors.New("the source is another cluster")

// job begins a round. It makes sure that the source is the cluster that it should be, before anything else is asked of it.
func (w *worker) job(ctx context.Context, def coordinator.Mirror, f *filters.Filters) (*job, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	j := &job{s: w.s, w: w, def: def, f: f, log: w.s.log.With("mirror", w.name)}
	id, err := w.s.cfg.Mirrors.SourceCluster(ctx, w.name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the source does not answer: %w", err)
	case id != def.SourceClusterID:
		return nil, fmt.Errorf("%w: mirror %s was made for %s, bootstrap.servers lead to %s; nothing is synced until they lead back "+
			"(kmirror alter)", errWrongCluster, w.name, def.SourceClusterID, id)
	case id == w.s.cfg.Destination.ClusterID():
		return nil, fmt.Errorf("%w: it is the destination itself; delete the mirror", errWrongCluster)
	}
	if j.srcClient, err = w.s.cfg.Mirrors.SourceClient(w.name); err != nil {
		return nil, err
	}
	if j.dstClient, err = w.s.cfg.Mirrors.DestinationClient(); err != nil {
		return nil, err
	}
	j.src, j.dst = kadm.NewClient(j.srcClient), kadm.NewClient(j.dstClient)
	return j, nil
}

// stillSource makes sure that what this round has read came from the mirror's source, before anything is changed by it: a client goes to
// wherever the source's addresses lead when its brokers have died, also in the middle of a round. It does not come back by itself, so
// one that is right now was right all the time.
func (j *job) stillSource(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	resp, err := req.RequestWith(ctx, j.srcClient)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	switch {
	case err != nil:
		return fmt.Errorf("whether the source is still the same is not known: %w", err)
	case resp.ClusterID == nil || *resp.ClusterID != j.def.SourceClusterID:
		return fmt.Errorf("%w since the round began: nothing of it is synced", errWrongCluster)
	}
	return nil
}

// changed counts changes that were made at the destination.
func (j *job) changed(kind string, n int) {
	if n > 0 {
		j.s.cfg.Observer.SyncChanged(j.def.Name, kind, n)
	}
}

// skipped counts what was left out. reason is one of a few fixed words: it is a label of a metric.
func (j *job) skipped(kind, reason string, n int) {
	if n > 0 {
		j.s.cfg.Observer.SyncSkipped(j.def.Name, kind, reason, n)
	}
}

// known returns all topics of the mirror that exist at the destination, as they are stored now, by name.
func (j *job) known() map[string]coordinator.Topic {
	out := map[string]coordinator.Topic{}
	for _, t := range j.s.topics(j.def.Name) {
		if !t.TopicID.IsZero() {
			out[t.Name] = t
		}
	}
	return out
}

// wanted returns the topics that are to be mirrored: neither stopped nor paused, nor going round in a loop. A promote that waits for the
// source to rest may take long, and may end as a failover: until then its topics are kept in step.
func (j *job) wanted() map[string]coordinator.Topic {
	out := j.known()
	for name, t := range out {
		if t.Desired != statemachine.Mirroring && !t.Draining(j.s.cfg.Store.State) || j.w.looping[name] != "" {
			delete(out, name)
		}
	}
	return out
}

// flowing returns, by topic, the partitions whose log holds what the source's does: group offsets mean the same on both sides. In the
// last round of a promote these are all partitions of its topics.
//
// Asked again before each write it tells whether the topic may still be touched: none of a topic that was stopped or paused is there.
func (j *job) flowing() map[string][]int32 {
	out := map[string][]int32{}
	if j.last != nil {
		known := j.known()
		for _, t := range j.last {
			now, ok := known[t.Name]
			if !ok || now.TopicID != t.TopicID || !now.Draining(j.s.cfg.Store.State) || !j.locked(t.Name) {
				continue // it may be its consumers' by now
			}
			for p := range t.Partitions {
				out[t.Name] = append(out[t.Name], p)
			}
		}
		return out
	}
	for name, t := range j.wanted() {
		for p := range t.Partitions {
			if j.s.mirroring(t, p) {
				out[name] = append(out[name], p)
			}
		}
	}
	return out
}

// locked reports whether no client can write to a topic of the destination.
func (j *job) locked(topic string) bool {
	size, _ := j.s.cfg.Destination.Image().TopicConfig(topic, filters.SizeConfig)
	return size == "0"
}

// epoch returns the destination's leader epoch (DLE) of a partition, -1 where it is not known.
func (j *job) epoch(topic string, partition int32) int32 {
	img := j.s.cfg.Destination.Image()
	t := img.TopicByName(topic)
	if t == nil {
		return -1
	}
	if p := img.Partition(protocol.PartitionID{Topic: t.ID, Partition: partition}); p != nil {
		return p.LeaderEpoch
	}
	return -1
}
