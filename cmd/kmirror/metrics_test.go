package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kmirror/internal/admin"
	"kmirror/internal/broker"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics("1.2.3", true)
	m.setCluster("1.2.3", "cid")
	ready := errors.New("node 9001 is fenced")
	s := newHTTPServer(l, m.registry, func() error { return nil }, func() error { return ready })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	base := "http://" + l.Addr().String()
	if code, body := get(t, base+"/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("healthz: %d %q", code, body)
	}
	if code, body := get(t, base+"/readyz"); code != 503 || body != "node 9001 is fenced\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	code, body := get(t, base+"/metrics")
	if code != 200 || !strings.Contains(body, `kmirror_build_info{destination_cluster_id="cid",version="1.2.3"} 1`) ||
		strings.Contains(body, `destination_cluster_id=""`) {
		t.Errorf("metrics: %d %s", code, body)
	}
	if code, _ := get(t, base+"/other"); code != 404 {
		t.Errorf("other: %d", code)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// scrape returns all series as the text format writes them, without help and type.
func scrape(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func expect(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s: %v (%v), want %v", name, g, ok, v)
		}
	}
}

func TestCounters(t *testing.T) {
	m := newMetrics("v", true)
	m.NodeState(9001, broker.StateActive)
	m.NodeState(9002, broker.StateActive)
	m.NodeState(9002, broker.StateFenced)
	m.Evicted(9002)
	m.FeatureMax("metadata.version", 29)
	m.Strays(3)
	m.ControllerChanged("c:1")
	m.ProduceRefused("m", "t")
	m.Forwarded("Metadata", time.Millisecond)
	m.ConnectionOpened("CLIENT")
	m.ConnectionOpened("CLIENT")
	m.ConnectionClosed("CLIENT")
	m.Fetched("m", "t", 1, 100)
	m.Fetched("m", "t", 1, 50)
	m.Diverged("m", "t", 1)
	expect(t, scrape(t, m.registry), map[string]float64{
		"kmirror_broker_registered{node_id=9001}":                   1,
		"kmirror_broker_registered{node_id=9002}":                   0,
		"kmirror_broker_evicted_total{node_id=9001}":                0,
		"kmirror_broker_evicted_total{node_id=9002}":                1,
		"kmirror_feature_max_level{feature=metadata.version}":       29,
		"kmirror_stray_partitions{}":                                3,
		"kmirror_controller_changes_total{}":                        1,
		"kmirror_refused_produces_total{mirror=m,topic=t}":          1,
		"kmirror_forward_seconds{api=Metadata}":                     1,
		"kmirror_connections{listener=CLIENT}":                      1,
		"kmirror_fetched_bytes_total{mirror=m,partition=1,topic=t}": 150,
		"kmirror_divergence_total{mirror=m,partition=1,topic=t}":    1,
		"kmirror_build_info{destination_cluster_id=,version=v}":     1,
	})
}

func collected() []admin.PartitionInfo {
	return []admin.PartitionInfo{
		{Mirror: "m", Topic: "t", Partition: 0, State: "MIRRORING", Lag: new(int64(5)), LagBytes: new(int64(50)), LagSeconds: new(1.5),
			Locked: new(true), ISRReal: []int32{1, 2, 3}, SourceEpoch: new(int32(4)), DestinationEpoch: new(int32(14))},
		{Mirror: "m", Topic: "t", Partition: 1, State: "FAILED", Lag: new(int64(7)), LagSeconds: new(9.5), Locked: new(false),
			ISRReal: []int32{1}, SourceEpoch: new(int32(4)), DestinationEpoch: new(int32(5))},
		{Mirror: "m", Topic: "u", Partition: 0, State: "PREPARING"},
	}
}

func TestPartitionMetrics(t *testing.T) {
	now := time.Unix(1000, 0)
	sources := func() map[string]time.Time { return map[string]time.Time{"m": now.Add(-3 * time.Second), "new": {}} }
	registry := prometheus.NewRegistry()
	c := newPartitionCollector(true, collected, sources)
	c.now = func() time.Time { return now }
	registry.MustRegister(c)
	got := scrape(t, registry)
	expect(t, got, map[string]float64{
		"kmirror_partition_state{mirror=m,partition=0,state=MIRRORING,topic=t}": 1,
		"kmirror_partition_state{mirror=m,partition=0,state=FAILED,topic=t}":    0,
		"kmirror_partition_state{mirror=m,partition=1,state=FAILED,topic=t}":    1,
		"kmirror_lag_records{mirror=m,partition=1,topic=t}":                     7,
		"kmirror_lag_bytes{mirror=m,partition=0,topic=t}":                       50,
		"kmirror_lag_seconds{mirror=m,partition=0,topic=t}":                     1.5,
		"kmirror_topic_locked{mirror=m,topic=t}":                                0,
		"kmirror_real_insync_replicas{mirror=m,partition=0,topic=t}":            3,
		"kmirror_epoch_headroom{mirror=m,partition=0,topic=t}":                  10,
		"kmirror_source_fetch_age_seconds{mirror=m}":                            3,
	})
	for _, absent := range []string{"kmirror_lag_records{mirror=m,partition=0,topic=u}", "kmirror_topic_locked{mirror=m,topic=u}",
		"kmirror_source_fetch_age_seconds{mirror=new}", "kmirror_lag_bytes{mirror=m,partition=1,topic=t}"} {
		if _, ok := got[absent]; ok {
			t.Errorf("%s is told though it is not known", absent)
		}
	}

	registry = prometheus.NewRegistry()
	c = newPartitionCollector(false, collected, sources)
	c.now = func() time.Time { return now }
	registry.MustRegister(c)
	expect(t, scrape(t, registry), map[string]float64{
		"kmirror_partition_state{mirror=m,state=MIRRORING,topic=t}": 1,
		"kmirror_partition_state{mirror=m,state=FAILED,topic=t}":    1,
		"kmirror_lag_records{mirror=m,topic=t}":                     12,
		"kmirror_lag_seconds{mirror=m,topic=t}":                     9.5,
		"kmirror_real_insync_replicas{mirror=m,topic=t}":            1,
		"kmirror_epoch_headroom{mirror=m,topic=t}":                  1,
	})
}
