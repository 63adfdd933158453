package e2e

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sharersAreTold: a member of a share group that asks a broker which does not lead the partition, for records and with an acknowledgement,
// is told in both answers who does, by the gateway's address.
func sharersAreTold(t *testing.T, at string, topic [16]byte, leader int32, right string) {
	t.Helper()
	p, group, member := newRawPeer(t, at), "told", "AAAAAAAAAAAAAAAAAAAAAg"
	fetch := kmsg.NewPtrShareFetchRequest()
	fetch.Version, fetch.GroupID, fetch.MemberID, fetch.MaxWaitMillis, fetch.MaxBytes = 1, &group, &member, 500, 1<<20
	ft := kmsg.NewShareFetchRequestTopic()
	ft.TopicID, ft.Partitions = topic, append(ft.Partitions, kmsg.NewShareFetchRequestTopicPartition())
	fetch.Topics = append(fetch.Topics, ft)
	resp, err := p.ask(fetch)
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]int32{}
	fetched := resp.(*kmsg.ShareFetchResponse)
	for _, n := range fetched.NodeEndpoints {
		told[fmt.Sprintf("ShareFetch %s:%d", n.Host, n.Port)] = n.NodeID
	}
	ack := kmsg.NewPtrShareAcknowledgeRequest()
	ack.Version, ack.GroupID, ack.MemberID, ack.ShareSessionEpoch = 1, &group, &member, 1
	at2, ap, batch := kmsg.NewShareAcknowledgeRequestTopic(), kmsg.NewShareAcknowledgeRequestTopicPartition(),
		kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
	batch.AcknowledgeTypes = []int8{1}
	ap.AcknowledgementBatches = append(ap.AcknowledgementBatches, batch)
	at2.TopicID, at2.Partitions = topic, append(at2.Partitions, ap)
	ack.Topics = append(ack.Topics, at2)
	if resp, err = p.ask(ack); err != nil {
		t.Fatal(err)
	}
	acked := resp.(*kmsg.ShareAcknowledgeResponse)
	for _, n := range acked.NodeEndpoints {
		told[fmt.Sprintf("ShareAcknowledge %s:%d", n.Host, n.Port)] = n.NodeID
	}
	if len(told) != 2 || told["ShareFetch "+right] != leader || told["ShareAcknowledge "+right] != leader {
		t.Errorf("told of %v, want %d at %s in both\n%+v\n%+v", told, leader, right, fetched, acked)
	}
}
