package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/broker"
	"kmirror/internal/metapoll"
)

const (
	// readyLook is how often serve looks whether it is ready.
	readyLook = time.Second
	// readyFirst is how long a start may take before serve says that it is not ready, readyAgain how often it says so again.
	readyFirst = 10 * time.Second
	readyAgain = 30 * time.Second
)

// tellReady says in the log when the process becomes ready, and while it is not, why: at once where it was before. Without it a process
// that waits for a controller would be silent for as long as that takes.
func tellReady(ctx context.Context, ready func() error, log *slog.Logger) {
	ticks := time.NewTicker(readyLook)
	defer ticks.Stop()
	began := time.Now()
	next := began.Add(readyFirst)
	was := false
	for {
		err := ready()
		switch now := time.Now(); {
		case err == nil && !was:
			log.Info("ready", "after", now.Sub(began).Round(time.Millisecond).String())
			was = true
		case err == nil:
		case was:
			log.Warn("not ready any more", "why", err)
			was, began, next = false, now, now.Add(readyAgain)
		case !now.Before(next):
			log.Warn("not ready yet", "for", now.Sub(began).Round(time.Second).String(), "why", err)
			next = now.Add(readyAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// serveError gives errors that a wrong configuration causes the exit code for those.
func serveError(err error) error {
	var mismatch *broker.ClusterMismatchError
	var taken *broker.NodeIDTakenError
	var other *metapoll.MismatchError
	switch {
	case errors.As(err, &other):
		return usageError(err.Error(), "point destination at one cluster, or correct cluster_id")
	case errors.As(err, &mismatch):
		return usageError(err.Error(), "point destination at one cluster, or correct cluster_id; nothing was registered")
	case errors.As(err, &taken):
		return usageError(err.Error(), "choose node_ids that no broker of the destination has")
	case errors.Is(err, kerr.MismatchedEndpointType):
		return usageError("destination.controllers leads to a listener of brokers: "+err.Error(), controllersHint+"; nothing was registered")
	}
	return err
}

const controllersHint = "give the controllers' own listener, as in controller.quorum.bootstrap.servers or controller.quorum.voters of the brokers"
