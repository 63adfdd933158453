package proxy

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// testFront has ports for node ids 1, 2, 9001 and 9002.
func testFront() *front {
	g := &Gateway{}
	g.s = &Server{}
	g.s.log = discard
	return &front{g: g, foreign: map[int32]bool{}, Front: Front{Name: "CLIENT", Port: 39500, AdvertisedHost: "gateway.example",
		Ranges: []IDRange{{1, 2}, {9001, 9002}}}}
}

// notBrokers are responses with addresses that are not a broker's.
var notBrokers = map[string]string{
	"DescribeACLs":          "hosts of ACLs: whom they are for",
	"DeleteACLs":            "hosts of ACLs",
	"StreamsGroupDescribe":  "endpoints of the Streams applications, which they give themselves",
	"StreamsGroupHeartbeat": "the same",
}

const leak = "leak.example"

// plant fills a value: every list has two elements, every string is leak, every number id.
func plant(v reflect.Value, id int64) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		plant(v.Elem(), id)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Version" && f.Name != "UnknownTags" {
				plant(v.Field(i), id)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte("records"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			plant(v.Index(i), id)
		}
	case reflect.String:
		v.SetString("name")
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if !v.OverflowInt(id) {
			v.SetInt(id)
		}
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(uint64(id))
	case reflect.Bool:
		v.SetBool(true)
	}
}

// addresses calls f for every structure that has a host and a port, and for every list of such.
func addresses(v reflect.Value, f func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		addresses(v.Elem(), f)
	case reflect.Slice:
		for i := range v.Len() {
			addresses(v.Index(i), f)
		}
	case reflect.Struct:
		if host := v.FieldByName("Host"); host.IsValid() || v.FieldByName("Port").IsValid() {
			f(v)
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				addresses(v.Field(i), f)
			}
		}
	}
}

// setHost puts a host into an address.
func setHost(v reflect.Value, host string) {
	if h := v.FieldByName("Host"); h.Kind() == reflect.String {
		h.SetString(host)
	}
}

// TestEveryAddressIsRewritten walks all of kmsg's responses, in all versions, for hosts and ports. For an id that has a port they have to
// become the gateway's, for one that has none they have to go.
func TestEveryAddressIsRewritten(t *testing.T) {
	named := testFront()
	named.Names = testNames(t)
	t.Run("ports", func(t *testing.T) { everyAddress(t, testFront()) })
	t.Run("names", func(t *testing.T) { everyAddress(t, named) })
}

func everyAddress(t *testing.T, f *front) {
	rewritten, kinds := 0, map[string]bool{}
	for key := range int16(200) {
		resp := kmsg.ResponseForKey(key)
		api, known := protocol.LookupAPI(key)
		if resp == nil {
			continue
		}
		if !known {
			t.Errorf("kmsg has key %d, which the registry has not", key)
		}
		name := kmsg.NameForKey(key)
		if api.Role == protocol.Hidden || notBrokers[name] != "" {
			continue
		}
		for version := range resp.MaxVersion() + 1 {
			for _, id := range []int64{2, 9001, 77} {
				resp := kmsg.ResponseForKey(key)
				plant(reflect.ValueOf(resp), id)
				addresses(reflect.ValueOf(resp), func(v reflect.Value) { setHost(v, leak) })
				resp.SetVersion(version)
				frame := append(protocol.AppendResponseHeader(nil, key, version, 5), resp.AppendTo(nil)...)
				if !bytes.Contains(frame, []byte(leak)) {
					continue
				}
				kinds[name] = true
				if from, ok := interpreted[key]; !ok || version < from {
					t.Errorf("%s v%d holds an address and is not rewritten", name, version)
					continue
				}
				out, err := edited(frame, key, version, f.rewrite)
				if err != nil {
					t.Fatalf("%s v%d: %v", name, version, err)
				}
				checkRewritten(t, f, out, key, version, int32(id))
				rewritten++
			}
		}
	}
	want := []string{"DescribeCluster", "DescribeQuorum", "Fetch", "FindCoordinator", "Metadata", "Produce", "ShareAcknowledge", "ShareFetch"}
	var got []string
	for k := range kinds {
		got = append(got, k)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("responses with addresses: %v, want %v", got, want)
	}
	t.Logf("%d replies of %v", rewritten, got)
}

func checkRewritten(t *testing.T, f *front, frame []byte, key, version int16, id int32) {
	t.Helper()
	name := fmt.Sprintf("%s v%d, node %d", kmsg.NameForKey(key), version, id)
	if bytes.Contains(frame, []byte(leak)) {
		t.Errorf("%s: the address is still there", name)
	}
	corr, body, err := protocol.ParseResponseHeader(key, version, frame)
	if err != nil || corr != 5 {
		t.Fatalf("%s: correlation id %d, %v", name, corr, err)
	}
	resp := kmsg.ResponseForKey(key)
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	to, number, has := f.AddressOf(id)
	if f.Names != nil && has && (to != fmt.Sprintf("b%d.kafka.example.com", id) || number != 9443) {
		t.Errorf("%s: clients are told %s:%d", name, to, number)
	}
	found := 0
	addresses(reflect.ValueOf(resp), func(v reflect.Value) {
		host, node := v.FieldByName("Host").String(), v.FieldByName("NodeID")
		switch {
		case host == "":
		case !node.IsValid() || node.Int() != int64(id) || host != to || v.FieldByName("Port").Int() != int64(number) || !has:
			t.Errorf("%s: names %+v", name, v)
		default:
			found++
		}
	})
	if has && found == 0 && key != keyDescribeQuorum && !controllersOnly(resp) {
		t.Errorf("%s: the gateway is not named", name)
	}
}

// controllersOnly: what plant makes of DescribeCluster v1 and up is an answer about endpoint type 2.
func controllersOnly(resp kmsg.Response) bool {
	r, ok := resp.(*kmsg.DescribeClusterResponse)
	return ok && r.EndpointType == 2
}

func TestNodesWithoutPortAreNotAvailable(t *testing.T) {
	f := testFront()
	m := kmsg.NewPtrMetadataResponse()
	m.ControllerID = 77
	topic := kmsg.NewMetadataResponseTopic()
	for _, id := range []int32{77, 2} {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = id, leak, 9092
		m.Brokers = append(m.Brokers, b)
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Leader, p.Replicas = id, []int32{77, 2}
		topic.Partitions = append(topic.Partitions, p)
	}
	m.Topics = append(m.Topics, topic)
	f.rewrite(m)
	ps := m.Topics[0].Partitions
	if len(m.Brokers) != 1 || m.ControllerID != 2 || ps[0].Leader != -1 || ps[0].ErrorCode != codeLeaderNotAvailable ||
		ps[1].Leader != 2 || ps[1].ErrorCode != 0 {
		t.Errorf("Metadata: %+v", m)
	}
	for version := range int16(7) {
		r := kmsg.NewPtrFindCoordinatorResponse()
		r.Version, r.NodeID, r.Host, r.Port = version, 77, leak, 1
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.NodeID, c.Host, c.Port = 77, leak, 1
		r.Coordinators = append(r.Coordinators, c)
		f.rewrite(r)
		code, host, id := r.ErrorCode, r.Host, r.NodeID
		if version >= 4 {
			code, host, id = r.Coordinators[0].ErrorCode, r.Coordinators[0].Host, r.Coordinators[0].NodeID
		}
		if code != codeCoordinatorNotAvailable || host != "" || id != -1 {
			t.Errorf("FindCoordinator v%d: code %d, node %d at %q", version, code, id, host)
		}
	}
	if len(f.foreign) != 1 {
		t.Errorf("logged ids: %v", f.foreign)
	}
}

func TestPortsFollowTheRanges(t *testing.T) {
	f := Front{Port: 39500, Ranges: []IDRange{{1, 9}, {9001, 9002}, {100, 100}}}
	for id, want := range map[int32]uint16{1: 39501, 9: 39509, 9001: 39510, 9002: 39511, 100: 39512, 0: 0, 10: 0, 9003: 0, -1: 0} {
		if got, ok := f.PortOf(id); got != want || ok != (want != 0) {
			t.Errorf("id %d: port %d %v, want %d", id, got, ok, want)
		}
	}
}

// FuzzEdited: whatever a broker's reply holds, none that can be read afterwards names another address.
func FuzzEdited(f *testing.F) {
	for key := range interpreted {
		resp := kmsg.ResponseForKey(key)
		plant(reflect.ValueOf(resp), 2)
		resp.SetVersion(resp.MaxVersion())
		f.Add(key, resp.MaxVersion(), append(protocol.AppendResponseHeader(nil, key, resp.MaxVersion(), 5), resp.AppendTo(nil)...))
	}
	f.Fuzz(func(t *testing.T, key, version int16, frame []byte) {
		resp := kmsg.ResponseForKey(key)
		if from, ok := interpreted[key]; !ok || version < from || version > resp.MaxVersion() {
			return
		}
		front := testFront()
		out, err := edited(frame, key, version, front.rewrite)
		if err != nil {
			return
		}
		_, body, err := protocol.ParseResponseHeader(key, version, out)
		if err != nil {
			t.Fatal(err)
		}
		resp.SetVersion(version)
		if resp.ReadFrom(body) != nil {
			return
		}
		addresses(reflect.ValueOf(resp), func(v reflect.Value) {
			if host := v.FieldByName("Host").String(); host != front.AdvertisedHost && host != "" {
				t.Errorf("%s v%d names %q", kmsg.NameForKey(key), version, host)
			}
		})
	})
}
