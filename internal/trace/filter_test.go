package trace

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestFilters(t *testing.T) {
	chunks := readCapture(t)
	apis, err := ParseAPIs("produce, 1")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		filter  Filter
		every   func(line string) bool
		minimum int
	}{
		"api": {Filter{APIs: apis}, func(l string) bool {
			return strings.Contains(l, " Produce ") || strings.Contains(l, " Fetch ")
		}, 12},
		"client id": {Filter{ClientID: regexp.MustCompile("^rdkafka$")}, func(l string) bool {
			return strings.Contains(l, "client=rdkafka")
		}, 15},
		"principal": {Filter{Principal: regexp.MustCompile("alice")}, func(l string) bool {
			return strings.Contains(l, "principal=User:alice") || strings.Contains(l, " close")
		}, 40},
		"nobody": {Filter{Principal: regexp.MustCompile("bob")}, func(string) bool { return false }, 0},
		"topic": {Filter{Topic: regexp.MustCompile("^missing$")}, func(l string) bool {
			return strings.Contains(l, "DeleteTopics")
		}, 2},
		"errors":   {Filter{Errors: true}, func(l string) bool { return strings.Contains(l, " !") }, 4},
		"duration": {Filter{MinDuration: 500 * time.Millisecond}, func(l string) bool { return strings.Contains(l, " 508.012ms ") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			text, _, _ := strings.Cut(play(t, chunks, &Reporter{Format: Line, Filter: c.filter}), "\n\n")
			n := 0
			for line := range strings.Lines(text) {
				if strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "requests") {
					break
				}
				if n++; !c.every(line) {
					t.Errorf("%s", line)
				}
			}
			if n < c.minimum || c.minimum == 0 && n > 0 {
				t.Errorf("%d lines, want %d", n, c.minimum)
			}
		})
	}
}

// TestTopicFilterTakesPairs: a response without names belongs to a request with some.
func TestTopicFilterTakesPairs(t *testing.T) {
	p := newPeer(t, 0)
	p.r.Filter.Topic = regexp.MustCompile("orders")
	for corr, topic := range []string{"orders", "other"} {
		req := kmsg.NewPtrFetchRequest()
		req.Topics = []kmsg.FetchRequestTopic{{Topic: topic}}
		p.feed(ToServer, ask(int32(corr), req, 11))
		p.feed(ToClient, answer(int32(corr), kmsg.NewPtrFetchResponse(), 11))
	}
	if text := p.lines(); strings.Count(text, "corr=0") != 2 || strings.Contains(text, "corr=1") {
		t.Error(text)
	}
}

func TestParseAPIs(t *testing.T) {
	if _, err := ParseAPIs("Produce,Nonsense"); err == nil || !strings.Contains(err.Error(), "Nonsense") {
		t.Error(err)
	}
}

func TestQuantiles(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	h.add(-time.Second) // a clock that was set back
	for q, ms := range map[float64]time.Duration{0.5: 500, 0.95: 950, 0.99: 990} {
		want := ms * time.Millisecond
		if got := h.quantile(q); got < want-time.Millisecond || got > want*17/16 {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if h.most != time.Second || (&histogram{}).quantile(0.5) != 0 {
		t.Error(h.most)
	}
	for _, d := range []time.Duration{0, 1, 15, 16, 17, 1000, 1 << 40, 1<<63 - 1} {
		if b := bucketOf(d); upper(b) < d || b > 0 && upper(b-1) >= d {
			t.Errorf("%d is in bucket %d, up to %d", d, b, upper(b))
		}
	}
}

func TestSummaryIsBounded(t *testing.T) {
	s := NewStats()
	for key := range int16(1000) {
		m := &Message{Kind: Request, Size: 1}
		m.Header.Key = key
		s.Message(m)
	}
	if len(s.apis) > maxAPIs+1 || s.apis["(others)"].requests != 1000-maxAPIs {
		t.Errorf("%d rows", len(s.apis))
	}
}
