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
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.Version = 4
	for _, k := range c.ask(versions).(*kmsg.ApiVersionsResponse).ApiKeys {
		if k.ApiKey == keyFetch && k.MaxVersion >= protocol.MirrorFetchVersion {
			t.Errorf("Fetch is advertised up to version %d: its next version may be Kafka's, with another layout", k.MaxVersion)
		}
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
