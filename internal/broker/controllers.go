package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// requestTimeout bounds one try of one request. It stays below broker.session.timeout.ms (9 s by default), so that a
// controller that hangs leaves time for a heartbeat to the next one.
const requestTimeout = 4 * time.Second

// connectionTimeout closes a connection on which an answer is outstanding for so long. It is longer than requestTimeout:
// other requests wait on the connection too, and a busy controller is not a dead one.
const connectionTimeout = 15 * time.Second

// controllers knows the quorum's addresses and which of them is the active controller. Addresses come from the
// configuration, and from answers that name the leader. Each has a client of its own, so that one that hangs blocks
// nothing else. Safe for concurrent use.
type controllers struct {
	opts     []kgo.Opt
	log      *slog.Logger
	observer Observer

	mu      sync.Mutex
	addrs   []string
	active  int
	clients map[string]*kgo.Client
	closed  bool
	failure error // of the last try, nil when a controller answered it
}

func newControllers(addrs []string, opts []kgo.Opt, log *slog.Logger, o Observer) *controllers {
	return &controllers{addrs: slices.Clone(addrs), opts: opts, log: log, observer: o, clients: map[string]*kgo.Client{}}
}

var errClosed = errors.New("broker: closed")

// current returns the address held to be the active controller and a client that talks to nobody else.
func (c *controllers) current() (string, *kgo.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return "", nil, errClosed
	}
	addr := c.addrs[c.active]
	if cl := c.clients[addr]; cl != nil {
		return addr, cl, nil
	}
	cl, err := newClient(addr, c.opts)
	if err != nil {
		return addr, nil, err
	}
	c.clients[addr] = cl
	return addr, cl, nil
}

// newClient returns a client used for single requests to its one seed only.
func newClient(addr string, opts []kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(clientOpts(addr, opts)...)
}

// clientOpts adds ours to what the configuration says. Refreshing metadata is put off as far as can be: controllers have
// none to give.
func clientOpts(addr string, opts []kgo.Opt) []kgo.Opt {
	return append(slices.Clone(opts),
		kgo.SeedBrokers(addr),
		kgo.DisableClientMetrics(),
		kgo.MetadataMaxAge(time.Hour),
		kgo.DialTimeout(requestTimeout),
		kgo.RequestTimeoutOverhead(connectionTimeout),
		kgo.ConnIdleTimeout(5*time.Minute),
	)
}

// lost says that addr is not the active controller, or not to be reached; who says so after another has moved on is not
// heard, so that several requests failing together move on by one.
func (c *controllers) lost(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.addrs[c.active] == addr {
		c.active = (c.active + 1) % len(c.addrs)
		c.changed()
	}
}

// leader says that addr is the active controller.
func (c *controllers) leader(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.addrs, addr)
	if i < 0 {
		i = len(c.addrs)
		c.addrs = append(c.addrs, addr)
	}
	if i != c.active {
		c.active = i
		c.changed()
	}
}

func (c *controllers) changed() {
	addr := c.addrs[c.active]
	c.log.Debug("talking to another controller", "controller", addr)
	c.observer.ControllerChanged(addr)
}

func (c *controllers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, cl := range c.clients {
		cl.Close()
	}
}

// try sends a request once to the active controller. An answer that says "not the controller" is errNotController; that, one of a
// controller that is still starting, and any other failure makes the next try go elsewhere.
func (c *controllers) try(ctx context.Context, req kmsg.Request, timeout time.Duration) (kmsg.Response, error) {
	addr, cl, err := c.current()
	if err != nil {
		return nil, err
	}
	tctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := cl.SeedBrokers()[0].Request(tctx, req)
	if err == nil && notController(resp) {
		err = errNotController
	}
	if err == nil {
		err = stillStarting(resp)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.lost(addr)
		err = fmt.Errorf("%s to controller %s: %w", kmsg.NameForKey(req.Key()), addr, err)
		c.note(err)
		return nil, err
	}
	c.note(nil)
	return resp, nil
}

// note remembers how the last try went.
func (c *controllers) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = err
}

// because adds to what is the matter why the last try failed, if it did.
func (c *controllers) because(matter string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		return errors.New(matter)
	}
	return fmt.Errorf("%s: %w", matter, c.failure)
}

// errNotController: the request was refused, and surely not carried out.
var errNotController = kerr.NotController

// insist repeats a request, made anew for each try, until a controller answers it or ctx ends. Only for requests that may
// be carried out twice. repeated says that a try before the answered one may have been carried out.
func (c *controllers) insist(
	ctx context.Context, timeout time.Duration, mk func() kmsg.Request,
) (resp kmsg.Response, repeated bool, err error) {
	b := backoff{min: 50 * time.Millisecond, max: time.Second}
	for {
		var tryErr error
		if resp, tryErr = c.try(ctx, mk(), timeout); tryErr == nil {
			return resp, repeated, nil
		}
		if errors.Is(tryErr, errClosed) {
			return nil, repeated, tryErr
		}
		repeated = repeated || !errors.Is(tryErr, errNotController)
		if ctx.Err() == nil {
			if err == nil || err.Error() != tryErr.Error() {
				c.log.Warn("controller request; trying again", "err", tryErr)
			}
			err = tryErr
		}
		if b.wait(ctx) != nil {
			if err == nil {
				err = ctx.Err()
			}
			return nil, repeated, err
		}
	}
}

// stillStarting is the error of an answer to DescribeCluster by a controller that has not read its log yet: it knows of no metadata.version
// then, which it calls UNSUPPORTED_VERSION (fact 54). UNKNOWN_SERVER_ERROR is what an authorizer that is not ready makes of requests. Nil for
// all other answers.
func stillStarting(resp kmsg.Response) error {
	r, ok := resp.(*kmsg.DescribeClusterResponse)
	if !ok || r.ErrorCode != kerr.UnsupportedVersion.Code && r.ErrorCode != kerr.UnknownServerError.Code {
		return nil
	}
	err := kerr.ErrorForCode(r.ErrorCode)
	if r.ErrorMessage != nil {
		err = fmt.Errorf("%w (%s)", err, *r.ErrorMessage)
	}
	return err
}

// notController reports whether an answer, or any part of it, says NOT_CONTROLLER.
func notController(resp kmsg.Response) bool {
	return slices.Contains(codes(resp), kerr.NotController.Code)
}

// codes lists the error codes of an answer at every level where a controller that is not active may put NOT_CONTROLLER.
func codes(resp kmsg.Response) []int16 {
	var out []int16
	switch r := resp.(type) {
	case *kmsg.BrokerRegistrationResponse:
		out = append(out, r.ErrorCode)
	case *kmsg.BrokerHeartbeatResponse:
		out = append(out, r.ErrorCode)
	case *kmsg.AlterPartitionResponse:
		out = append(out, r.ErrorCode)
	case *kmsg.UnregisterBrokerResponse:
		out = append(out, r.ErrorCode)
	case *kmsg.DescribeClusterResponse:
		out = append(out, r.ErrorCode)
	case *kmsg.CreateTopicsResponse:
		for _, t := range r.Topics {
			out = append(out, t.ErrorCode)
		}
	case *kmsg.AlterPartitionAssignmentsResponse:
		out = append(out, r.ErrorCode)
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				out = append(out, p.ErrorCode)
			}
		}
	case *kmsg.ElectLeadersResponse:
		out = append(out, r.ErrorCode)
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				out = append(out, p.ErrorCode)
			}
		}
	case *kmsg.IncrementalAlterConfigsResponse:
		for _, t := range r.Resources {
			out = append(out, t.ErrorCode)
		}
	}
	return out
}
