package trace

import (
	"time"

	"kmirror/protocol"
)

// exchange is a request that waits for its response.
type exchange struct {
	header protocol.RequestHeader
	token  bool
	at     time.Time
	// topicMatch is the Filter's: the request named a topic that it asks for.
	topicMatch bool
}

// maxPending bounds the requests of a connection that wait for a response.
const maxPending = 10_000

// pending are the requests that wait, oldest first.
type pending struct {
	list []*exchange
	// open counts those of list by correlation id, so that an answer to nothing costs no search.
	open map[int32]int
}

func (p *pending) add(x *exchange) {
	if len(p.list) >= maxPending {
		p.shift()
	}
	if p.open == nil {
		p.open = make(map[int32]int)
	}
	p.list = append(p.list, x)
	p.open[x.header.CorrelationID]++
}

// shift takes the oldest off.
func (p *pending) shift() *exchange {
	x := p.list[0]
	p.list[0] = nil
	p.list = p.list[1:]
	id := x.header.CorrelationID
	if p.open[id]--; p.open[id] == 0 {
		delete(p.open, id)
	}
	return x
}

// token takes the oldest off if it is one without header.
func (p *pending) token() *exchange {
	if len(p.list) > 0 && p.list[0].token {
		return p.shift()
	}
	return nil
}

// take returns the request of a response. Brokers answer in order; where something before it is missing, because it was not
// captured or was answered by nothing, the correlation id tells, and what came before is given up.
func (p *pending) take(id int32) *exchange {
	for p.open[id] > 0 {
		if x := p.shift(); x.header.CorrelationID == id && !x.token {
			return x
		}
	}
	return nil
}
