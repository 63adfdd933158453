package e2e

import (
	"bytes"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Error codes that workers meet.
const (
	codeNotLeader               = 6
	codeCoordinatorNotAvailable = 15
	codeOffsetNotAvailable      = 78
)

const (
	// busyPartitions are the partitions of the topic "busy".
	busyPartitions = 8
	// mirrored is the topic that kmirror mirrors.
	mirrored           = "mirrored"
	mirroredPartitions = 4
)

// worker is a peer that produces to a partition and reads back what it wrote, asks for the mirror topic and tries to write there, and checks
// each reply.
type worker struct {
	*peer
	door      door
	name      string
	partition int32
	n         int
	value     []byte
	offset    int64
	// redirected counts answers about the mirror topic that name the replica to read from, served those with its records.
	redirected, served int64
}

// round sends a row of requests and checks the replies.
func (w *worker) round() error {
	w.n++
	next := fmt.Appendf(nil, "%s/%d/%s", w.name, w.n, bytes.Repeat([]byte{'a' + byte(w.n%26)}, 1+w.n*37%2000))
	list, find := kmsg.NewPtrListOffsetsRequest(), kmsg.NewPtrFindCoordinatorRequest()
	for topic, partition := range map[string]int32{"busy": w.partition, mirrored: w.part()} {
		lt, lp := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
		lp.Partition, lp.Timestamp, lt.Topic = partition, -1, topic
		lt.Partitions = append(lt.Partitions, lp)
		list.Topics = append(list.Topics, lt)
	}
	list.Version = 7
	find.Version, find.CoordinatorKeys = 4, []string{w.name}
	type step struct {
		req   kmsg.Request
		check func(kmsg.Response) error
	}
	var steps []step
	if w.value != nil {
		for _, version := range []int16{4, 11, 12} {
			steps = append(steps, step{fetchOf(version, "busy", w.partition, w.offset, 1<<10), w.checkFetch})
		}
	}
	steps = append(steps, step{produceOf("busy", w.partition, -1, next), w.checkProduce}, step{metadataOf("busy", mirrored), w.checkMetadata},
		step{list, w.checkList}, step{find, w.checkFind}, step{mixedOf(w.partition, w.part(), -1), w.checkMixed})
	for _, version := range []int16{4, 12} {
		steps = append(steps, step{fetchOf(version, mirrored, w.part(), 0, 1<<10), w.checkMirrored})
	}
	reqs := make([]kmsg.Request, 0, len(steps)+1)
	for _, s := range steps {
		reqs = append(reqs, s.req)
	}
	if err := w.send(append(reqs, produceOf("busy", w.partition, 0, []byte("nothing")))...); err != nil {
		return err
	}
	for _, s := range steps {
		resp, err := w.next()
		if err == nil {
			err = s.check(resp)
		}
		if err != nil {
			return fmt.Errorf("%s at %+v, round %d: %w", w.name, w.door, w.n, err)
		}
	}
	w.value = next
	return nil
}

// part is the partition of the mirror topic that is asked for.
func (w *worker) part() int32 { return int32(w.n) % mirroredPartitions }

// mixedOf produces to a topic that may be written and to one that may not.
func mixedOf(busy, mirror int32, acks int16) *kmsg.ProduceRequest {
	req := produceOf("busy", busy, acks, []byte("beside what is refused"))
	req.Topics = append(req.Topics, produceOf(mirrored, mirror, acks, []byte("never")).Topics...)
	return req
}

func (w *worker) checkFetch(resp kmsg.Response) error {
	p, err := onlyFetched(resp)
	switch {
	case err != nil:
		return err
	case w.door.own && p.ErrorCode == codeNotLeader:
		return nil
	case w.door.own || p.ErrorCode != 0:
		return fmt.Errorf("fetch at %d: error %d", w.offset, p.ErrorCode)
	case !bytes.Contains(p.RecordBatches, w.value):
		return fmt.Errorf("fetch at %d: %d bytes without what was written there", w.offset, len(p.RecordBatches))
	}
	return nil
}

func onlyFetched(resp kmsg.Response) (*kmsg.FetchResponseTopicPartition, error) {
	r := resp.(*kmsg.FetchResponse)
	if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("fetch: error %d, %d topics", r.ErrorCode, len(r.Topics))
	}
	return &r.Topics[0].Partitions[0], nil
}

// checkMirrored: brokers have the records for clients that may read from followers, kmirror sends those there and reads for the others.
func (w *worker) checkMirrored(resp kmsg.Response) error {
	p, err := onlyFetched(resp)
	if err != nil {
		return err
	}
	old, records := resp.GetVersion() < 11, len(p.RecordBatches) > 0
	switch {
	case w.door.own && !old && p.ErrorCode == 0 && p.PreferredReadReplica == 1 && !records:
		w.redirected++
	case w.door.own == old && p.ErrorCode == 0 && records:
		w.served++
	case w.door.own && (p.ErrorCode == codeNotLeader || p.ErrorCode == codeOffsetNotAvailable): // the other id leads, or its followers are behind
	case !w.door.own && old && p.ErrorCode == codeNotLeader:
	default:
		return fmt.Errorf("fetch version %d of the mirror topic: error %d, replica %d, %d bytes", resp.GetVersion(), p.ErrorCode,
			p.PreferredReadReplica, len(p.RecordBatches))
	}
	return nil
}

func (w *worker) checkProduce(resp kmsg.Response) error {
	r := resp.(*kmsg.ProduceResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return fmt.Errorf("produce: %d topics", len(r.Topics))
	}
	p := r.Topics[0].Partitions[0]
	if p.ErrorCode != 0 || p.BaseOffset < w.offset {
		return fmt.Errorf("produce: error %d, offset %d after %d", p.ErrorCode, p.BaseOffset, w.offset)
	}
	w.offset = p.BaseOffset
	return nil
}

// checkMixed: the mirror topic is refused. A gateway has the rest written, a listener of kmirror's own nothing.
func (w *worker) checkMixed(resp kmsg.Response) error {
	r := resp.(*kmsg.ProduceResponse)
	if len(r.Topics) != 2 {
		return fmt.Errorf("mixed produce: %d topics", len(r.Topics))
	}
	for i := range r.Topics {
		want := int16(codePolicyViolation)
		if r.Topics[i].Topic == "busy" {
			if want = 0; w.door.first == 0 {
				want = codeNotLeader
			}
		}
		if got := r.Topics[i].Partitions[0].ErrorCode; got != want {
			return fmt.Errorf("mixed produce: %s got error %d, want %d", r.Topics[i].Topic, got, want)
		}
	}
	return nil
}

func (w *worker) checkMetadata(resp kmsg.Response) error {
	r := resp.(*kmsg.MetadataResponse)
	want := map[string]int{"busy": busyPartitions, mirrored: mirroredPartitions}
	for i := range r.Topics {
		if t := &r.Topics[i]; t.ErrorCode == 0 && t.Topic != nil && want[*t.Topic] == len(t.Partitions) {
			delete(want, *t.Topic)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("metadata: %+v", r.Topics)
	}
	for _, b := range r.Brokers {
		if addr := net.JoinHostPort(b.Host, fmt.Sprint(b.Port)); !w.door.told(addr) {
			return fmt.Errorf("metadata: broker %d is at %s", b.NodeID, addr)
		}
	}
	return nil
}

// checkList: who leads answers for a topic, and for the mirror topic that is kmirror.
func (w *worker) checkList(resp kmsg.Response) error {
	topics := resp.(*kmsg.ListOffsetsResponse).Topics
	if len(topics) != 2 {
		return fmt.Errorf("list offsets: %d topics", len(topics))
	}
	for i := range topics {
		p := topics[i].Partitions[0]
		leads := w.door.own == (topics[i].Topic == mirrored)
		switch {
		case leads && p.ErrorCode == 0 && p.Offset > 0, !leads && p.ErrorCode == codeNotLeader:
		case leads && w.door.own && (p.ErrorCode == codeNotLeader || p.ErrorCode == codeOffsetNotAvailable): // the other id leads
		default:
			return fmt.Errorf("list offsets: %s: error %d, offset %d", topics[i].Topic, p.ErrorCode, p.Offset)
		}
	}
	return nil
}

func (w *worker) checkFind(resp kmsg.Response) error {
	c := resp.(*kmsg.FindCoordinatorResponse).Coordinators
	if len(c) != 1 || c[0].Key != w.name || c[0].ErrorCode != 0 && c[0].ErrorCode != codeCoordinatorNotAvailable {
		return fmt.Errorf("find coordinator: %+v", c)
	}
	return nil
}
