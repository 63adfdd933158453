package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kmirror/internal/broker"
	"kmirror/protocol/kraft"
)

// destination looks at the cluster that kmirror is to join and returns its id, empty where it was not reached.
func (r *Report) destination(ctx context.Context, c Config) (string, error) {
	cl, err := newClient(c.Opts)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	meta, err := r.brokers(ctx, "destination", cl, c.NodeIDs)
	if err != nil {
		r.unreachable("destination brokers", err)
		return "", nil
	}
	if c.ClusterID != "" && c.ClusterID != meta.Cluster {
		r.add(Fail, "destination cluster", "correct cluster_id or destination", "brokers are of cluster %s, cluster_id pins %s",
			meta.Cluster, c.ClusterID)
	} else {
		r.ok("destination cluster", "%s", meta.Cluster)
	}
	r.features(ctx, cl)
	r.rights(ctx, "destination", cl, destinationRights)
	seen, err := topics(ctx, cl)
	if err != nil {
		r.unreachable("destination topics", err)
		return meta.Cluster, nil
	}
	img := r.controllers(ctx, c, meta.Cluster)
	r.topicRights("destination", withHidden(seen, img), []topicRight{
		{kmsg.ACLOperationRead, "verify fails, offsets of others are not told, groups are not synced"},
		{kmsg.ACLOperationAlter, "topics don't grow"}, {kmsg.ACLOperationAlterConfigs, "mirrors stay in PREPARING"},
	}, func(string) bool { return false }, Warn)
	if img == nil {
		return meta.Cluster, nil
	}
	code, err := stateTopic(ctx, c.Opts, img, seen["__mirror_state"].ops)
	i := slices.IndexFunc(destinationRights, func(x right) bool { return x.probe == nil })
	r.judge("destination", destinationRights[i], code, err)
	r.image(ctx, c, cl, meta.Cluster, img)
	return meta.Cluster, nil
}

// withHidden adds the topics that brokers don't show: nothing is allowed there.
func withHidden(seen map[string]seenTopic, img *kraft.Image) map[string]seenTopic {
	out := maps.Clone(seen)
	if img == nil {
		return out
	}
	for name := range img.Names {
		if _, ok := out[name]; !ok && !strings.HasPrefix(name, "__") {
			out[name] = seenTopic{ops: []kadm.ACLOperation{}}
		}
	}
	return out
}

// image looks at what the metadata log tells.
func (r *Report) image(ctx context.Context, c Config, cl *kgo.Client, cluster string, img *kraft.Image) {
	r.nodeIDs(c, cluster, img)
	if err := c.CheckListeners(img); err != nil {
		r.add(Fail, "listeners", "give each listener of the brokers, with its protocol, in kmirror.yaml", "%v", err)
	} else {
		r.ok("listeners", "names and protocols are those of the brokers")
	}
	real := realBrokers(cluster, img)
	if len(real) == 0 {
		r.add(Fail, "destination brokers", "start the brokers", "no real broker is registered")
		return
	}
	r.reach(ctx, c, real)
	r.replication(ctx, c, real)
	r.settings(ctx, c, cl, img, real)
	r.tiered(img)
}

// realBrokers are those with disks of their own, by id.
func realBrokers(cluster string, img *kraft.Image) (out []*kraft.Broker) {
	for _, id := range slices.Sorted(maps.Keys(img.Brokers)) {
		if b := img.Brokers[id]; !broker.IsGuest(cluster, b) {
			out = append(out, b)
		}
	}
	return out
}

// controllers asks each for its cluster, and then the active one for the metadata log; nil where that is not to be had.
func (r *Report) controllers(ctx context.Context, c Config, cluster string) *kraft.Image {
	const alterRight = "ALTER on CLUSTER kafka-cluster"
	answered := 0
	for _, addr := range c.Controllers {
		id, err := controllerCluster(ctx, addr, c.Controller)
		switch {
		case errors.Is(err, kerr.ClusterAuthorizationFailed):
			answered++
			r.add(Fail, "controller rights", "allow "+alterRight+" to the principal of destination.controller_client",
				"%s is missing at %s: kmirror does not get ready", alterRight, addr)
		case errors.Is(err, kerr.MismatchedEndpointType):
			r.add(Fail, "controllers", "give the controllers' own listener, as in controller.quorum.bootstrap.servers or controller.quorum.voters "+
				"of the brokers", "%s of destination.controllers is a listener of brokers", addr)
		case err != nil:
			r.add(Fail, "controllers", "check destination.controllers, controller_client and the network", "%s: %v", addr, err)
		case id != cluster:
			answered++
			r.add(Fail, "controllers", "point both at one cluster", "%s is of cluster %s, the brokers are of %s", addr, id, cluster)
		default:
			answered++
			r.ok("controllers", "%s answers", addr)
		}
	}
	if answered == 0 {
		r.Unreachable = true
		return nil
	}
	reading, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	img, err := broker.ReadImage(reading, c.Controllers, c.Controller, cluster)
	what := right{"CLUSTER", "kafka-cluster", "CLUSTER_ACTION", Fail, "kmirror does not get ready", nil}
	switch {
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		r.judge("controller", what, kerr.ClusterAuthorizationFailed.Code, nil)
	case err != nil:
		r.add(Fail, "metadata log", "check that the controllers have a leader, and their log", "can't be read: %v", err)
	default:
		r.judge("controller", what, 0, nil)
		r.ok("metadata log", "read up to offset %d: %d brokers, %d topics", img.Offset, len(img.Brokers), len(img.Topics))
	}
	return img
}

// controllerCluster asks one controller for its cluster's id.
func controllerCluster(ctx context.Context, addr string, opts []kgo.Opt) (string, error) {
	cl, err := newClient(opts, kgo.SeedBrokers(addr))
	if err != nil {
		return "", err
	}
	defer cl.Close()
	req := kmsg.NewPtrDescribeClusterRequest()
	req.EndpointType = 2 // controllers
	resp, err := ask[*kmsg.DescribeClusterResponse](ctx, cl, req)
	if err != nil {
		return "", err
	}
	return resp.ClusterID, kerr.ErrorForCode(resp.ErrorCode)
}

// features holds what the cluster has finalized against what kmirror knows.
func (r *Report) features(ctx context.Context, cl *kgo.Client) {
	const check = "features"
	resp, err := ask[*kmsg.ApiVersionsResponse](ctx, cl, apiVersions())
	if err != nil {
		r.add(Warn, check, "ask again", "not known: %v", err)
		return
	}
	levels := map[string]int16{}
	for _, f := range resp.FinalizedFeatures {
		levels[f.Name] = f.MaxVersionLevel
	}
	if _, ok := levels["metadata.version"]; !ok {
		r.add(Fail, check, "only KRaft clusters, Kafka 3.3 or newer, can be mirrored into", "the destination has no metadata.version")
		return
	}
	var fine []string
	for _, f := range broker.KnownFeatures() {
		level, ok := levels[f.Name]
		delete(levels, f.Name)
		switch {
		case ok && level < f.Min:
			r.add(Fail, check, "upgrade the destination", "%s is %d, kmirror needs %d or more", f.Name, level, f.Min)
		case ok && level > f.Max:
			r.add(Warn, check, "use a kmirror that knows this level", "%s is %d, kmirror knows it up to %d", f.Name, level, f.Max)
		case ok && f.Name == "metadata.version" && level < broker.CordonLevel:
			r.add(Warn, check, "Kafka 4.3 and its metadata.version keep the controller from placing partitions of others on kmirror for a moment",
				"%s is %d, below %d", f.Name, level, broker.CordonLevel)
		case ok:
			fine = append(fine, fmt.Sprintf("%s %d", f.Name, level))
		}
	}
	for name, level := range levels {
		r.add(Warn, check, "use a kmirror that knows it, or see that it concerns neither replication nor metadata", "%s (%d) is not known", name, level)
	}
	if len(fine) > 0 {
		r.ok(check, "%s", strings.Join(fine, ", "))
	}
}

// kafkaVersion judges a version by what is tested.
func (r *Report) kafkaVersion(version string) {
	const check = "kafka version"
	var major, minor int
	if n, err := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		r.add(Fail, check, "write it like 4.4.0", "%q is no version: %v", version, err)
		return
	}
	switch v := major*100 + minor; {
	case v < 303:
		r.add(Fail, check, "use 3.3 or newer, with KRaft", "%s is too old for a destination", version)
	case v < 400:
		r.add(Warn, check, "4.0 to 4.4 are", "%s is not tested", version)
	case v > 404:
		r.add(Warn, check, "upgrade kmirror first, then the brokers, and finalize features last",
			"%s is newer than what this kmirror knows, 4.4", version)
	default:
		r.ok(check, "%s is known", version)
	}
}

// nodeIDs wants ours to be free, or kmirror's from an earlier run.
func (r *Report) nodeIDs(c Config, cluster string, img *kraft.Image) {
	const check = "node ids"
	for _, id := range c.NodeIDs {
		b := img.Brokers[id]
		switch {
		case b == nil:
			r.ok(check, "%d is free", id)
		case !broker.IsGuest(cluster, b):
			r.add(Fail, check, "choose node_ids that no broker has", "%d is a real broker", id)
		case !b.Fenced:
			r.add(Warn, check, "stop that one before another starts with the same ids", "%d is held by a kmirror that is alive", id)
		default:
			r.ok(check, "%d is held by an earlier kmirror, which this one replaces", id)
		}
	}
}

// replication asks a broker, at its inter-broker listener, for a partition as a follower does.
func (r *Report) replication(ctx context.Context, c Config, real []*kraft.Broker) {
	const check = "replication"
	for _, b := range real {
		i := slices.IndexFunc(b.Endpoints, func(e kraft.Endpoint) bool { return e.Name == c.InterBrokerListener })
		if i < 0 || b.Fenced {
			continue
		}
		addr := net.JoinHostPort(b.Endpoints[i].Host, strconv.Itoa(int(b.Endpoints[i].Port)))
		code, err := followerFetch(ctx, c, addr)
		if err != nil {
			r.add(Fail, check, "check replication_client and the network", "broker %d at %s: %v", b.ID, addr, err)
			return
		}
		r.judge(check, right{"CLUSTER", "kafka-cluster", "CLUSTER_ACTION", Fail, "kmirror does not take leadership", nil}, code, nil)
		return
	}
	r.add(Fail, check, "correct destination.inter_broker_listener", "no broker that is alive has a listener %s", c.InterBrokerListener)
}

// followerFetch asks, as a replica, for a topic that is not there: the right is looked at first.
func followerFetch(ctx context.Context, c Config, addr string) (int16, error) {
	named := kversion.Stable()
	named.SetMaxKeyVersion(int16(kmsg.Fetch), 12) // above, topics have ids
	cl, err := newClient(c.Replication, kgo.SeedBrokers(addr), kgo.MaxVersions(named))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.SessionEpoch = c.NodeIDs[0], -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.Partitions = nothing, append(t.Partitions, kmsg.NewFetchRequestTopicPartition())
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.FetchResponse](ctx, cl, req)
	if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, errors.Join(err, emptyAnswer(err))
	}
	return resp.Topics[0].Partitions[0].ErrorCode, nil
}

// settings looks at the configuration of a broker, and at who else works on the cluster.
func (r *Report) settings(ctx context.Context, c Config, cl *kgo.Client, img *kraft.Image, real []*kraft.Broker) {
	config, err := brokerConfig(ctx, cl, real[0].ID)
	if err != nil {
		r.add(Warn, "broker settings", "allow DESCRIBE_CONFIGS on CLUSTER kafka-cluster, which ALTER_CONFIGS brings",
			"client certificates, automatic topics and who else manages the cluster are not known: %v", err)
	} else {
		r.clientCertificates(c, config)
		r.Findings = append(r.Findings, replicatesOver(config, c.InterBrokerListener))
		r.automatic(config, real)
	}
	r.managers(config, img)
}

// automatic looks at what makes topics.
func (r *Report) automatic(config map[string]string, real []*kraft.Broker) {
	if config["auto.create.topics.enable"] == "true" {
		r.add(Warn, "automatic topics", "set auto.create.topics.enable=false, or have clients wait until a topic is mirrored",
			"a client that is early creates a topic of the name that is to be mirrored; start refuses it then")
	} else {
		r.ok("automatic topics", "auto.create.topics.enable is off")
	}
	alive := 0
	for _, b := range real {
		if !b.Fenced {
			alive++
		}
	}
	factor, err := strconv.Atoi(config["default.replication.factor"])
	switch {
	case err != nil:
		r.add(Warn, "replication factor", "see default.replication.factor of the brokers", "not known: %q", config["default.replication.factor"])
	case factor > alive:
		r.add(Fail, "replication factor", "start the other brokers, or lower default.replication.factor",
			"default.replication.factor is %d, %d real brokers are alive", factor, alive)
	default:
		r.ok("replication factor", "%d, %d real brokers are alive", factor, alive)
	}
}

// managers looks for others that create or move what kmirror creates and moves.
func (r *Report) managers(config map[string]string, img *kraft.Image) {
	const check = "other managers"
	found := false
	note := func(hint, format string, args ...any) {
		found = true
		r.add(Warn, check, hint, format, args...)
	}
	signs := func(is func(string) bool) (names []string) {
		for name := range img.Names {
			if is(name) {
				names = append(names, name)
			}
		}
		return names
	}
	var strimzi []string
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if strings.Contains(strings.ToLower(key+config[key]), "strimzi") {
			strimzi = append(strimzi, key)
		}
	}
	if strimzi = append(strimzi, signs(func(n string) bool { return strings.Contains(n, "strimzi") })...); len(strimzi) > 0 {
		note("don't name mirror topics in KafkaTopic resources: the topic operator undoes the lock; exclude kmirror's ids from its rebalances",
			"Strimzi, by %s", some(strimzi))
	}
	cruise := signs(func(n string) bool {
		return strings.HasPrefix(n, "__CruiseControl") || strings.HasPrefix(n, "__KafkaCruiseControl")
	})
	if strings.Contains(config["metric.reporters"], "CruiseControl") {
		cruise = append(cruise, "metric.reporters")
	}
	if len(cruise) > 0 {
		note("exclude mirror topics (topics.excluded.from.partition.movement) and kmirror's ids from it", "Cruise Control, by %s", some(cruise))
	}
	maker := signs(func(n string) bool {
		return strings.HasPrefix(n, "mm2-") || n == "heartbeats" || strings.HasSuffix(n, ".heartbeats") || strings.HasSuffix(n, ".checkpoints.internal")
	})
	if len(maker) > 0 {
		note("let it not write to topics that kmirror mirrors, nor sync the same groups", "MirrorMaker 2, by %s", some(maker))
	}
	if !found {
		r.ok(check, "no sign of Strimzi, Cruise Control or MirrorMaker 2")
	}
}

// tiered names topics that can't be mirror topics.
func (r *Report) tiered(img *kraft.Image) {
	var names []string
	for resource, config := range img.Configs {
		if resource.Type == kraft.ConfigTopic && config["remote.storage.enable"] == "true" {
			names = append(names, resource.Name)
		}
	}
	if len(names) > 0 {
		r.add(Warn, "tiered storage", "mirror into other topics: those with remote.storage.enable can't be mirrored into", "%s", some(names))
		return
	}
	r.ok("tiered storage", "no topic has it")
}
