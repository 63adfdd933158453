package trace

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// Stats counts messages by API. It may be used from many goroutines.
type Stats struct {
	mu          sync.Mutex
	apis        map[string]*apiStats
	connections int64
	errors      map[int16]int64
}

type apiStats struct {
	requests, responses, failed, undecoded int64
	requestBytes, responseBytes            int64
	latency                                histogram
}

// NewStats makes Stats with nothing in it.
func NewStats() *Stats {
	return &Stats{apis: make(map[string]*apiStats), errors: make(map[int16]int64)}
}

// maxAPIs bounds the rows: a peer can send any key.
const maxAPIs = 200

func (s *Stats) row(m *Message) *apiStats {
	name := apiName(m.Header.Key)
	switch {
	case m.Token:
		name = "SASL token"
	case m.Unmatched:
		name = "(unmatched)"
	}
	a := s.apis[name]
	if a == nil && len(s.apis) >= maxAPIs {
		name = "(others)"
		a = s.apis[name]
	}
	if a == nil {
		a = &apiStats{}
		s.apis[name] = a
	}
	return a
}

// Message counts a message as it passes, whether or not it is decoded and shown later.
func (s *Stats) Message(m *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Kind {
	case Opened:
		s.connections++
	case Request:
		a := s.row(m)
		a.requests++
		a.requestBytes += int64(m.Size)
	case Response:
		a := s.row(m)
		a.responses++
		a.responseBytes += int64(m.Size)
		if !m.Unmatched {
			a.latency.add(m.Duration)
		}
	}
}

// Event adds what only decoding tells.
func (s *Stats) Event(e *Event) {
	if e.Kind > Response {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.row(e.Message)
	if e.Body == nil && !e.Token {
		a.undecoded++
	}
	if e.ErrorCount > 0 {
		a.failed++
	}
	for _, err := range e.Errors {
		s.errors[err.Code]++
	}
}

// Dropped counts a message that was never decoded.
func (s *Stats) Dropped(m *Message) {
	if m.Kind > Response {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.row(m).undecoded++
}

// Write writes the summary: a table, or for JSON one object.
func (s *Stats) Write(w io.Writer, format Format, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.SortedFunc(maps.Keys(s.apis), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.apis[b].requests, s.apis[a].requests), cmp.Compare(a, b))
	})
	codes := slices.SortedFunc(maps.Keys(s.errors), func(a, b int16) int {
		return cmp.Or(cmp.Compare(s.errors[b], s.errors[a]), cmp.Compare(a, b))
	})
	if format == JSON {
		_, err := w.Write(append(appendJSON(nil, s.object(at, names, codes)), '\n'))
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nrequests\tresponses\twith error\tnot decoded\tsent\treceived\tp50\tp95\tp99\tmax\t  API, %d connections\n",
		s.connections)
	for _, n := range names {
		a := s.apis[n]
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t  %s\n", a.requests, a.responses, a.failed, a.undecoded,
			bytesText(a.requestBytes), bytesText(a.responseBytes), durationText(a.latency.quantile(0.5)),
			durationText(a.latency.quantile(0.95)), durationText(a.latency.quantile(0.99)), durationText(a.latency.most), n)
	}
	for _, c := range codes {
		fmt.Fprintf(t, "%d\t\t\t\t\t\t\t\t\t\t  %s\n", s.errors[c], errorName(c))
	}
	return t.Flush()
}

func (s *Stats) object(at time.Time, names []string, codes []int16) Object {
	apis, errs := []any{}, []any{}
	for _, n := range names {
		a := s.apis[n]
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		apis = append(apis, Object{{"api", n}, {"requests", a.requests}, {"responses", a.responses}, {"with_error", a.failed},
			{"not_decoded", a.undecoded}, {"request_bytes", a.requestBytes}, {"response_bytes", a.responseBytes},
			{"p50_ms", ms(a.latency.quantile(0.5))}, {"p95_ms", ms(a.latency.quantile(0.95))},
			{"p99_ms", ms(a.latency.quantile(0.99))}, {"max_ms", ms(a.latency.most)}})
	}
	for _, c := range codes {
		errs = append(errs, Object{{"error", errorName(c)}, {"count", s.errors[c]}})
	}
	return Object{{"time", at.UTC().Format(time.RFC3339Nano)}, {"kind", "summary"}, {"connections", s.connections},
		{"apis", apis}, {"errors", errs}}
}

// histogram counts durations in buckets whose width is a sixteenth of their lower bound, so that a quantile is at most that
// far above the true one.
type histogram struct {
	buckets [60 * subBuckets]uint32
	count   int64
	most    time.Duration
}

const (
	subBits    = 4
	subBuckets = 1 << subBits
)

func bucketOf(d time.Duration) int {
	n := uint64(max(0, d))
	if n < subBuckets {
		return int(n)
	}
	shift := bits.Len64(n) - subBits - 1
	return (shift+1)*subBuckets + int(n>>shift)&(subBuckets-1)
}

// upper is the largest duration of a bucket.
func upper(bucket int) time.Duration {
	if bucket < subBuckets {
		return time.Duration(bucket)
	}
	shift := bucket/subBuckets - 1
	return time.Duration((uint64(bucket%subBuckets)+subBuckets+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(d)]++
	h.count++
	h.most = max(h.most, d)
}

// quantile returns the duration that the share q of all is at or below, 0 when there is none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(q*float64(h.count) + 0.5)
	for i, n := range h.buckets {
		if rank -= int64(n); rank <= 0 && n > 0 {
			return min(upper(i), h.most)
		}
	}
	return h.most
}
