package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/testkafka"
)

// seen is a record as any client shows it. Fields are text; null is "NULL".
type seen struct {
	partition           int32
	offset, timestamp   int64
	key, value, headers string
}

// inOrder sorts by partition and leaves the order within each as the client had it.
func inOrder(rs []seen) []seen {
	slices.SortStableFunc(rs, func(a, b seen) int { return cmp.Compare(a.partition, b.partition) })
	return rs
}

// sameRecords wants a client to have seen what the source has, in the source's order.
func sameRecords(tb testing.TB, want, got []seen) {
	tb.Helper()
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			tb.Fatalf("record %d of %d (source: %d):\n got %.300s\nwant %.300s", i, len(got), len(want), fmt.Sprint(got[i]), fmt.Sprint(want[i]))
		}
	}
	if len(want) != len(got) {
		tb.Fatalf("%d records, the source has %d", len(got), len(want))
	}
}

func orNull(b []byte) string {
	if b == nil {
		return "NULL"
	}
	return string(b)
}

// readFranz reads until n records came, and on for a moment in which no other may come.
func readFranz(tb testing.TB, c *testkafka.Cluster, n int, opts ...kgo.Opt) []seen {
	tb.Helper()
	cl := client(tb, c, append([]kgo.Opt{kgo.FetchMaxWait(200 * time.Millisecond)}, opts...)...)
	ctx := timeout(tb, time.Minute)
	var out []seen
	for ctx.Err() == nil {
		if len(out) >= n {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
		}
		fs := cl.PollFetches(ctx)
		fs.EachError(func(topic string, p int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				tb.Errorf("franz-go on %s-%d: %v", topic, p, err)
			}
		})
		fs.EachRecord(func(r *kgo.Record) {
			var hs []string
			for _, h := range r.Headers {
				hs = append(hs, h.Key+":"+orNull(h.Value))
			}
			out = append(out, seen{r.Partition, r.Offset, r.Timestamp.UnixMilli(), orNull(r.Key), orNull(r.Value), strings.Join(hs, ",")})
		})
	}
	return inOrder(out)
}

// lines runs a program until it has printed n lines, and for settle longer, in which it must not print another; 0 waits for
// the program's end.
func lines(tb testing.TB, cmd *exec.Cmd, n int, settle time.Duration) []string {
	tb.Helper()
	var errs strings.Builder
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	text := make(chan string)
	go func() {
		defer close(text)
		s := bufio.NewScanner(stdout)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			text <- s.Text()
		}
	}()
	limit := time.NewTimer(patience(time.Minute))
	defer limit.Stop()
	var out []string
	var late <-chan time.Time
	for open := true; open; {
		if len(out) >= n && late == nil && settle > 0 {
			late = time.After(settle)
		}
		select {
		case s, ok := <-text:
			if open = ok; ok {
				out = append(out, s)
			}
		case <-late:
			open = false
		case <-limit.C:
			tb.Errorf("%s: %d of %d lines in time", cmd.Args[0], len(out), n)
			open = false
		}
	}
	cmd.Process.Kill()
	for range text { // its end, so that nothing is left behind
	}
	if err := cmd.Wait(); err != nil && settle == 0 {
		tb.Errorf("%s: %v", cmd.Args[0], err)
	}
	if tb.Failed() {
		tb.Logf("standard error of %v:\n%.3000s", cmd.Args, errs.String())
	}
	return out
}

// readKcat reads a topic from its beginning to where kcat thinks it ends.
func readKcat(tb testing.TB, bootstrap, topic, isolation string) []seen {
	tb.Helper()
	cmd := testkafka.Kcat(timeout(tb, time.Minute), "-C", "-e", "-q", "-J", "-o", "beginning", "-b", bootstrap, "-t", topic,
		"-X", "isolation.level="+isolation)
	var out []seen
	for _, line := range lines(tb, cmd, 0, 0) {
		var m struct {
			Partition    int32
			Offset, TS   int64
			Key, Payload *string
			Headers      []*string
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			tb.Fatalf("kcat: %v in %.300q", err, line)
		}
		text := func(s *string) string {
			if s == nil {
				return "NULL"
			}
			return *s
		}
		var hs []string
		for i := 0; i+1 < len(m.Headers); i += 2 {
			hs = append(hs, text(m.Headers[i])+":"+text(m.Headers[i+1]))
		}
		out = append(out, seen{m.Partition, m.Offset, m.TS, text(m.Key), text(m.Payload), strings.Join(hs, ",")})
	}
	return inOrder(out)
}

// readConsole reads a topic with Kafka's console consumer, by the classic or the new group protocol.
func readConsole(tb testing.TB, bootstrap, topic, isolation, protocol string, n int) []seen {
	tb.Helper()
	args := []string{"--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--isolation-level", isolation,
		"--command-property", "group.protocol=" + protocol}
	for _, p := range []string{"print.partition=true", "print.offset=true", "print.timestamp=true", "print.headers=true",
		"print.key=true", "null.literal=NULL"} {
		args = append(args, "--formatter-property", p)
	}
	cmd := testkafka.Tool(timeout(tb, time.Minute), "", "org.apache.kafka.tools.consumer.ConsoleConsumer", args...)
	var out []seen
	for _, line := range lines(tb, cmd, n, time.Second) {
		f := strings.Split(line, "\t")
		if len(f) != 6 {
			tb.Fatalf("console consumer: %.300q", line)
		}
		number := func(s, prefix string) int64 {
			v, err := strconv.ParseInt(strings.TrimPrefix(s, prefix), 10, 64)
			if err != nil {
				tb.Fatalf("console consumer: %v in %.300q", err, line)
			}
			return v
		}
		out = append(out, seen{int32(number(f[1], "Partition:")), number(f[2], "Offset:"), number(f[0], "CreateTime:"),
			f[4], f[5], strings.TrimPrefix(f[3], "NO_HEADERS")})
	}
	return inOrder(out)
}

// watcher polls a partition all the time and remembers how far it saw.
type watcher struct {
	mu   sync.Mutex
	next int64
	gap  string
}

// watch starts a consumer that never stops polling. The test ends it.
func watch(tb testing.TB, topic string, opts ...kgo.Opt) *watcher {
	tb.Helper()
	w := &watcher{}
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.DisableFetchSessions()}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				w.mu.Lock()
				if r.Offset != w.next && w.gap == "" {
					w.gap = fmt.Sprintf("offset %d came where %d was due", r.Offset, w.next)
				}
				w.next = r.Offset + 1
				w.mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() { cancel(); wg.Wait(); cl.Close() })
	return w
}

// at is the offset that the consumer waits for.
func (w *watcher) at(tb testing.TB) int64 {
	tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gap != "" {
		tb.Fatal(w.gap)
	}
	return w.next
}
