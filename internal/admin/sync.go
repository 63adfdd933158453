package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"kmirror/protocol/kip1279"
)

// Private verbs of this file. KIP-1279 alters a mirror by IncrementalAlterConfigs, property by property, and has no words for what changes.
const (
	// VerbAlter is AlterMirror; AlterRequest and AlterResult are its payloads.
	VerbAlter = "alter"
	// VerbSync is SyncStatus; the payload is a list of mirrors, the answer a list of SyncInfo.
	VerbSync = "sync"
)

// AlterRequest gives a mirror other properties: Config is all of them, as in a create, unless there are Changes. These are made to
// those that the mirror has in that moment, so that none of two requests at a time is lost.
type AlterRequest struct {
	Mirror  string            `json:"mirror"`
	Config  map[string]string `json:"config,omitempty"`
	Changes []ConfigChange    `json:"changes,omitempty"`
	DryRun  bool              `json:"dry_run,omitempty"`
}

// AlterResult says what an alter changes.
type AlterResult struct {
	// Changed are the properties that differ from before, sorted. Reconnects: connections to the source are made anew for them.
	Changed    []string `json:"changed"`
	Reconnects bool     `json:"reconnects"`
	// Stops are active topics that mirror.topics.exclude names now: they are stopped, and writable, with the next round.
	Stops []string `json:"stops,omitempty"`
}

// SyncInfo is how the sync of one kind of metadata of a mirror stands.
type SyncInfo struct {
	Mirror string `json:"mirror"`
	Kind   string `json:"kind"`
	SyncState
}

// SyncState is what SyncInfo says, and a description by kind.
type SyncState struct {
	// AgeSeconds is since the last round without errors, nil where the mirror's metadata coordinator has seen none.
	AgeSeconds *float64 `json:"age_seconds"`
	// Error is why the last round was not good, nil when it was.
	Error *string `json:"error"`
}

// AlterMirror implements Service.
func (c *Client) AlterMirror(ctx context.Context, req AlterRequest) (AlterResult, error) {
	var out AlterResult
	answer, err := c.Call(ctx, VerbAlter, mustJSON(req))
	if err == nil {
		err = readAnswer(VerbAlter, answer, &out)
	}
	return out, err
}

// SyncStatus implements Service.
func (c *Client) SyncStatus(ctx context.Context, mirrors []string) ([]SyncInfo, error) {
	var out []SyncInfo
	answer, err := c.Call(ctx, VerbSync, mustJSON(mirrors))
	if err == nil {
		err = readAnswer(VerbSync, answer, &out)
	}
	return out, err
}

// readAnswer reads what a private verb was answered.
func readAnswer(verb string, answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the answer to %s is not readable: %w", verb, err)
	}
	return nil
}

// AlterMirror is done by the mirror's metadata coordinator.
func (f *Forward) AlterMirror(ctx context.Context, req AlterRequest) (out AlterResult, err error) {
	err = f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { out, err = s.AlterMirror(ctx, req); return err })
	return out, err
}

// SyncStatus puts together what each process knows of the mirrors that it coordinates.
func (f *Forward) SyncStatus(ctx context.Context, mirrors []string) ([]SyncInfo, error) {
	var mu sync.Mutex
	var out []SyncInfo
	err := f.everywhere(ctx, func(ctx context.Context, s Service) error {
		infos, err := s.SyncStatus(ctx, mirrors)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, infos...)
		return err
	})
	slices.SortStableFunc(out, func(a, b SyncInfo) int { return strings.Compare(a.Mirror, b.Mirror) })
	return out, err
}

func (s *Server) alter(ctx context.Context, payload []byte, who caller) ([]byte, error) {
	var req AlterRequest
	var result AlterResult
	err := readOptions(payload, &req)
	if err == nil && len(req.Changes) == 0 {
		err = CheckMirror(req.Mirror, req.Config)
	}
	if err == nil {
		result, err = s.cfg.Service.AlterMirror(ctx, req)
	}
	s.audit("alter", who, err, "mirror", req.Mirror, "changed", result.Changed, "dry_run", req.DryRun)
	if err != nil {
		return nil, err
	}
	return mustJSON(result), nil
}

func (s *Server) syncStatus(ctx context.Context, payload []byte) ([]byte, error) {
	var mirrors []string
	if err := json.Unmarshal(payload, &mirrors); err != nil {
		return nil, &Error{Code: kip1279.InvalidRequest, Message: "the list of mirrors is not readable: " + err.Error(),
			Hint: "use the kmirror command of the version that serves there", Exit: ExitUsage}
	}
	out, err := s.cfg.Service.SyncStatus(ctx, mirrors)
	if err != nil {
		return nil, err
	}
	return mustJSON(out), nil
}
