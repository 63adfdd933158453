package main

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"kmirror/internal/admin"
	"kmirror/internal/broker"
)

// metrics is the registry with all that is counted or set when it happens. States and lags are read when somebody asks
// (partitionCollector).
type metrics struct {
	registry *prometheus.Registry

	buildInfo                            *prometheus.GaugeVec
	registered, features                 *prometheus.GaugeVec
	evicted                              *prometheus.CounterVec
	refused, diverged, regressed, bytes  *prometheus.CounterVec
	forward                              *prometheus.HistogramVec
	connections                          *prometheus.GaugeVec
	strangers                            *prometheus.CounterVec
	strays, selfFenced                   prometheus.Gauge
	controllerChanges, foreignReassigned prometheus.Counter
	syncErrors, syncChanges, syncSkips   *prometheus.CounterVec
	syncTook                             *prometheus.GaugeVec
	requests                             *prometheus.CounterVec
	perPartition                         bool
}

// newMetrics makes the registry. Without perPartition counters and lags carry no partition label.
func newMetrics(version string, perPartition bool) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), perPartition: perPartition}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kmirror_" + name, Help: help}, labels)
		m.registry.MustRegister(g)
		return g
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kmirror_" + name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	m.buildInfo = gauge("build_info", "1; its labels are the version and the destination.", "version", "destination_cluster_id")
	m.registered = gauge("broker_registered", "1 while the node id is registered and unfenced.", "node_id")
	m.evicted = counter("broker_evicted_total", "Times that others unregistered the node id.", "node_id")
	m.features = gauge("feature_max_level", "Highest level of a feature that kmirror supports.", "feature")
	labels := m.labels()
	m.refused = counter("refused_produces_total", "Produce requests to mirror topics that were refused.", "mirror", "topic")
	m.diverged = counter("divergence_total", "Divergences that the source reported while mirroring.", labels...)
	m.regressed = counter("watermark_regressions_total", "Times that a high watermark went back because the source had diverged.", labels...)
	m.bytes = counter("fetched_bytes_total", "Bytes of batches fetched from the source and accepted.", labels...)
	m.connections = gauge("connections", "Open client connections.", "listener")
	m.strangers = counter("refused_peers_total", "Connections of peers with a good certificate that are no brokers of the destination.", "listener")
	m.forward = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kmirror_forward_seconds", Help: "From a forwarded request to its answer.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
	}, []string{"api"})
	m.strays = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kmirror_stray_partitions", Help: "Partitions placed on our node ids that are not mirrors.",
	})
	m.selfFenced = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kmirror_self_fenced", Help: "1 while the process fences itself since clients that choose it can't be served.",
	})
	m.controllerChanges = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kmirror_controller_changes_total", Help: "Changes of the controller that is talked to.",
	})
	m.foreignReassigned = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kmirror_foreign_reassignments_total", Help: "Changes of mirror topics' replicas by others.",
	})
	m.syncErrors = counter("sync_errors_total", "Rounds of a kind of metadata that were not without errors.", "mirror", "kind")
	m.syncChanges = counter("sync_changes_total", "What the sync of metadata has changed at the destination.", "mirror", "kind")
	m.syncSkips = counter("sync_skips_total", "What the sync of metadata has left alone, and why.", "mirror", "kind", "reason")
	m.syncTook = gauge("sync_seconds", "How long a kind of metadata took in the last round.", "mirror", "kind")
	m.requests = counter("client_requests_total", "Requests that were sent as an ordinary client, by the side that they went to.", "side")
	m.registry.MustRegister(m.forward, m.strays, m.selfFenced, m.controllerChanges, m.foreignReassigned, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.buildInfo.WithLabelValues(version, "").Set(1)
	return m
}

// setCluster names the destination in build_info once it is known.
func (m *metrics) setCluster(version, id string) {
	m.buildInfo.Reset()
	m.buildInfo.WithLabelValues(version, id).Set(1)
}

func (m *metrics) labels() []string {
	if m.perPartition {
		return []string{"mirror", "topic", "partition"}
	}
	return []string{"mirror", "topic"}
}

func (m *metrics) values(mirror, topic string, partition int32) []string {
	if m.perPartition {
		return []string{mirror, topic, strconv.Itoa(int(partition))}
	}
	return []string{mirror, topic}
}

// NodeState implements broker.Observer.
func (m *metrics) NodeState(id int32, state broker.State) {
	up := 0.0
	if state == broker.StateActive {
		up = 1
	}
	m.registered.WithLabelValues(strconv.Itoa(int(id))).Set(up)
	m.evicted.WithLabelValues(strconv.Itoa(int(id))) // 0 from the start, so that the first eviction is a rise
}

// Evicted implements broker.Observer.
func (m *metrics) Evicted(id int32) { m.evicted.WithLabelValues(strconv.Itoa(int(id))).Inc() }

// FeatureMax implements broker.Observer.
func (m *metrics) FeatureMax(name string, level int16) {
	m.features.WithLabelValues(name).Set(float64(level))
}

// ControllerChanged implements broker.Observer.
func (m *metrics) ControllerChanged(string) { m.controllerChanges.Inc() }

// Strays implements broker.Observer.
func (m *metrics) Strays(partitions int) { m.strays.Set(float64(partitions)) }

// SelfFenced tells whether the process fences itself.
func (m *metrics) SelfFenced(fenced bool) {
	m.selfFenced.Set(0)
	if fenced {
		m.selfFenced.Set(1)
	}
}

// ProduceRefused implements proxy.Observer.
func (m *metrics) ProduceRefused(mirror, topic string) {
	m.refused.WithLabelValues(mirror, topic).Inc()
}

// Forwarded implements proxy.Observer.
func (m *metrics) Forwarded(api string, d time.Duration) {
	m.forward.WithLabelValues(api).Observe(d.Seconds())
}

// ConnectionOpened implements proxy.Observer.
func (m *metrics) ConnectionOpened(listener string) { m.connections.WithLabelValues(listener).Inc() }

// ConnectionClosed implements proxy.Observer.
func (m *metrics) ConnectionClosed(listener string) { m.connections.WithLabelValues(listener).Dec() }

// PeerRefused implements proxy.Observer.
func (m *metrics) PeerRefused(listener string) { m.strangers.WithLabelValues(listener).Inc() }

// Fetched implements fetch.Observer.
func (m *metrics) Fetched(mirror, topic string, partition int32, n int) {
	m.bytes.WithLabelValues(m.values(mirror, topic, partition)...).Add(float64(n))
}

// Diverged implements fetch.Observer.
func (m *metrics) Diverged(mirror, topic string, partition int32) {
	m.diverged.WithLabelValues(m.values(mirror, topic, partition)...).Inc()
}

// WatermarkRegressed counts a high watermark that went back.
func (m *metrics) WatermarkRegressed(mirror, topic string, partition int32) {
	m.regressed.WithLabelValues(m.values(mirror, topic, partition)...).Inc()
}

// ForeignReassignment counts a change of a mirror topic's replicas by others.
func (m *metrics) ForeignReassignment() { m.foreignReassigned.Inc() }

// SyncChanged implements metasync.Observer, as do the methods below up to SyncTook.
func (m *metrics) SyncChanged(mirror, kind string, n int) {
	m.syncChanges.WithLabelValues(mirror, kind).Add(float64(n))
}

// SyncSkipped counts what was left alone.
func (m *metrics) SyncSkipped(mirror, kind, reason string, n int) {
	m.syncSkips.WithLabelValues(mirror, kind, reason).Add(float64(n))
}

// SyncFailed counts a round that was not without errors.
func (m *metrics) SyncFailed(mirror, kind string) { m.syncErrors.WithLabelValues(mirror, kind).Inc() }

// SyncTook tells how long a round took.
func (m *metrics) SyncTook(mirror, kind string, took time.Duration) {
	m.syncTook.WithLabelValues(mirror, kind).Set(took.Seconds())
}

// SyncRests takes back how long rounds took that are no more.
func (m *metrics) SyncRests(mirror string) {
	m.syncTook.DeletePartialMatch(prometheus.Labels{"mirror": mirror})
}

// Request counts a request that was sent as an ordinary client.
func (m *metrics) Request(side string) { m.requests.WithLabelValues(side).Inc() }

// watch adds the metrics that are read when somebody asks: partitions as describe shows them, and for each mirror when its
// source answered last (zero time: not yet).
func (m *metrics) watch(partitions func() []admin.PartitionInfo, sources func() map[string]time.Time) {
	m.registry.MustRegister(newPartitionCollector(m.perPartition, partitions, sources))
}

// partitionCollector reads states when it is scraped.
type partitionCollector struct {
	perPartition bool
	partitions   func() []admin.PartitionInfo
	sources      func() map[string]time.Time
	now          func() time.Time

	state, lag, lagBytes, lagSeconds, locked, isr, room, age *prometheus.Desc
}

func newPartitionCollector(
	perPartition bool, partitions func() []admin.PartitionInfo, sources func() map[string]time.Time,
) *partitionCollector {
	labels := []string{"mirror", "topic"}
	if perPartition {
		labels = append(labels, "partition")
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kmirror_"+name, help, labels, nil)
	}
	return &partitionCollector{
		perPartition: perPartition, partitions: partitions, sources: sources, now: time.Now,
		state:      desc("partition_state", "Partitions in that state; 0 or 1 with a partition label.", append(labels, "state")...),
		lag:        desc("lag_records", "Records that the destination lacks.", labels...),
		lagBytes:   desc("lag_bytes", "Bytes that the destination lacks.", labels...),
		lagSeconds: desc("lag_seconds", "Age of the oldest record that the destination lacks.", labels...),
		locked:     desc("topic_locked", "1 while clients can't write to the mirror topic.", "mirror", "topic"),
		isr:        desc("real_insync_replicas", "In-sync replicas that are real brokers; the least of the topic.", labels...),
		room:       desc("epoch_headroom", "Destination's leader epoch minus the source's; the least of the topic.", labels...),
		age:        desc("source_fetch_age_seconds", "Since the source answered a fetch last.", "mirror"),
	}
}
