package proxy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

var discard = slog.New(slog.DiscardHandler)

// through passes a reply frame with size prefix through f as the writer of a connection does, and returns what the client gets.
func through(t testing.TB, f *front, wire []byte, key, version int16) ([]byte, error) {
	t.Helper()
	broker, up := net.Pipe()
	client, down := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &Server{cfg: Config{MaxFrame: protocol.DefaultMaxFrame, IdleTimeout: 10 * time.Second}, log: discard}
	c := &conn{s: s, nc: down, ctx: ctx}
	u := newUpstream(ctx, target{broker: 1}, up)
	defer u.close()
	go func() {
		broker.Write(wire)
		broker.Close()
	}()
	got := make(chan []byte)
	go func() {
		var b bytes.Buffer
		b.ReadFrom(client)
		got <- b.Bytes()
	}()
	err := u.relayReply(c, &entry{up: u, corr: 5, edit: f.editOf(key, version)})
	down.Close()
	return <-got, err
}

func fetchReply(version int16, partitions, recordBytes int, brokers ...int32) *kmsg.FetchResponse {
	resp := kmsg.NewPtrFetchResponse()
	resp.Version, resp.SessionID = version, 7
	for i := range partitions {
		t := kmsg.NewFetchResponseTopic()
		t.TopicID = mirrorID
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.HighWatermark, p.PreferredReadReplica = int32(i), 10, 2
		p.RecordBatches = bytes.Repeat([]byte{byte(i), 0xfe}, recordBytes/2)
		a := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		p.AbortedTransactions = append(p.AbortedTransactions, a, a)
		p.CurrentLeader.LeaderID, p.DivergingEpoch.Epoch = 2, 3
		t.Partitions = append(t.Partitions, p, p)
		resp.Topics = append(resp.Topics, t)
	}
	for _, id := range brokers {
		b := kmsg.NewFetchResponseBroker()
		b.NodeID, b.Host, b.Port = id, leak, 9092
		resp.Brokers = append(resp.Brokers, b)
	}
	return resp
}

func shareReply(version int16, partitions, recordBytes int, brokers ...int32) *kmsg.ShareFetchResponse {
	resp := kmsg.NewPtrShareFetchResponse()
	resp.Version = version
	for i := range partitions {
		t, text := kmsg.NewShareFetchResponseTopic(), "text"
		p := kmsg.NewShareFetchResponseTopicPartition()
		p.Partition, p.ErrorMessage = int32(i), &text
		p.Records = bytes.Repeat([]byte{byte(i), 0xfe}, recordBytes/2)
		p.AcquiredRecords = append(p.AcquiredRecords, kmsg.NewShareFetchResponseTopicPartitionAcquiredRecord())
		t.Partitions = append(t.Partitions, p)
		resp.Topics = append(resp.Topics, t)
	}
	for _, id := range brokers {
		b := kmsg.NewShareFetchResponseNodeEndpoint()
		b.NodeID, b.Host, b.Port = id, leak, 9092
		resp.NodeEndpoints = append(resp.NodeEndpoints, b)
	}
	return resp
}

// https://github.com/kroxylicious/kroxylicious/issues/1028
func TestKroxylicious1028RecordsPassAndAddressesDoNot(t *testing.T) {
	f := testFront()
	many := make([]int32, 40)
	for i := range many {
		many[i] = int32(i%2) + 1
	}
	for name, brokers := range map[string][]int32{"none": nil, "one": {2}, "one outside": {77}, "some": {1, 77, 9001}, "many": many} {
		for _, size := range []int{0, 100, 60 << 10} {
			for version := int16(12); version <= 18; version++ {
				passes(t, f, fmt.Sprintf("Fetch v%d, %d bytes, %s", version, size, name), fetchReply(version, 3, size, brokers...), brokers, size < 10<<10)
			}
			for version := range int16(3) {
				passes(t, f, fmt.Sprintf("ShareFetch v%d, %d bytes, %s", version, size, name), shareReply(version, 3, size, brokers...), brokers, size < 10<<10)
			}
		}
	}
}

// passes sends a reply through and compares everything but the addresses.
func passes(t *testing.T, f *front, name string, resp kmsg.Response, brokers []int32, exact bool) {
	t.Helper()
	key, version := resp.Key(), resp.GetVersion()
	wire := protocol.AppendResponse(nil, 5, resp)
	got, err := through(t, f, wire, key, version)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(brokers) == 0 && !bytes.Equal(got, wire) {
		t.Fatalf("%s: bytes were changed", name)
	}
	if bytes.Contains(got, []byte(leak)) {
		t.Errorf("%s: the address is still there", name)
	}
	frame, err := protocol.ReadFrame(bytes.NewReader(got), protocol.DefaultMaxFrame, nil)
	if err != nil || len(frame)+4 != len(got) {
		t.Fatalf("%s: a frame of %d in %d bytes, %v", name, len(frame), len(got), err)
	}
	_, body, err := protocol.ParseResponseHeader(key, version, frame)
	if err != nil {
		t.Fatal(err)
	}
	back := kmsg.ResponseForKey(key)
	back.SetVersion(version)
	if err := back.ReadFrom(body); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	named := 0
	switch r := back.(type) {
	case *kmsg.FetchResponse:
		named, r.Brokers = len(r.Brokers), nil
		resp.(*kmsg.FetchResponse).Brokers, r.UnknownTags = nil, kmsg.Tags{}
	case *kmsg.ShareFetchResponse:
		named, r.NodeEndpoints = len(r.NodeEndpoints), nil
		resp.(*kmsg.ShareFetchResponse).NodeEndpoints, r.UnknownTags = nil, kmsg.Tags{}
	}
	if !bytes.Equal(back.AppendTo(nil), resp.AppendTo(nil)) {
		t.Errorf("%s: the records or what belongs to them changed", name)
	}
	want := 0
	for _, id := range brokers {
		if _, ok := f.PortOf(id); ok && exact {
			want++
		}
	}
	if named != want && (exact || len(wire) > heldBack) {
		t.Errorf("%s: %d addresses, want %d", name, named, want)
	}
}

func TestBlankTags(t *testing.T) {
	for n := 3; n < 70_000; n++ {
		if n > 300 && n < 16_000 || n > 17_000 && n%997 != 0 {
			continue
		}
		b, err := appendBlank(nil, n)
		if err != nil || len(b) != n {
			t.Fatalf("%d bytes: got %d, %v", n, len(b), err)
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = 16
		head := resp.AppendTo(nil)
		if err := resp.ReadFrom(append(head[:len(head)-1:len(head)-1], b...)); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// FuzzPassRecords: whatever a broker sends, no address of it gets through in a reply that can be read, and nothing hangs.
func FuzzPassRecords(f *testing.F) {
	for _, seed := range []kmsg.Response{fetchReply(16, 1, 10, 1, 77), fetchReply(18, 2, 200_000, 1), fetchReply(17, 0, 0)} {
		f.Add(protocol.AppendResponse(nil, 5, seed), false)
	}
	f.Add(protocol.AppendResponse(nil, 5, shareReply(2, 1, 10, 2)), true)
	f.Fuzz(func(t *testing.T, wire []byte, share bool) {
		key, version := int16(keyFetch), int16(17)
		if share {
			key, version = keyShareFetch, 2
		}
		got, err := through(t, testFront(), wire, key, version)
		if err != nil {
			return
		}
		_, body, err := protocol.ParseResponseHeader(key, version, got[4:])
		resp := kmsg.ResponseForKey(key)
		resp.SetVersion(version)
		if err != nil || resp.ReadFrom(body) != nil {
			return
		}
		switch r := resp.(type) {
		case *kmsg.FetchResponse:
			for _, b := range r.Brokers {
				if b.Host != testFront().AdvertisedHost {
					t.Errorf("address %q", b.Host)
				}
			}
		case *kmsg.ShareFetchResponse:
			for _, b := range r.NodeEndpoints {
				if b.Host != testFront().AdvertisedHost {
					t.Errorf("address %q", b.Host)
				}
			}
		}
	})
}
