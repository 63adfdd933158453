package broker

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// featureRange is what we support of a feature.
type featureRange struct {
	name     string
	min, max int16
}

const metadataVersion = "metadata.version"

// cordonLevel is the metadata.version (4.3-IV0) from which the controller keeps cordoned log directories (KIP-1066).
const cordonLevel = 30

// knownFeatures are the ranges whose meaning we know, up to Kafka 4.4. All but metadata.version concern things that we
// forward, or that the controller does.
var knownFeatures = []featureRange{
	{metadataVersion, 7, 33},
	{"kraft.version", 0, 1},
	{"transaction.version", 0, 2},
	{"group.version", 0, 1},
	{"eligible.leader.replicas.version", 0, 1},
	{"share.version", 0, 2},
	{"streams.version", 0, 1},
}

// features returns the ranges to register: what we know, widened to what the controller supports. The controller refuses
// to raise a feature above what any registered broker supports, and a guest must not stand in the way of an upgrade.
func features(controller []kmsg.ApiVersionsResponseSupportedFeature) []featureRange {
	out := slices.Clone(knownFeatures)
	for _, f := range controller {
		i := slices.IndexFunc(out, func(r featureRange) bool { return r.name == f.Name })
		if i < 0 {
			out = append(out, featureRange{f.Name, f.MinVersion, f.MaxVersion})
			continue
		}
		out[i].min, out[i].max = min(out[i].min, f.MinVersion), max(out[i].max, f.MaxVersion)
	}
	slices.SortFunc(out, func(a, b featureRange) int { return strings.Compare(a.name, b.name) })
	return out
}

// supportedFeatures asks the active controller.
func (b *Broker) supportedFeatures(ctx context.Context) ([]featureRange, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kmirror", "1"
	kr, err := b.ctl.try(ctx, req, requestTimeout)
	if err != nil {
		return nil, err
	}
	resp := kr.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("ApiVersions of the controller: %w", err)
	}
	return features(resp.SupportedFeatures), nil
}

// logDirID is the id of the one log directory that we claim for a node id: the controller wants one that is stable over
// restarts and that no other broker has. The bits of a version 4 UUID keep it clear of Kafka's reserved ids, the first
// hundred numbers.
func logDirID(clusterID string, node int32) protocol.UUID {
	sum := sha256.Sum256(fmt.Appendf(nil, "kmirror log directory\x00%s\x00%d", clusterID, node))
	u := protocol.UUID(sum[:16])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}
