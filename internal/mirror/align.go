package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/coordinator"
	"kmirror/internal/replica"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/statemachine"
)

// alignEpoch is the last mirrored epoch (LME) to which a partition's replicas are aligned when its topic is started, -1 for none: a
// first mirror, or a start from scratch.
//
// What is stored as LME while a partition is PREPARING is this epoch too, or nothing for -1: start sees to that. A stop from
// PREPARING, also one by way of FAILED, must not store more: what replicas hold above it is the destination's own, and a source
// that mirrors back later would keep its own records there, under the same offsets. Storing nothing leaves it as it is.
func alignEpoch(t coordinator.Topic, partition int32) int32 {
	if int(partition) >= len(t.Align) {
		return -1
	}
	return max(t.Align[partition], -1)
}

// alignTo is the divergence that followers beyond it are told while PREPARING: the end of the LME in their own logs, the
// beginning where there is none.
func alignTo(t coordinator.Topic, partition int32) replica.Divergence {
	epoch := alignEpoch(t, partition)
	if epoch < 0 {
		return replica.Divergence{}
	}
	return replica.Divergence{Epoch: epoch, EndOffset: math.MaxInt64}
}

// RemoteState is the __mirror_state of a source; *coordinator.Snapshot.
type RemoteState interface {
	Mirrors() []coordinator.Mirror
	Topics() []coordinator.Topic
	State(id protocol.PartitionID) (coordinator.PartitionState, bool)
}

// RemoteAdmin is the admin listener of a source's kmirror; *admin.Client.
type RemoteAdmin interface {
	ListMirrors(ctx context.Context, withTopics bool) ([]admin.MirrorInfo, error)
	Describe(ctx context.Context, req admin.DescribeRequest) ([]admin.PartitionInfo, error)
	LastMirrorEpochs(ctx context.Context, sourceClusterID string, parts []protocol.PartitionID) (map[protocol.PartitionID]int32, error)
	Close()
}

// recallLimit bounds each of the two ways to ask a source what it remembers of us.
const recallLimit = 15 * time.Second

// readRemote reads the source's __mirror_state.
func readRemote(ctx context.Context, mirror coordinator.Mirror) (RemoteState, error) {
	opts, err := sourceOpts(mirror.Config, nil)
	if err != nil {
		return nil, err
	}
	s, err := coordinator.ReadSnapshot(ctx, opts, coordinator.DefaultTopic)
	if err != nil {
		return nil, err // and no interface around a nil pointer
	}
	return s, nil
}

// dialRemote makes a client of the source's kmirror, nil where the mirror does not say how it is reached. It connects nowhere.
func dialRemote(mirror coordinator.Mirror) (RemoteAdmin, error) {
	props := map[string]string{}
	for key, v := range mirror.Config {
		if name, ok := strings.CutPrefix(key, clientconf.RemoteAdminPrefix); ok {
			props[name] = v
		}
	}
	if len(props) == 0 {
		return nil, nil
	}
	addresses, err := clientconf.Servers(props["bootstrap.servers"])
	if err != nil {
		return nil, fmt.Errorf("%sbootstrap.servers: %w", clientconf.RemoteAdminPrefix, err)
	}
	conf := admin.ClientConfig{Addresses: addresses, ClientID: "kmirror"}
	if conf.TLS, err = clientconf.ClientTLS(props, nil); err != nil {
		return nil, fmt.Errorf("%s%w", clientconf.RemoteAdminPrefix, err)
	}
	return admin.NewClient(conf)
}

// memory is what a source remembers of us.
type memory struct {
	// epochs are the LMEs of partitions that are STOPPED there, by our topic ids.
	epochs map[protocol.PartitionID]int32
	// active says of topics, by name, that the source mirrors them from us, and how that stands.
	active map[string]string
	// unread is why nothing of that is known; nil where the source remembers nothing.
	unread error
}

// recall asks the source what it remembers of us, once for all topics of a start.
func (s *startRun) recall(ctx context.Context) memory {
	if s.memory != nil {
		return *s.memory
	}
	s.memory = &memory{epochs: map[protocol.PartitionID]int32{}, active: map[string]string{}}
	reading, cancel := context.WithTimeout(ctx, recallLimit)
	defer cancel()
	remote, err := s.m.cfg.ReadRemote(reading, s.mirror)
	switch {
	case err == nil:
		s.memory.read(remote, s.m.cfg.Destination.ClusterID(), func(t coordinator.Topic) bool {
			d, ok := s.source[t.Name]
			return ok && protocol.UUID(d.ID) == t.TopicID
		})
	case errors.Is(err, coordinator.ErrNoState):
	default:
		s.memory.unread = s.ask(ctx, err)
	}
	if s.memory.unread != nil {
		s.m.log.Warn("what the source remembers of this cluster is not known", "mirror", s.mirror.Name, "err", s.memory.unread)
	}
	return *s.memory
}

// read takes what a source's __mirror_state says of us. Topics of which live says no are gone from there, or were made anew.
func (mem *memory) read(remote RemoteState, ours string, live func(coordinator.Topic) bool) {
	fromUs := map[string]bool{}
	for _, d := range remote.Mirrors() {
		fromUs[d.Name] = d.SourceClusterID == ours
	}
	newest := map[protocol.UUID]coordinator.Topic{} // another mirror may have taken a topic over
	for _, t := range remote.Topics() {
		if now, ok := newest[t.TopicID]; live(t) && (!ok || t.Started.After(now.Started)) {
			newest[t.TopicID] = t
		}
	}
	for _, t := range newest {
		if !fromUs[t.Mirror] {
			continue
		}
		if t.Desired != statemachine.Stopped {
			mem.active[t.Name] = fmt.Sprintf("its mirror %s is to be %s", t.Mirror, t.Desired)
		}
		for p := range t.Partitions {
			st, ok := remote.State(protocol.PartitionID{Topic: t.TopicID, Partition: p})
			if !ok || st.Mirror != t.Mirror {
				st = coordinator.PartitionState{State: statemachine.Unknown, LastMirrorEpoch: -1}
			}
			mem.epochs[protocol.PartitionID{Topic: t.SourceTopicID, Partition: p}] = st.LastMirrorEpoch
			if st.State != statemachine.Stopped && mem.active[t.Name] == "" {
				mem.active[t.Name] = fmt.Sprintf("partition %d of its mirror %s is %s", p, t.Mirror, st.State)
			}
		}
	}
}

// ask is the KIP's way, where the source's state could not be read: the source's kmirror is asked. It returns why that did not
// help either.
func (s *startRun) ask(ctx context.Context, unread error) error {
	cl, err := s.m.cfg.DialRemote(s.mirror)
	if err != nil {
		return errors.Join(unread, err)
	}
	if cl == nil {
		return unread
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, recallLimit)
	defer cancel()
	if err := s.memory.ask(ctx, cl, s.m.cfg.Destination.ClusterID(), s.ours()); err != nil {
		return errors.Join(unread, fmt.Errorf("ask its kmirror: %w", err))
	}
	return nil
}

// ours are the partitions at the destination of all topics that are to start.
func (s *startRun) ours() []protocol.PartitionID {
	var out []protocol.PartitionID
	img := s.m.cfg.Destination.Image()
	for _, name := range s.names {
		if it := img.TopicByName(name); it != nil {
			for p := range it.Partitions {
				out = append(out, protocol.PartitionID{Topic: it.ID, Partition: int32(p)})
			}
		}
	}
	return out
}

// ask takes what a source's kmirror says of us.
func (mem *memory) ask(ctx context.Context, cl RemoteAdmin, ours string, parts []protocol.PartitionID) error {
	mirrors, err := cl.ListMirrors(ctx, false)
	if err != nil {
		return err
	}
	var fromUs []string
	for _, d := range mirrors {
		if d.SourceClusterID == ours {
			fromUs = append(fromUs, d.Mirror)
		}
	}
	if len(fromUs) == 0 {
		return nil
	}
	described, err := cl.Describe(ctx, admin.DescribeRequest{Mirrors: fromUs})
	if err != nil {
		return err
	}
	epochs, err := cl.LastMirrorEpochs(ctx, ours, parts)
	if err != nil {
		return err
	}
	for _, p := range described {
		if p.State != statemachine.Stopped.String() {
			mem.active[p.Topic] = fmt.Sprintf("partition %d of its mirror %s is %s", p.Partition, p.Mirror, p.State)
		}
	}
	for id, epoch := range epochs {
		mem.epochs[id] = epoch
	}
	return nil
}

// loop refuses a topic that the source mirrors from us.
func (mem memory) loop(name string) error {
	how := mem.active[name]
	if how == "" {
		return nil
	}
	return &admin.Error{Code: kip1279.InvalidRequest,
		Message: fmt.Sprintf("the source mirrors topic %s from here and is active: %s", name, how),
		Hint:    "stop it there first, with promote or failover", Exit: admin.ExitRefused}
}

// align returns the LMEs of a topic that is to be started, nil where nothing is remembered. known is what our mirrors remember of
// that name: where the topic was filled from elsewhere since, what the source remembers says nothing about what it holds now.
func (mem memory) align(t coordinator.Topic, known *coordinator.Topic) []int32 {
	if known != nil && known.TopicID == t.TopicID && known.SourceTopicID != t.SourceTopicID {
		return nil
	}
	out := make([]int32, t.Partitions)
	for p := range t.Partitions {
		epoch, ok := mem.epochs[protocol.PartitionID{Topic: t.TopicID, Partition: p}]
		if out[p] = -1; ok {
			out[p] = max(epoch, -1)
		}
	}
	if slices.Max(append(out, -1)) < 0 {
		return nil
	}
	return out
}

// permit refuses to truncate what has nothing in common with the source, as far as anybody remembers, unless --overwrite is given.
func (s *startRun) permit(t coordinator.Topic, held map[int32]extent) error {
	if s.req.Overwrite {
		return nil
	}
	for p := range t.Partitions {
		if held[p].end == 0 || alignEpoch(t, p) >= 0 {
			continue
		}
		e := &admin.Error{Code: kip1279.InconsistentTopicID, Exit: admin.ExitRefused, Hint: "--overwrite discards the destination's data",
			Message: fmt.Sprintf("topic %s exists at the destination, holds data, and is not known as this mirror's", t.Name)}
		if len(t.Align) > 0 {
			e.Message = fmt.Sprintf("the source mirrored topic %s from here, but nothing of partition %d, which holds data here", t.Name, p)
			e.Hint = "--overwrite discards such partitions; of the others it keeps what both sides have"
		}
		if why := s.memory.unread; why != nil {
			e.Message += fmt.Sprintf("; what the source remembers of it can't be read (%s)", strings.ReplaceAll(why.Error(), "\n", "; "))
			e.Hint = cmp.Or(hintOf(why), "grant DESCRIBE and READ on __mirror_state at the source, or give the address of its kmirror in "+
				clientconf.RemoteAdminPrefix+"bootstrap.servers") + "; --overwrite discards the destination's data"
		}
		return e
	}
	return nil
}

// hintOf returns the hint of an operator's error that is somewhere in err.
func hintOf(err error) string {
	if e := (*admin.Error)(nil); errors.As(err, &e) {
		return e.Hint
	}
	return ""
}
