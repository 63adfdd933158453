package metapoll

import (
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol/kraft"
)

// forgetAfter is for how long a broker must be in no answer until it is no broker of the cluster any more. One that restarts is in none
// either, and keeps its place meanwhile.
const forgetAfter = 5 * time.Minute

// view is what the answers say so far. A broker may answer with what was true a while ago, such as one that has lost its connection to
// the controller, so nothing is taken away or moved for a single answer: the one after it, of the next broker if there is one that
// answers, has to say the same. The zero value knows nothing.
type view struct {
	brokers map[int32]known
	doubts  map[int32]claim
}

// known is a broker that is believed in.
type known struct {
	kraft.Broker
	// missing is since when it has been in no answer, zero while it is.
	missing time.Time
}

// claim is what an answer says of a broker: where it is, or that it is nowhere.
type claim struct {
	host string
	port uint16
}

// take works an answer in. It reports what has changed of what is believed, as lines of a log, and whether there is a doubt that the next
// answer has to settle. An answer without brokers says nothing: brokers that have just started know of none.
func (v *view) take(answer []kmsg.MetadataResponseBroker, endpoint func(host string, port uint16) kraft.Endpoint, now time.Time) (
	changes []change, doubt bool) {
	said := map[int32]kmsg.MetadataResponseBroker{}
	for _, b := range answer {
		if b.NodeID >= 0 && b.Host != "" && b.Port > 0 && b.Port <= 65535 {
			said[b.NodeID] = b
		}
	}
	if len(said) == 0 {
		return nil, false
	}
	if v.brokers == nil {
		v.brokers = map[int32]known{}
	}
	doubts := map[int32]claim{}
	for id, b := range said {
		broker := kraft.Broker{ID: id, Endpoints: []kraft.Endpoint{endpoint(b.Host, uint16(b.Port))}}
		if b.Rack != nil {
			broker.Rack = *b.Rack
		}
		is, ok := v.brokers[id]
		says := claim{b.Host, uint16(b.Port)}
		switch {
		case !ok:
			changes = append(changes, change{"a broker is seen", id, says})
		case is.at() != says && v.doubts[id] != says:
			doubts[id] = says
			continue
		case is.at() != says:
			changes = append(changes, change{"a broker has moved", id, says})
		case is.Fenced:
			changes = append(changes, change{"a broker is back", id, says})
		case is.Rack != broker.Rack:
			changes = append(changes, change{"a broker has another rack", id, says})
		}
		v.brokers[id] = known{Broker: broker}
	}
	for id, is := range v.brokers {
		if _, ok := said[id]; ok {
			continue
		}
		was, doubted := v.doubts[id]
		switch {
		case is.Fenced && now.Sub(is.missing) >= forgetAfter:
			changes = append(changes, change{"a broker is forgotten", id, is.at()})
			delete(v.brokers, id)
		case is.Fenced:
		case !doubted || was != claim{}:
			doubts[id] = claim{}
		default:
			changes = append(changes, change{"a broker is missing", id, is.at()})
			is.Fenced, is.missing = true, now
			v.brokers[id] = is
		}
	}
	v.doubts = doubts
	return changes, len(doubts) > 0
}

// change is a line of the log.
type change struct {
	what string
	id   int32
	at   claim
}

// String is the address.
func (c claim) String() string { return net.JoinHostPort(c.host, strconv.Itoa(int(c.port))) }

// at is where the broker is believed to be.
func (k known) at() claim { return claim{k.Endpoints[0].Host, k.Endpoints[0].Port} }

// image is what is believed, with the number of its predecessors as offset.
func (v *view) image(offset int64) *kraft.Image {
	img := kraft.Empty()
	img.Offset, img.Brokers = offset, make(map[int32]*kraft.Broker, len(v.brokers))
	for id, k := range v.brokers {
		b := k.Broker
		img.Brokers[id] = &b
	}
	return img
}
