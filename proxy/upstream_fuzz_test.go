package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// talking returns an upstream connection to a broker that says bytes, whatever it is asked, and hangs up. said is closed
// when it has.
func talking(ctx context.Context, bytes []byte) (u *upstream, said chan struct{}) {
	ours, theirs := net.Pipe()
	u, said = newUpstream(ctx, target{broker: 1}, ours), make(chan struct{})
	go func() {
		defer close(said)
		go io.Copy(io.Discard, theirs)
		_, _ = theirs.Write(bytes)
		theirs.Close()
	}()
	return u, said
}

// FuzzRelayReply lets a broker send anything as the reply to a forwarded request: the client gets that frame as it came
// when it is the one due, else at most a beginning of it, and never a byte of what follows.
func FuzzRelayReply(f *testing.F) {
	good := protocol.AppendResponse(nil, 9, kmsg.NewPtrMetadataResponse())
	f.Add(good, int32(9))
	f.Add(append(bytes.Clone(good), good...), int32(9))
	f.Add(good, int32(8))
	f.Add(good[:len(good)-1], int32(9))
	f.Add([]byte{0, 0, 0, 3, 0, 0, 0}, int32(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 9}, int32(9))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), int32(1))
	s := fuzzServer(f)
	f.Fuzz(func(t *testing.T, said []byte, corr int32) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		u, done := talking(ctx, said)
		ours, client := net.Pipe()
		c := newConn(s, s.cfg.Listeners[0], ours)
		c.ctx = ctx
		got := make(chan []byte)
		go func() {
			b, _ := io.ReadAll(client)
			got <- b
		}()
		u.inFlight.Add(1)
		err := u.relayReply(c, &entry{corr: corr, seq: 1})
		ours.Close()
		u.close()
		<-done
		relayed := <-got
		if ctx.Err() != nil {
			t.Fatal("it did not end")
		}
		if err != nil {
			if len(relayed) > 0 && (!bytes.HasPrefix(said, relayed) || len(relayed) >= frameSize(said)) {
				t.Fatalf("%v, and %x was relayed", err, relayed)
			}
			return
		}
		if len(relayed) != frameSize(said) || !bytes.HasPrefix(said, relayed) || u.inFlight.Load() != 0 ||
			int32(binary.BigEndian.Uint32(relayed[4:])) != corr {
			t.Fatalf("relayed %x of %x for correlation id %d", relayed, said, corr)
		}
	})
}

// frameSize is that of the first frame, its prefix included.
func frameSize(b []byte) int { return int(int32(binary.BigEndian.Uint32(b))) + 4 }

// FuzzAsk lets a broker send anything as the answer to a request of our own, for each request that we send: what is
// accepted is the answer to it, in its version, and is put into a client's answer without harm.
func FuzzAsk(f *testing.F) {
	const corr = 0x6b6d
	for n := range uint8(len(ownRequests())) {
		req := ownRequests()[n]
		resp := req.ResponseKind()
		resp.SetVersion(req.GetVersion())
		good := protocol.AppendResponse(nil, corr, resp)
		f.Add(n, good)
		f.Add(n, good[:len(good)-1])
		f.Add(n, protocol.AppendResponse(nil, corr+1, resp))
	}
	offsets := offsetScript(f, map[int64]int64{-2: 12}, 65)(protocol.RequestHeader{Key: 2, Version: 7}, ownRequests()[0].AppendTo(nil))
	offsets.SetVersion(7)
	f.Add(uint8(0), protocol.AppendResponse(nil, corr, offsets))
	s := fuzzServer(f)
	f.Fuzz(func(t *testing.T, n uint8, said []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		req := ownRequests()[int(n)%len(ownRequests())]
		u, done := talking(ctx, said)
		u.wg.Go(func() { u.run(s, nil) })
		resp, err := u.ask(ctx, s, req, 0)
		u.close()
		<-done
		switch {
		case ctx.Err() != nil:
			t.Fatal("it did not end")
		case (resp == nil) != (err != nil):
			t.Fatalf("%v next to %v", resp, err)
		case err != nil:
			return
		case resp.Key() != req.Key() || resp.GetVersion() != req.GetVersion() || frameSize(said) > len(said):
			t.Fatalf("%s v%d was answered with %T v%d", kmsg.NameForKey(req.Key()), req.GetVersion(), resp, resp.GetVersion())
		}
		merged(t, req, resp)
	})
}

// ownRequests are requests as the proxy sends them on its own account.
func ownRequests() []kmsg.Request {
	list := listRequest(7, debugReplica, 0, "m", -2)
	fetch := fetchRequest(redirectVersion, "m", 20)
	producers := kmsg.NewPtrDescribeProducersRequest()
	topic := kmsg.NewDescribeProducersRequestTopic()
	topic.Topic, topic.Partitions = "m", []int32{0}
	producers.Topics = append(producers.Topics, topic)
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.Version = 3
	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.Version = 4
	return []kmsg.Request{list, fetch, producers, versions, configs, kmsg.NewPtrDescribeClusterRequest()}
}

// merged does what is done to an answer before a client gets it, and checks that it answers what was asked and no more.
func merged(t *testing.T, req kmsg.Request, answer kmsg.Response) {
	switch answer := answer.(type) {
	case *kmsg.FetchResponse:
		resp := kmsg.NewPtrFetchResponse()
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.Partitions = "m", []kmsg.FetchResponseTopicPartition{kmsg.NewFetchResponseTopicPartition()}
		resp.Topics = append(resp.Topics, rt)
		mergeFetch(resp, req.(*kmsg.FetchRequest), answer)
		p := resp.Topics[0].Partitions
		if len(resp.Topics) != 1 || len(p) != 1 || p[0].Partition != 0 || p[0].PreferredReadReplica != -1 {
			t.Fatalf("merged into %+v", resp)
		}
	case *kmsg.DescribeProducersResponse:
		resp := kmsg.NewPtrDescribeProducersResponse()
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = "m"
		rt.Partitions = []kmsg.DescribeProducersResponseTopicPartition{kmsg.NewDescribeProducersResponseTopicPartition()}
		resp.Topics = append(resp.Topics, rt)
		mergeProducers(resp, answer)
		if p := resp.Topics[0].Partitions; len(p) != 1 || p[0].Partition != 0 || p[0].ErrorCode == codeNotLeader {
			t.Fatalf("merged into %+v", resp)
		}
	case *kmsg.ApiVersionsResponse:
		for _, k := range protocol.ApiVersions(3, answer.ApiKeys, false).ApiKeys {
			if api, ok := protocol.LookupAPI(k.ApiKey); !ok || api.Role == protocol.Hidden || k.MinVersion > k.MaxVersion {
				t.Fatalf("shows key %d, versions %d to %d", k.ApiKey, k.MinVersion, k.MaxVersion)
			}
		}
	}
}
