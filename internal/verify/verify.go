package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/protocol"
	"kmirror/protocol/kraft"
)

// Bounds of a step and of what it holds in memory.
const (
	// stepTime is after how long a step begins no further round, stepBytes after how much read from all sides together.
	stepTime  = 2 * time.Second
	stepBytes = 64 << 20
	// chunkBytes is asked of each side in a round. A batch that is larger comes alone.
	chunkBytes = 4 << 20
	minChunk   = 64 << 10
	// maxOpen bounds one opened payload.
	maxOpen = 64 << 20
	// requestLimit bounds one request.
	requestLimit = 5 * time.Second
	// maxIdle is after how many steps in a row without progress a verification gives up: about half a minute.
	maxIdle = 15
	// idleClient is how long an unused client is kept.
	idleClient = 5 * time.Minute
)

var errClosed = errors.New("verify: closed")

// Source is where a mirrored topic comes from.
type Source struct {
	// Opts make a client of the source. Key is equal as long as they mean the same.
	Opts []kgo.Opt
	Key  string
	// TopicID is the source topic that is mirrored, zero when it is not known.
	TopicID protocol.UUID
}

// Config of a Verifier.
type Config struct {
	// Images say which replicas of the destination are in sync.
	Images kraft.ImageSource
	// Owns reports node ids that hold no log because they are kmirror's own.
	Owns func(id int32) bool
	// Destination makes a client of the destination.
	Destination []kgo.Opt
	// Source looks up a mirror's topic. Its errors reach the operator as they are.
	Source func(mirror, topic string) (Source, error)
	// Log may be nil.
	Log *slog.Logger
}

// Verifier answers the steps of verifications. It is safe for concurrent use.
type Verifier struct {
	cfg     Config
	log     *slog.Logger
	clients clients
	// stepTime is shorter in tests.
	stepTime time.Duration
}

// New validates c and starts nothing; connections are made by steps.
func New(c Config) (*Verifier, error) {
	switch {
	case c.Images == nil:
		return nil, errors.New("verify: no Images")
	case c.Owns == nil:
		return nil, errors.New("verify: no Owns")
	case c.Source == nil:
		return nil, errors.New("verify: no Source")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Verifier{cfg: c, log: c.Log, clients: clients{byName: map[string]*client{}}, stepTime: stepTime}, nil
}

// Run closes connections that have become idle, until ctx ends, and then all of them.
func (v *Verifier) Run(ctx context.Context) error {
	defer v.Close()
	t := time.NewTicker(idleClient / 5)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			v.clients.evict(idleClient)
		}
	}
}

// Close closes all connections, those in use when their step ends. Later steps fail.
func (v *Verifier) Close() { v.clients.close() }

// Call is Step with its types as JSON.
func (v *Verifier) Call(ctx context.Context, payload []byte) ([]byte, error) {
	var req admin.VerifyRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, invalid(fmt.Errorf("verify: %w", err))
	}
	resp, err := v.Step(ctx, req)
	if err != nil {
		return nil, err
	}
	return json.Marshal(resp)
}

// Step compares what follows req.Cursor, for about two seconds or 64 MiB. Note and the last Cursor of a verification come
// with the step that is Done. What passes by itself (a leader that moved, a broker that restarts) is retried in this step
// and the following ones for half a minute; errors are *admin.Error where an operator can do something about them.
func (v *Verifier) Step(ctx context.Context, req admin.VerifyRequest) (admin.VerifyResponse, error) {
	src, err := v.cfg.Source(req.Mirror, req.Topic)
	if err != nil {
		return admin.VerifyResponse{}, err
	}
	source, release, err := v.clients.get("mirror "+req.Mirror, src.Key, src.Opts)
	if err != nil {
		return admin.VerifyResponse{}, fmt.Errorf("source of mirror %s: %w", req.Mirror, err)
	}
	defer release()
	dest, release, err := v.clients.get("", "", v.cfg.Destination)
	if err != nil {
		return admin.VerifyResponse{}, fmt.Errorf("destination: %w", err)
	}
	defer release()
	s := &step{v: v, req: req, source: source, dest: dest, want: src.TopicID, deadline: time.Now().Add(v.stepTime)}
	if req.Cursor != "" {
		if s.cur, err = decodeCursor(req.Cursor); err != nil {
			return admin.VerifyResponse{}, invalid(err)
		}
		if s.cur.Unpinned {
			s.cur, s.idled = nil, s.cur.Idle
		}
	}
	if err := s.run(ctx); err != nil {
		return admin.VerifyResponse{}, err
	}
	return s.answer()
}

const (
	codeUnknownTopic   = 3
	codeInvalidRequest = 42
	codeInconsistentID = 103
)

func invalid(err error) error {
	return &admin.Error{Code: codeInvalidRequest, Message: err.Error(), Exit: admin.ExitUsage}
}
