package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sharerIsTold: a member of a share group that fetches from a broker which does not lead the partition is told who does, by that one's
// address at the gateway. Brokers name no address in answers to ShareAcknowledge (docs/kafka-facts.md).
func sharerIsTold(t *testing.T, wrong string, topic [16]byte, right string) {
	t.Helper()
	p, epoch := dialPeer(t, wrong), int32(0)
	eventually(t, 30*time.Second, "to be told of "+right, func() error {
		req := kmsg.NewPtrShareFetchRequest()
		req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch = 1, new("told"), new("AAAAAAAAAAAAAAAAAAAAAg"), epoch
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.MaxRecords, req.BatchSize = 500, 1, 1<<20, 1, 1
		ft := kmsg.NewShareFetchRequestTopic()
		ft.TopicID, ft.Partitions = topic, append(ft.Partitions, kmsg.NewShareFetchRequestTopicPartition())
		req.Topics = append(req.Topics, ft)
		resp, err := p.ask(req)
		if err != nil {
			t.Fatal(err)
		}
		epoch++
		told := resp.(*kmsg.ShareFetchResponse).NodeEndpoints
		if len(told) == 0 {
			return errors.New("of nobody") // the first answer only begins a session
		}
		if got := fmt.Sprintf("%s:%d", told[0].Host, told[0].Port); got != right || len(told) > 1 {
			t.Fatalf("told of %+v, want %s", told, right)
		}
		return nil
	})
}
