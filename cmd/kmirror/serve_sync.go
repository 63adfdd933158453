package main

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/admin"
	"kmirror/internal/metasync"
	"kmirror/internal/mirror"
)

// operator answers operators for this process alone.
type operator struct {
	*mirror.Manager
	syncer *metasync.Syncer
}

var _ admin.Service = operator{}

// SyncStatus tells how the sync of metadata stands, of those of the mirrors (none: all) that this process coordinates. It asks nobody.
func (o operator) SyncStatus(ctx context.Context, mirrors []string) ([]admin.SyncInfo, error) {
	defined, err := o.ListMirrors(ctx, false)
	if err != nil {
		return nil, err
	}
	var out []admin.SyncInfo
	for _, m := range defined {
		if len(mirrors) > 0 && !slices.Contains(mirrors, m.Mirror) {
			continue
		}
		status := o.syncer.Status(m.Mirror)
		if status == nil {
			continue
		}
		for _, kind := range metasync.Kinds {
			info, s := admin.SyncInfo{Mirror: m.Mirror, Kind: kind}, status[kind]
			if !s.Good.IsZero() {
				info.AgeSeconds = new(time.Since(s.Good).Seconds())
			}
			if s.Err != "" {
				info.Error = &s.Err
			}
			out = append(out, info)
		}
	}
	return out, nil
}

// syncCollector reads the ages of the last good rounds when it is scraped.
type syncCollector struct {
	status func(ctx context.Context, mirrors []string) ([]admin.SyncInfo, error)
	age    *prometheus.Desc
}

func newSyncCollector(status func(context.Context, []string) ([]admin.SyncInfo, error)) *syncCollector {
	const help = "Since the last round of a kind of metadata without errors; of the process that coordinates the mirror."
	return &syncCollector{status: status,
		age: prometheus.NewDesc("kmirror_sync_age_seconds", help, []string{"mirror", "kind"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *syncCollector) Describe(out chan<- *prometheus.Desc) { out <- c.age }

// Collect implements prometheus.Collector.
func (c *syncCollector) Collect(out chan<- prometheus.Metric) {
	infos, err := c.status(context.Background(), nil) // needs no limit: it only looks at what is known
	if err != nil {
		return // __mirror_state is not loaded: nothing is known
	}
	for _, s := range infos {
		if s.AgeSeconds != nil {
			out <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, *s.AgeSeconds, s.Mirror, s.Kind)
		}
	}
}
