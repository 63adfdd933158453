package kraft

import (
	"fmt"
	"maps"
	"slices"

	"kmirror/protocol"
)

// maxPending bounds the records held back by an open metadata transaction; Kafka splits far below that.
const maxPending = 1 << 20

// Empty returns the image before the first record, which a snapshot is applied to as well.
func Empty() *Image {
	return &Image{
		Offset: -1, Epoch: -1,
		Topics: map[protocol.UUID]*Topic{}, Names: map[string]protocol.UUID{}, Brokers: map[int32]*Broker{},
		Configs: map[ConfigResource]map[string]string{}, Features: map[string]int16{},
	}
}

// Apply returns the image after the records of one batch, whose last offset is offset and leader epoch epoch. For
// batches of a snapshot offset is the snapshot's end offset minus 1, since those in the file count from 0. The values
// must be committed and in order; i stays as it was and shares with the result what the records did not touch: each
// topic touched is copied once per Apply, each partition once per change.
//
// Records of a metadata transaction (KIP-868) are held back, over several calls if need be, until its end record, and
// dropped on abort; Offset moves on meanwhile. Errors wrap ErrRecord and leave i usable; the log can't be followed any
// further then.
func (i *Image) Apply(offset int64, epoch int32, values [][]byte) (*Image, error) {
	d := newDelta(i)
	for n, v := range values {
		rec, err := DecodeRecord(v)
		if err == nil && rec != nil {
			err = d.apply(rec)
		}
		if err != nil {
			return nil, fmt.Errorf("record %d of the batch that ends at offset %d: %w", n, offset, err)
		}
	}
	d.next.Offset, d.next.Epoch = offset, epoch
	return d.next, nil
}

// InTransaction reports whether records are held back by an open metadata transaction.
func (i *Image) InTransaction() bool { return i.open }

// delta builds the next image. own notes which maps and topics are already copies of ours.
type delta struct {
	next *Image
	own  struct {
		topicMap, names, brokers, configs, features, pending bool
		topics                                               map[protocol.UUID]bool
		resources                                            map[ConfigResource]bool
	}
}

func newDelta(i *Image) *delta {
	next := *i
	d := &delta{next: &next}
	d.own.topics, d.own.resources = map[protocol.UUID]bool{}, map[ConfigResource]bool{}
	return d
}

// apply deals with transaction records and holds back what a transaction encloses.
func (d *delta) apply(rec Record) error {
	n := d.next
	switch rec.(type) {
	case *BeginTransactionRecord:
		if n.open {
			return fmt.Errorf("%w: a metadata transaction begins within another", ErrRecord)
		}
		n.open, n.pending = true, nil
		return nil
	case *EndTransactionRecord, *AbortTransactionRecord:
		if !n.open {
			return fmt.Errorf("%w: a metadata transaction ends that did not begin", ErrRecord)
		}
		held := n.pending
		n.open, n.pending = false, nil
		if _, abort := rec.(*AbortTransactionRecord); abort {
			return nil
		}
		for _, r := range held {
			if err := d.replay(r); err != nil {
				return err
			}
		}
		return nil
	}
	if !n.open {
		return d.replay(rec)
	}
	if len(n.pending) >= maxPending {
		return fmt.Errorf("%w: a metadata transaction holds more than %d records", ErrRecord, maxPending)
	}
	if !d.own.pending {
		n.pending, d.own.pending = slices.Clone(n.pending), true
	}
	n.pending = append(n.pending, rec)
	return nil
}

func (d *delta) replay(rec Record) error {
	switch r := rec.(type) {
	case *TopicRecord:
		return d.topic(r)
	case *PartitionRecord:
		return d.partition(r)
	case *PartitionChangeRecord:
		return d.partitionChange(r)
	case *RemoveTopicRecord:
		return d.removeTopic(r)
	case *ClearElrRecord:
		return d.clearElr(r)
	case *RegisterBrokerRecord:
		d.register(r)
	case *UnregisterBrokerRecord:
		d.ownBrokers()
		delete(d.next.Brokers, r.BrokerID)
	case *FenceBrokerRecord:
		return d.changeBroker(r.BrokerID, r.Epoch, func(b *Broker) { b.Fenced = true })
	case *UnfenceBrokerRecord:
		return d.changeBroker(r.BrokerID, r.Epoch, func(b *Broker) { b.Fenced = false })
	case *BrokerRegistrationChangeRecord:
		return d.registrationChange(r)
	case *ConfigRecord:
		d.config(r)
	case *FeatureLevelRecord:
		if !d.own.features {
			d.next.Features, d.own.features = cloneMap(d.next.Features), true
		}
		if r.Level == 0 {
			delete(d.next.Features, r.Name)
		} else {
			d.next.Features[r.Name] = r.Level
		}
	}
	return nil
}

func (d *delta) ownNames() {
	if !d.own.names {
		d.next.Names, d.own.names = cloneMap(d.next.Names), true
	}
}

func (d *delta) setTopic(t *Topic) {
	if !d.own.topicMap {
		d.next.Topics, d.own.topicMap = cloneMap(d.next.Topics), true
	}
	d.next.Topics[t.ID], d.own.topics[t.ID] = t, true
}

// ownTopic returns a topic whose struct, slice and map may be written to.
func (d *delta) ownTopic(id protocol.UUID) (*Topic, error) {
	t := d.next.Topics[id]
	if t == nil {
		return nil, fmt.Errorf("%w: topic id %s is not there", ErrRecord, id)
	}
	if d.own.topics[id] {
		return t, nil
	}
	t = &Topic{ID: t.ID, Name: t.Name, Partitions: slices.Clone(t.Partitions), early: maps.Clone(t.early)}
	d.setTopic(t)
	return t, nil
}

func (d *delta) topic(r *TopicRecord) error {
	if _, ok := d.next.Topics[r.ID]; ok {
		return fmt.Errorf("%w: topic id %s of %q is there already", ErrRecord, r.ID, r.Name)
	}
	if id, ok := d.next.Names[r.Name]; ok {
		return fmt.Errorf("%w: topic %q is there already with id %s", ErrRecord, r.Name, id)
	}
	d.setTopic(&Topic{ID: r.ID, Name: r.Name})
	d.ownNames()
	d.next.Names[r.Name] = r.ID
	return nil
}

// partition adds or replaces a partition. The log has new ones in ascending order; a snapshot has them in the order
// of a hash map, spread over batches, so one that comes too early waits aside and Partitions never has a hole.
func (d *delta) partition(r *PartitionRecord) error {
	t, err := d.ownTopic(r.TopicID)
	if err != nil {
		return err
	}
	if r.PartitionID < 0 {
		return fmt.Errorf("%w: partition number %d of %q", ErrRecord, r.PartitionID, t.Name)
	}
	p := r.Partition
	p.Directories = fitDirectories(p.Directories, len(p.Replicas))
	if int(r.PartitionID) < len(t.Partitions) {
		t.Partitions[r.PartitionID] = &p
		return nil
	}
	if t.early == nil {
		t.early = map[int32]*Partition{}
	}
	t.early[r.PartitionID] = &p
	for {
		n := int32(len(t.Partitions))
		q, ok := t.early[n]
		if !ok {
			return nil
		}
		t.Partitions = append(t.Partitions, q)
		delete(t.early, n)
	}
}

// partitionChange makes the partition's next registration: a leader named bumps the leader epoch even when it is the
// same one, and every change bumps the partition epoch.
func (d *delta) partitionChange(r *PartitionChangeRecord) error {
	old := d.next.Partition(protocol.PartitionID{Topic: r.TopicID, Partition: r.PartitionID})
	if old == nil {
		return fmt.Errorf("%w: partition %d of topic id %s is not there", ErrRecord, r.PartitionID, r.TopicID)
	}
	t, err := d.ownTopic(r.TopicID)
	if err != nil {
		return err
	}
	p := *old
	for _, f := range []struct {
		to   *[]int32
		from []int32
	}{
		{&p.ISR, r.ISR}, {&p.Replicas, r.Replicas}, {&p.Removing, r.Removing}, {&p.Adding, r.Adding},
		{&p.ELR, r.ELR}, {&p.LastKnownELR, r.LastKnownELR},
	} {
		if f.from != nil {
			*f.to = f.from
		}
	}
	if r.Leader != NoLeaderChange {
		p.Leader = r.Leader
		p.LeaderEpoch++
	}
	if r.LeaderRecoveryState != -1 {
		p.LeaderRecoveryState = r.LeaderRecoveryState
	}
	if r.Directories != nil {
		p.Directories = r.Directories
	}
	p.Directories = fitDirectories(p.Directories, len(p.Replicas))
	p.PartitionEpoch++
	t.Partitions[r.PartitionID] = &p
	return nil
}

// fitDirectories returns one directory id a replica. Where the record says nothing, or another number, all are the zero
// id, Kafka's DirectoryId.MIGRATING: not known yet.
func fitDirectories(dirs []protocol.UUID, replicas int) []protocol.UUID {
	if len(dirs) == replicas {
		return dirs
	}
	return make([]protocol.UUID, replicas)
}

func (d *delta) removeTopic(r *RemoveTopicRecord) error {
	t := d.next.Topics[r.ID]
	if t == nil {
		return fmt.Errorf("%w: topic id %s is removed but not there", ErrRecord, r.ID)
	}
	if !d.own.topicMap {
		d.next.Topics, d.own.topicMap = cloneMap(d.next.Topics), true
	}
	delete(d.next.Topics, r.ID)
	delete(d.own.topics, r.ID)
	d.ownNames()
	delete(d.next.Names, t.Name)
	d.dropConfigs(ConfigResource{ConfigTopic, t.Name})
	return nil
}

func (d *delta) clearElr(r *ClearElrRecord) error {
	if r.Topic == "" {
		for id := range d.next.Topics {
			if err := d.clearTopicElr(id); err != nil {
				return err
			}
		}
		return nil
	}
	id, ok := d.next.Names[r.Topic]
	if !ok {
		return fmt.Errorf("%w: ELR of topic %q is cleared, which is not there", ErrRecord, r.Topic)
	}
	return d.clearTopicElr(id)
}

// clearTopicElr bumps the partition epoch of every partition that has something to clear, as the controller does: it
// makes a partition change of it, though the log holds none.
func (d *delta) clearTopicElr(id protocol.UUID) error {
	clears := func(p *Partition) bool { return len(p.ELR)+len(p.LastKnownELR) > 0 }
	if !slices.ContainsFunc(d.next.Topics[id].Partitions, clears) {
		return nil
	}
	t, err := d.ownTopic(id)
	if err != nil {
		return err
	}
	for n, old := range t.Partitions {
		if clears(old) {
			p := *old
			p.ELR, p.LastKnownELR = []int32{}, []int32{}
			p.PartitionEpoch++
			t.Partitions[n] = &p
		}
	}
	return nil
}

func (d *delta) ownBrokers() {
	if !d.own.brokers {
		d.next.Brokers, d.own.brokers = cloneMap(d.next.Brokers), true
	}
}

func (d *delta) register(r *RegisterBrokerRecord) {
	d.ownBrokers()
	b := &Broker{ID: r.BrokerID, Epoch: r.Epoch, Incarnation: r.Incarnation, Fenced: r.Fenced,
		InControlledShutdown: r.InControlledShutdown, Endpoints: r.Endpoints,
		LogDirs: r.LogDirs, CordonedLogDirs: r.CordonedLogDirs}
	if r.Rack != nil {
		b.Rack = *r.Rack
	}
	d.next.Brokers[r.BrokerID] = b
}

// changeBroker changes a copy of a registration. A record for another registration of the same id is an error, as it
// is for Kafka: one must have been missed.
func (d *delta) changeBroker(id int32, epoch int64, change func(*Broker)) error {
	old := d.next.Brokers[id]
	switch {
	case old == nil:
		return fmt.Errorf("%w: broker %d changes but is not registered", ErrRecord, id)
	case old.Epoch != epoch:
		return fmt.Errorf("%w: broker %d changes at epoch %d but is registered with %d", ErrRecord, id, epoch, old.Epoch)
	}
	d.ownBrokers()
	b := *old
	change(&b)
	d.next.Brokers[id] = &b
	return nil
}

func (d *delta) registrationChange(r *BrokerRegistrationChangeRecord) error {
	if r.Fenced < -1 || r.Fenced > 1 || r.InControlledShutdown < 0 || r.InControlledShutdown > 1 {
		return fmt.Errorf("%w: broker %d changes to fenced %d, in controlled shutdown %d", ErrRecord, r.BrokerID,
			r.Fenced, r.InControlledShutdown)
	}
	return d.changeBroker(r.BrokerID, r.Epoch, func(b *Broker) {
		if r.Fenced != 0 {
			b.Fenced = r.Fenced == 1
		}
		if r.InControlledShutdown == 1 {
			b.InControlledShutdown = true
		}
		if len(r.LogDirs) > 0 {
			b.LogDirs = r.LogDirs
		}
		if r.CordonedLogDirs != nil {
			b.CordonedLogDirs = r.CordonedLogDirs
		}
	})
}

func (d *delta) ownConfigs() {
	if !d.own.configs {
		d.next.Configs, d.own.configs = cloneMap(d.next.Configs), true
	}
}

func (d *delta) dropConfigs(res ConfigResource) {
	if _, ok := d.next.Configs[res]; ok {
		d.ownConfigs()
		delete(d.next.Configs, res)
		delete(d.own.resources, res)
	}
}

func (d *delta) config(r *ConfigRecord) {
	d.ownConfigs()
	c := d.next.Configs[r.Resource]
	if !d.own.resources[r.Resource] {
		c = cloneMap(c)
		d.own.resources[r.Resource] = true
		d.next.Configs[r.Resource] = c
	}
	if r.Value != nil {
		c[r.Name] = *r.Value
		return
	}
	delete(c, r.Name)
	if len(c) == 0 {
		d.dropConfigs(r.Resource)
	}
}

// cloneMap is maps.Clone that gives a map to write to for nil too.
func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}
