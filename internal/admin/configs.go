package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/clientconf"
	"kmirror/internal/filters"
	"kmirror/protocol/kip1279"
)

// resourceMirror is KIP-1279's resource type of configs, CLUSTER_MIRROR.
const resourceMirror = kmsg.ConfigResourceType(64)

// VerbConfig is MirrorConfig; the payload is the mirror's name, the answer its properties.
const VerbConfig = "config"

// sourceClusterConfig is the property that names the source's cluster id. It is known of every mirror.
const sourceClusterConfig = "mirror.source.cluster.id"

// ConfigOp says how a ConfigChange changes a property, by the numbers of IncrementalAlterConfigs.
type ConfigOp int8

// Operations on properties. Append and Subtract are for lists.
const (
	ConfigSet ConfigOp = iota
	ConfigDelete
	ConfigAppend
	ConfigSubtract
)

// ConfigChange changes one property of a mirror.
type ConfigChange struct {
	Name  string   `json:"name"`
	Op    ConfigOp `json:"op"`
	Value string   `json:"value,omitempty"`
}

// listConfigs are the properties that are lists, separated by commas.
var listConfigs = []string{
	"bootstrap.servers", filters.TopicsInclude, filters.TopicsExclude, filters.GroupsInclude, filters.GroupsExclude, filters.ACLsInclude,
	filters.TopicPropertiesExclude,
}

// ChangeConfig returns config with changes made to it, in order, as Kafka makes them: what is appended already stays once, and what
// is subtracted or deleted need not be there. config stays as it is. The error is an *Error.
func ChangeConfig(config map[string]string, changes []ConfigChange) (map[string]string, error) {
	out := maps.Clone(config)
	if out == nil {
		out = map[string]string{}
	}
	for _, c := range changes {
		if (c.Op == ConfigAppend || c.Op == ConfigSubtract) && !slices.Contains(listConfigs, c.Name) {
			return nil, &Error{Code: kip1279.InvalidConfig, Message: fmt.Sprintf("%s is no list: it can't be appended to or subtracted from", c.Name),
				Hint: "set it as a whole", Exit: ExitUsage}
		}
		var list []string
		if now := out[c.Name]; now != "" {
			list = strings.Split(now, ",")
		}
		for _, v := range strings.Split(c.Value, ",") {
			at := slices.Index(list, v)
			switch {
			case c.Op == ConfigAppend && at < 0:
				list = append(list, v)
			case c.Op == ConfigSubtract && at >= 0:
				list = slices.Delete(list, at, at+1)
			}
		}
		switch c.Op {
		case ConfigSet:
			out[c.Name] = c.Value
		case ConfigDelete:
			delete(out, c.Name)
		case ConfigAppend, ConfigSubtract:
			out[c.Name] = strings.Join(list, ",")
		default:
			return nil, usage(fmt.Sprintf("operation %d on %s is not known", c.Op, c.Name), "0 sets, 1 deletes, 2 appends, 3 subtracts")
		}
	}
	return out, nil
}

// MirrorConfig implements Service.
func (c *Client) MirrorConfig(ctx context.Context, mirror string) (map[string]string, error) {
	var out map[string]string
	answer, err := c.Call(ctx, VerbConfig, mustJSON(mirror))
	if err == nil {
		err = readAnswer(VerbConfig, answer, &out)
	}
	return out, err
}

// MirrorConfig asks the mirror's metadata coordinator, who knows of the newest change.
func (f *Forward) MirrorConfig(ctx context.Context, mirror string) (out map[string]string, err error) {
	err = f.owned(ctx, mirror, func(ctx context.Context, s Service) error { out, err = s.MirrorConfig(ctx, mirror); return err })
	return out, err
}

func (s *Server) mirrorConfig(ctx context.Context, payload []byte) ([]byte, error) {
	var mirror string
	if err := json.Unmarshal(payload, &mirror); err != nil {
		return nil, usage("the mirror's name is not readable: "+err.Error(), "use the kmirror command of the version that serves there")
	}
	out, err := s.cfg.Service.MirrorConfig(ctx, mirror)
	if err != nil {
		return nil, err
	}
	return mustJSON(out), nil
}

// describeConfigs answers DescribeConfigs of mirrors. What could hold a secret is sensitive, and its value is null.
func (s *Server) describeConfigs(ctx context.Context, req *kmsg.DescribeConfigsRequest, denied *Error) *kmsg.DescribeConfigsResponse {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	for _, r := range req.Resources {
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		err := mirrorResource(r.ResourceType, denied)
		var config map[string]string
		if err == nil {
			config, err = s.cfg.Service.MirrorConfig(ctx, r.ResourceName)
		}
		if err != nil {
			e := asError(err)
			out.ErrorCode, out.ErrorMessage = e.Code, &e.Message
		}
		for _, name := range sortedKeys(config) {
			if r.ConfigNames == nil || slices.Contains(r.ConfigNames, name) {
				out.Configs = append(out.Configs, configEntry(name, config[name], req.IncludeSynonyms))
			}
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// configEntry is one property. Its source is UNKNOWN (0): Kafka has no number for "set for this mirror".
func configEntry(name, value string, synonyms bool) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.ReadOnly, out.IsSensitive = name, name == sourceClusterConfig, clientconf.Secret(name)
	out.ConfigType = kmsg.ConfigTypeString
	switch {
	case out.IsSensitive:
		out.ConfigType = kmsg.ConfigTypePassword
	case slices.Contains(listConfigs, name):
		out.ConfigType = kmsg.ConfigTypeList
	}
	if !out.IsSensitive {
		out.Value = &value
	}
	if synonyms {
		same := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		same.Name, same.Value = name, out.Value
		out.ConfigSynonyms = append(out.ConfigSynonyms, same)
	}
	return out
}

// mirrorResource refuses resources that are no mirrors.
func mirrorResource(kind kmsg.ConfigResourceType, denied *Error) error {
	switch {
	case denied != nil:
		return denied
	case kind != resourceMirror:
		return usage(fmt.Sprintf("resource type %d is not known here: kmirror's admin listener has CLUSTER_MIRROR (%d)", kind, resourceMirror),
			"ask a broker of the cluster")
	}
	return nil
}

// alterConfigs answers IncrementalAlterConfigs of mirrors. Each mirror is changed as a whole or not at all.
func (s *Server) alterConfigs(
	ctx context.Context, req *kmsg.IncrementalAlterConfigsRequest, who caller, denied *Error,
) *kmsg.IncrementalAlterConfigsResponse {
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	named := map[string]int{}
	for _, r := range req.Resources {
		named[fmt.Sprint(int8(r.ResourceType), r.ResourceName)]++
	}
	for _, r := range req.Resources {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		err := mirrorResource(r.ResourceType, denied)
		if err == nil && named[fmt.Sprint(int8(r.ResourceType), r.ResourceName)] > 1 {
			err = usage("mirror "+r.ResourceName+" is named more than once", "name each once")
		}
		if err == nil {
			err = s.alterConfig(ctx, r, req.ValidateOnly, who)
		}
		if err != nil {
			e := asError(err)
			out.ErrorCode, out.ErrorMessage = e.Code, &e.Message
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (s *Server) alterConfig(ctx context.Context, r kmsg.IncrementalAlterConfigsRequestResource, dry bool, who caller) error {
	alter, result := AlterRequest{Mirror: r.ResourceName, DryRun: dry}, AlterResult{}
	var err error
	if alter.Changes, err = changesOf(r.Configs); err == nil {
		result, err = s.cfg.Service.AlterMirror(ctx, alter)
	}
	s.audit("alter", who, err, "mirror", alter.Mirror, "changed", result.Changed, "dry_run", dry, "incremental", true)
	return err
}

// changesOf reads the properties of a request. Each may be named once.
func changesOf(configs []kmsg.IncrementalAlterConfigsRequestResourceConfig) ([]ConfigChange, error) {
	out, seen := make([]ConfigChange, 0, len(configs)), map[string]bool{}
	for _, c := range configs {
		change := ConfigChange{Name: c.Name, Op: ConfigOp(c.Op)}
		if seen[c.Name] {
			return nil, usage(c.Name+" is named more than once", "name each property once")
		}
		seen[c.Name] = true
		if c.Value != nil {
			change.Value = *c.Value
		} else if change.Op != ConfigDelete {
			return nil, usage(c.Name+" has no value", "delete it, or give a value")
		}
		out = append(out, change)
	}
	if len(out) == 0 {
		return nil, usage("no property is named", "name those that are to change")
	}
	return out, nil
}

// configResources answers ListConfigResources: mirrors are all there is.
func (s *Server) configResources(
	ctx context.Context, req *kmsg.ListConfigResourcesRequest, denied *Error,
) *kmsg.ListConfigResourcesResponse {
	resp := kmsg.NewPtrListConfigResourcesResponse()
	if denied != nil {
		resp.ErrorCode = denied.Code
		return resp
	}
	if req.Version == 0 || len(req.ResourceTypes) > 0 && !slices.Contains(req.ResourceTypes, int8(resourceMirror)) {
		return resp // version 0 asks for client metrics
	}
	mirrors, err := s.cfg.Service.ListMirrors(ctx, false)
	if err != nil {
		resp.ErrorCode = asError(err).Code
	}
	for _, m := range mirrors {
		r := kmsg.NewListConfigResourcesResponseConfigResource()
		r.Name, r.Type = m.Mirror, int8(resourceMirror)
		resp.ConfigResources = append(resp.ConfigResources, r)
	}
	return resp
}
