package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/protocol/kraft"
)

// ReadImage reads a cluster's metadata log up to what is committed now, as an observer: nothing is registered, and nothing written. A
// right that is missing is returned at once, anything else once ctx ends.
func ReadImage(ctx context.Context, controllers []string, opts []kgo.Opt, clusterID string) (*kraft.Image, error) {
	log := slog.New(slog.DiscardHandler)
	var image *kraft.Image
	f := &follower{ctl: newControllers(controllers, opts, log, noObserver{}), log: log, cluster: func() string { return clusterID },
		replica: func() int32 { return -1 }, publish: func(i *kraft.Image) { image = i }}
	defer f.ctl.close()
	f.restart()
	wait := backoff{min: 20 * time.Millisecond, max: time.Second}
	var last error
	for image == nil {
		err := f.poll(ctx)
		if errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.As(err, new(*refusedError)) {
			return nil, err
		}
		if err == nil {
			wait.reset()
			continue
		}
		if ctx.Err() == nil {
			last = err
		}
		if wait.wait(ctx) != nil {
			return nil, errors.Join(ctx.Err(), last)
		}
	}
	return image, nil
}

// IsGuest reports whether a registration in a cluster is one of kmirror's, of any process and any time.
func IsGuest(clusterID string, b *kraft.Broker) bool {
	return len(b.LogDirs) == 1 && b.LogDirs[0] == logDirID(clusterID, b.ID)
}

// FeatureRange is what kmirror knows of a feature.
type FeatureRange struct {
	Name     string
	Min, Max int16
}

// KnownFeatures are the features whose meaning is known, up to Kafka 4.4.
func KnownFeatures() (out []FeatureRange) {
	for _, f := range knownFeatures {
		out = append(out, FeatureRange{f.name, f.min, f.max})
	}
	return out
}

// CordonLevel is the metadata.version from which node ids can be kept free of partitions that are placed by the controller.
const CordonLevel = cordonLevel
