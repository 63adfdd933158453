package proxy

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// A broker that follows by KIP-1279's version of Fetch does not ask for versions first. Clients do, and never learn of it.
func TestTheKIPsFetchVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.replicaFetch = emptyFetch
	replica := fetchRequest(protocol.MirrorFetchVersion, "m", 20)
	replica.ReplicaState.ID = 1
	replica.Topics[0].Partitions[0].UnknownTags.Set(2, []byte{0, 0, 0, 5})
	c := w.dial()
	if resp := c.ask(replica).(*kmsg.FetchResponse); resp.ErrorCode != 0 || len(resp.Topics) != 0 {
		t.Errorf("a replica is answered %+v", resp)
	}
	versions, announced := kmsg.NewPtrApiVersionsRequest(), int16(-1)
	versions.Version = 4
	w.brokers[1].stop() // without a broker to ask there is what we know
	w.brokers[2].stop()
	w.brokers[3].stop()
	for _, k := range w.dial().ask(versions).(*kmsg.ApiVersionsResponse).ApiKeys {
		if k.ApiKey == keyFetch {
			announced = k.MaxVersion
		}
	}
	if announced != protocol.MirrorFetchVersion-1 {
		t.Errorf("Fetch is announced up to version %d: the next one may be Kafka's, with another layout", announced)
	}
	t.Run("another version 19", func(t *testing.T) {
		body := append(replica.AppendTo(nil), 1)
		if _, err := protocol.DecodeMirrorFetch(body); err == nil {
			t.Fatal("decoded")
		}
		h := protocol.RequestHeader{Key: keyFetch, Version: protocol.MirrorFetchVersion, CorrelationID: 1}
		frame := protocol.AppendRequestHeader([]byte{0, 0, 0, 0}, h)
		frame = append(frame, body...)
		frame[3] = byte(len(frame) - 4)
		c := w.dial()
		c.write(frame)
		c.closed()
	})
	t.Run("a client listener", func(t *testing.T) {
		c := newWorld(t, func(_ *world, cfg *Config) { cfg.Listeners[0].InterBroker = false }).dial()
		c.send(1, replica)
		c.closed()
	})
}
