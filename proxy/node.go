package proxy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// logDirName is the one log directory that we show. There is nothing in it: kmirror keeps no log.
const logDirName = "/kmirror"

// describeLogDirs shows a directory without replicas and of unknown size. A real broker's answer under our id would make
// tools count its disks twice.
func (c *conn) describeLogDirs() *kmsg.DescribeLogDirsResponse {
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	if !c.may(mayDescribe) {
		resp.ErrorCode = codeClusterAuthorization
		return resp
	}
	dir := kmsg.NewDescribeLogDirsResponseDir()
	dir.Dir, dir.TotalBytes, dir.UsableBytes = logDirName, -1, -1
	resp.Dirs = append(resp.Dirs, dir)
	return resp
}

// alterReplicaLogDirs refuses every move: there is nothing to move, and nowhere to.
func (c *conn) alterReplicaLogDirs(req *kmsg.AlterReplicaLogDirsRequest) *kmsg.AlterReplicaLogDirsResponse {
	resp := kmsg.NewPtrAlterReplicaLogDirsResponse()
	code := codeLogDirNotFound
	if !c.may(mayAlter) {
		code = codeClusterAuthorization
	}
	for _, d := range req.Dirs {
		for _, t := range d.Topics {
			rt := kmsg.NewAlterReplicaLogDirsResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	}
	return resp
}

// nodeResource says what a config resource means to us: one of a broker, or of a broker's loggers, is addressed to the
// node that gets the request. The cluster-wide default (an empty name) is anybody's.
func (c *conn) nodeResource(kind kmsg.ConfigResourceType, name string) (ours bool, refusal string) {
	if kind != kmsg.ConfigResourceTypeBroker && kind != kmsg.ConfigResourceTypeBrokerLogger || name == "" {
		return false, ""
	}
	if name != strconv.Itoa(int(c.l.NodeID)) {
		return true, fmt.Sprintf("unexpected broker id %q: this is node %d", name, c.l.NodeID)
	}
	return true, ""
}

// describeConfigs answers for our node id and forwards resources of the cluster.
func (c *conn) describeConfigs(
	h protocol.RequestHeader, req *kmsg.DescribeConfigsRequest, frame []byte, start time.Time,
) error {
	var own []kmsg.DescribeConfigsResponseResource
	var rest []kmsg.DescribeConfigsRequestResource
	for _, r := range req.Resources {
		ours, refusal := c.nodeResource(r.ResourceType, r.ResourceName)
		if !ours {
			rest = append(rest, r)
			continue
		}
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		if !c.may(mayDescribeConfigs) {
			out.ErrorCode, out.ErrorMessage = codeClusterAuthorization, new("Cluster authorization failed.")
		} else if refusal != "" {
			out.ErrorCode, out.ErrorMessage = codeInvalidRequest, &refusal
		} else if r.ResourceType == kmsg.ConfigResourceTypeBroker {
			out.Configs = c.nodeConfigs(r.ConfigNames)
		}
		own = append(own, out)
	}
	if len(own) == 0 {
		return c.forward(h, frame, start, false)
	}
	resp := kmsg.NewPtrDescribeConfigsResponse()
	if len(rest) > 0 {
		req.Resources = rest
		answer, err := c.askUpstream(req, 0)
		if err != nil {
			return err
		}
		resp = answer.(*kmsg.DescribeConfigsResponse)
	}
	resp.Resources = append(resp.Resources, own...)
	return c.reply(h, resp)
}

func (c *conn) nodeConfigs(only []string) []kmsg.DescribeConfigsResponseResourceConfig {
	const fromFile = kmsg.ConfigSourceStaticBrokerConfig
	values := c.s.cfg.NodeConfig(c.l.NodeID)
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if only != nil && !slices.Contains(only, name) {
			continue
		}
		v := kmsg.NewDescribeConfigsResponseResourceConfig()
		value := values[name]
		v.Name, v.Value, v.ReadOnly, v.Source, v.ConfigType = name, &value, true, fromFile, kmsg.ConfigTypeString
		out = append(out, v)
	}
	return out
}

// alterRefusal is what one who alters the config of our node is told. Who may not learns nothing else.
func (c *conn) alterRefusal(refusal string) (code int16, text *string) {
	if !c.may(mayAlterConfigs) {
		return codeClusterAuthorization, nil
	}
	if refusal == "" {
		refusal = fmt.Sprintf("node %d is kmirror, not a broker: its configuration is its own file", c.l.NodeID)
	}
	return codeInvalidRequest, &refusal
}

// clearsNothing reports whether a request only removes configs of our node that it does not have. There is nothing to refuse then, and
// kafka-reassign-partitions --verify, which clears the throttles of every broker, would fail by a refusal.
func (c *conn) clearsNothing(r kmsg.IncrementalAlterConfigsRequestResource) bool {
	set := c.s.cfg.Images.Image().Configs[kraft.ConfigResource{Type: kraft.ConfigBroker, Name: r.ResourceName}]
	for _, k := range r.Configs {
		if _, ok := set[k.Name]; ok || k.Op != kmsg.IncrementalAlterConfigOpDelete {
			return false
		}
	}
	return r.ResourceType == kmsg.ConfigResourceTypeBroker && len(r.Configs) > 0
}

// alterConfigs refuses to alter our node and forwards the rest.
func (c *conn) alterConfigs(h protocol.RequestHeader, req *kmsg.AlterConfigsRequest, frame []byte, start time.Time) error {
	var own []kmsg.AlterConfigsResponseResource
	var rest []kmsg.AlterConfigsRequestResource
	for _, r := range req.Resources {
		ours, refusal := c.nodeResource(r.ResourceType, r.ResourceName)
		if !ours {
			rest = append(rest, r)
			continue
		}
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		out.ErrorCode, out.ErrorMessage = c.alterRefusal(refusal)
		own = append(own, out)
	}
	if len(own) == 0 {
		return c.forward(h, frame, start, false)
	}
	resp := kmsg.NewPtrAlterConfigsResponse()
	if len(rest) > 0 {
		req.Resources = rest
		answer, err := c.askUpstream(req, 0)
		if err != nil {
			return err
		}
		resp = answer.(*kmsg.AlterConfigsResponse)
	}
	resp.Resources = append(resp.Resources, own...)
	return c.reply(h, resp)
}

// incrementalAlterConfigs is alterConfigs for the newer request.
func (c *conn) incrementalAlterConfigs(
	h protocol.RequestHeader, req *kmsg.IncrementalAlterConfigsRequest, frame []byte, start time.Time,
) error {
	var own []kmsg.IncrementalAlterConfigsResponseResource
	var rest []kmsg.IncrementalAlterConfigsRequestResource
	for _, r := range req.Resources {
		ours, refusal := c.nodeResource(r.ResourceType, r.ResourceName)
		if !ours {
			rest = append(rest, r)
			continue
		}
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		if refusal != "" || !c.may(mayAlterConfigs) || !c.clearsNothing(r) {
			out.ErrorCode, out.ErrorMessage = c.alterRefusal(refusal)
		}
		own = append(own, out)
	}
	if len(own) == 0 {
		return c.forward(h, frame, start, false)
	}
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	if len(rest) > 0 {
		req.Resources = rest
		answer, err := c.askUpstream(req, 0)
		if err != nil {
			return err
		}
		resp = answer.(*kmsg.IncrementalAlterConfigsResponse)
	}
	resp.Resources = append(resp.Resources, own...)
	return c.reply(h, resp)
}
