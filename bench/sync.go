package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kmirror/internal/metasync"
)

// What the sync of metadata is measured with.
const (
	syncTopics = 200
	syncGroups = 500
	// syncedIn is how many topics each group has offsets in.
	syncedIn = 4
	// syncBar is how long a round may take in which all groups have moved, in seconds: the time between two rounds is 30.
	syncBar = 10
)

// metadata measures rounds of the sync of metadata: one in which every group has moved, and one in which nothing has changed.
func (b *bed) metadata(ctx context.Context) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.src.Bootstrap("CLIENT")...))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	var names []string
	for i := range syncTopics {
		names = append(names, fmt.Sprintf("sync-%03d", i))
	}
	rs, err := adm.CreateTopics(ctx, 1, 1, map[string]*string{"retention.ms": new("86400000")}, names...)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		return err
	}
	var records []*kgo.Record
	for _, n := range names {
		for range 10 {
			records = append(records, &kgo.Record{Topic: n, Value: []byte("x")})
		}
	}
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	if err := b.shim.run("start", "--mirror", "bench", "--topics", "/sync-.*/"); err != nil {
		return err
	}
	if err := b.allMirror(ctx, names); err != nil {
		return err
	}
	fmt.Printf("Sync of metadata, %d topics and %d groups with offsets in %d of them each:\n", syncTopics, syncGroups, syncedIn)
	var moved []syncRun
	for i := range b.runs {
		if err := commitAll(ctx, adm, names, int64(i+1)); err != nil {
			return err
		}
		r, err := b.syncRound(ctx)
		if err != nil {
			return err
		}
		quiet, err := b.syncRound(ctx)
		if err != nil {
			return err
		}
		if r.changed < syncGroups {
			return fmt.Errorf("run %d: %d offsets were written, and %d groups had moved", i+1, r.changed, syncGroups)
		}
		moved = append(moved, r)
		fmt.Printf("  run %d: all groups moved: %s\n         nothing changed:  %s\n", i+1, r, quiet)
	}
	bar("round in which all groups have moved, s", median(moved, func(r syncRun) float64 { return r.took }), "<", syncBar)
	return nil
}

// syncRun is one round. kinds tells how long each kind took, changed how many offsets of groups were written.
type syncRun struct {
	took    float64 // seconds
	kinds   string
	changed int
	// source and destination are how many requests went there.
	source, destination int
}

func (r syncRun) String() string {
	return fmt.Sprintf("%.2f s (%s), %d requests to the source, %d to the destination, %d changes", r.took, r.kinds, r.source,
		r.destination, r.changed)
}

// syncRound has a round begin at once, by properties that change nothing else, and waits for its end.
func (b *bed) syncRound(ctx context.Context) (r syncRun, err error) {
	var before samples
	if err := until(ctx, time.Minute, func() (bool, error) { // none is under way that a change of topics has asked for
		before, err = b.shim.metrics(ctx)
		return err == nil && before.of("kmirror_sync_age_seconds", metasync.ACLs) > 2, err
	}); err != nil {
		return r, err
	}
	b.rounds++
	if err := b.shim.alter(b.src, fmt.Sprintf("mirror.metadata.refresh.interval.ms=%d", 3_600_000+b.rounds)); err != nil {
		return r, err
	}
	began := time.Now()
	err = until(ctx, time.Minute, func() (bool, error) {
		now, err := b.shim.metrics(ctx)
		if err != nil {
			return false, err
		}
		// The last kind of a round is young once the round is over.
		if age := now.of("kmirror_sync_age_seconds", metasync.ACLs); age < 0 || age > time.Since(began).Seconds() {
			return false, nil
		}
		var kinds []string
		for _, k := range metasync.Kinds[1:] { // without the check of the source's identity
			took := now.of("kmirror_sync_seconds", k)
			r.took += took
			kinds = append(kinds, fmt.Sprintf("%s %.2f", k, took))
		}
		r.kinds = strings.Join(kinds, ", ")
		more := func(name, label string) int { return int(now.of(name, label) - max(before.of(name, label), 0)) }
		r.source, r.destination = more("kmirror_client_requests_total", "source"), more("kmirror_client_requests_total", "destination")
		r.changed = more("kmirror_sync_changes_total", metasync.Groups)
		return true, nil
	})
	return r, err
}

// commitAll has each group commit an offset in some topics.
func commitAll(ctx context.Context, adm *kadm.Client, names []string, at int64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range syncGroups {
		g.Go(func() error {
			os := kadm.Offsets{}
			for j := range syncedIn {
				os.Add(kadm.Offset{Topic: names[(i+j)%len(names)], At: at, LeaderEpoch: -1})
			}
			return adm.CommitAllOffsets(ctx, fmt.Sprintf("sync-group-%03d", i), os)
		})
	}
	return g.Wait()
}

// allMirror waits until topics can be read at the destination to where they end at the source, and groups of them are synced.
func (b *bed) allMirror(ctx context.Context, names []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.dst.Bootstrap("CLIENT")...))
	if err != nil {
		return err
	}
	defer cl.Close()
	return until(ctx, 3*time.Minute, func() (bool, error) {
		ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, names...)
		if err != nil {
			return false, nil
		}
		n := 0
		ends.Each(func(o kadm.ListedOffset) {
			if o.Err == nil && o.Offset >= 10 {
				n++
			}
		})
		return n == len(names), nil
	})
}

// samples are metrics by name and labels.
type samples map[string]float64

// metrics reads all metrics of the process.
func (s *shim) metrics(ctx context.Context) (samples, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.http, "/readyz")+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := samples{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	return out, nil
}

// of returns a metric that has a value among its labels, -1 where there is none.
func (s samples) of(name, label string) float64 {
	for k, v := range s {
		if strings.HasPrefix(k, name+"{") && strings.Contains(k, `"`+label+`"`) {
			return v
		}
	}
	return -1
}
