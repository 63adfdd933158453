package protocol

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTheListIsKmsgs(t *testing.T) {
	list := APIs()
	if len(list) != kmsg.MaxKey+1 {
		t.Fatalf("%d rows, kmsg has %d keys", len(list), kmsg.MaxKey+1)
	}
	for i, api := range list {
		req := kmsg.RequestForKey(int16(i))
		if int(api.Key) != i || req == nil || api.Min != 0 || api.Max != req.MaxVersion() {
			t.Errorf("row %d is %+v, kmsg goes up to version %d", i, api, req.MaxVersion())
		}
		if got, ok := LookupAPI(int16(i)); !ok || got != api || api.Name == "" {
			t.Errorf("looked up: %+v, %v", got, ok)
		}
	}
	for _, key := range []int16{-1, 95, 30001} {
		if _, ok := LookupAPI(key); ok {
			t.Errorf("key %d is known", key)
		}
	}
	list[0].Name = "changed"
	if api, _ := LookupAPI(0); api.Name != "Produce" {
		t.Error("a caller can change the list")
	}
}

func realBroker(t *testing.T) []kmsg.ApiVersionsResponseApiKey {
	t.Helper()
	resp := &kmsg.ApiVersionsResponse{Version: 4}
	if err := resp.ReadFrom(golden(t, "apiversions_v4.bin")[8:]); err != nil {
		t.Fatal(err)
	}
	return resp.ApiKeys
}

func find(keys []kmsg.ApiVersionsResponseApiKey, key int16) (kmsg.ApiVersionsResponseApiKey, bool) {
	i := slices.IndexFunc(keys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == key })
	if i < 0 {
		return kmsg.ApiVersionsResponseApiKey{}, false
	}
	return keys[i], true
}

// Nothing a 4.4.0 broker offers to clients may be missing, or clients lose features by talking to us.
func TestApiVersionsOfARealBroker(t *testing.T) {
	broker := realBroker(t)
	got := ApiVersions(4, broker, true)
	if got.ErrorCode != 0 || got.Version != 4 || !reflect.DeepEqual(got.ApiKeys, broker) {
		t.Errorf("inter-broker listener: got %v\nwant %v", got.ApiKeys, broker)
	}
	client := ApiVersions(4, broker, false).ApiKeys
	for _, k := range broker {
		_, shown := find(client, k.ApiKey)
		hide := slices.Contains([]int16{27, 83, 84, 85, 86, 87}, k.ApiKey)
		if shown == hide {
			t.Errorf("client listener: key %d shown %v", k.ApiKey, shown)
		}
	}
}

// kroxylicious #1611: a version above ours must lead to a second try, not to a dead connection. A real broker's
// answer to the same request is the same bytes.
func TestApiVersionsAboveOurs(t *testing.T) {
	for _, version := range []int16{apis[keyApiVersions].Max + 1, 99, -1} {
		got := AppendResponse(nil, 7, ApiVersions(version, realBroker(t), false))
		if want := golden(t, "apiversions_v99.bin"); !bytes.Equal(got, want) {
			t.Errorf("version %d: got %x, want %x", version, got, want)
		}
	}
}

// kafka-proxy PR #194: a broker newer than us.
func TestApiVersionsOfANewerBroker(t *testing.T) {
	var broker []kmsg.ApiVersionsResponseApiKey
	for _, api := range APIs() {
		broker = append(broker, kmsg.ApiVersionsResponseApiKey{ApiKey: api.Key, MinVersion: 0, MaxVersion: api.Max + 1})
	}
	broker = append(broker, kmsg.ApiVersionsResponseApiKey{ApiKey: 4000, MaxVersion: 1})
	for _, interBroker := range []bool{false, true} {
		keys := ApiVersions(3, broker, interBroker).ApiKeys
		for _, api := range APIs() {
			k, shown := find(keys, api.Key)
			if want := api.Role != Hidden && (interBroker || !api.InterBroker); shown != want {
				t.Errorf("%s, inter-broker %v: shown %v", api.Name, interBroker, shown)
				continue
			}
			want := api.Max + 1
			if api.Role == Local || api.Read {
				want = api.Max
			}
			if shown && k.MaxVersion != want {
				t.Errorf("%s: up to %d, want %d", api.Name, k.MaxVersion, want)
			}
		}
		if _, shown := find(keys, 4000); shown {
			t.Error("an unknown key is shown")
		}
	}
	for _, key := range []int16{4, 52, 56, 58, 62, 63, 67, 70, 73} {
		if api, _ := LookupAPI(key); api.Role != Hidden {
			t.Errorf("%s is between brokers and controllers, but not hidden", api.Name)
		}
	}
}

func TestApiVersionsWithoutOverlap(t *testing.T) {
	keys := ApiVersions(3, []kmsg.ApiVersionsResponseApiKey{{ApiKey: 1, MinVersion: 50, MaxVersion: 60}}, true).ApiKeys
	if len(keys) != 0 {
		t.Errorf("Fetch 50-60 is shown as %v", keys)
	}
}

// A 4.4.0 broker answered 129 to another cluster's id, and 42 to a node id without a cluster id.
func TestCheckIdentity(t *testing.T) {
	ours, other := "cluster", "other"
	for name, c := range map[string]struct {
		version int16
		cluster *string
		node    int32
		want    int16
	}{
		"bootstrapping":      {5, nil, -1, 0},
		"us":                 {5, &ours, 9001, 0},
		"another cluster":    {5, &other, 9001, 129},
		"another node":       {5, &ours, 1, 129},
		"cluster id alone":   {5, &ours, -1, 42},
		"node id alone":      {5, nil, 9001, 42},
		"before version 5":   {4, nil, 0, 0},
		"not sent, v4 field": {4, &other, 1, 0},
	} {
		req := &kmsg.ApiVersionsRequest{Version: c.version, ClusterID: c.cluster, NodeID: c.node}
		if got := CheckIdentity(req, ours, 9001); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
