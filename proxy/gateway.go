package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"kmirror/internal/quiet"
	"kmirror/protocol/kraft"
)

// noNode is the node id of a gateway's bootstrap port.
const noNode int32 = -1

// portRetry is how often a port that could not be opened is tried again.
const portRetry = time.Second

// IDRange is a range of node ids, both ends included.
type IDRange struct{ First, Last int32 }

// Front is one listener name of the destination behind a gateway. The bootstrap port is Port; node ids have the ports after it, in the
// order of Ranges, so that the port of an id never changes. With Names there is that one port only.
type Front struct {
	// Name is the destination's listener that is connected to.
	Name string
	// Listen is the bootstrap port's socket, without TLS. Run closes it.
	Listen net.Listener
	// Host is the address that node ids' ports are bound to, Port the bootstrap port's number.
	Host string
	Port uint16
	// AdvertisedHost is what clients are told.
	AdvertisedHost string
	// Ranges are the node ids that are fronted. With Names they may be empty, for all.
	Ranges []IDRange
	// Names, which needs TLS, tells brokers apart by the server name that a client asks for; AdvertisedHost is any of them.
	Names *Names
	// TLS is that of all ports; nil: plain.
	TLS *tls.Config
}

// AddressOf returns what clients are told of a node id, false when it is not fronted.
func (f *Front) AddressOf(id int32) (host string, port uint16, ok bool) {
	if f.Names == nil {
		port, ok = f.PortOf(id)
		return f.AdvertisedHost, port, ok
	}
	if !f.in(id) {
		return "", 0, false
	}
	return f.Names.Of(id), f.Names.port, true
}

// in reports whether a node id may be fronted.
func (f *Front) in(id int32) bool {
	return id >= 0 && (f.Names != nil && len(f.Ranges) == 0 ||
		slices.ContainsFunc(f.Ranges, func(r IDRange) bool { return id >= r.First && id <= r.Last }))
}

// PortOf returns the port of a node id, false when it is in none of the ranges.
func (f *Front) PortOf(id int32) (uint16, bool) {
	next := int64(f.Port) + 1
	for _, r := range f.Ranges {
		if id >= r.First && id <= r.Last {
			port := next + int64(id) - int64(r.First)
			return uint16(port), port <= 65535
		}
		next += int64(r.Last) - int64(r.First) + 1
	}
	return 0, false
}

// GatewayConfig is what a Gateway needs; Fronts, Images, Mirrors and Guest are required. The limits are those of Config.
type GatewayConfig struct {
	Fronts []Front
	Images kraft.ImageSource
	// Mirrors knows which topics are read-only.
	Mirrors Mirrors
	// Guest reports whether a node id is a kmirror process's: it is fronted like any other, but bootstrap connections go to real brokers.
	Guest func(int32) bool
	// UpstreamTLS as in Config.
	UpstreamTLS    func() *tls.Config
	MaxFrame       int32
	Memory         *Memory
	MaxConnections int
	ReadOnlyError  int16
	IdleTimeout    time.Duration
	DrainTimeout   time.Duration
	Watch          WatchFunc
	Log            *slog.Logger
	Observer       Observer
}

// Gateway fronts every broker of the destination: a port for each node id, opened when the broker registers and closed when it is
// unregistered, and one to bootstrap from. A connection goes to one broker; all hosts and ports in replies are those of the gateway.
type Gateway struct {
	s      *Server
	fronts []*front
	// draining joins what waits for the connections of closed ports.
	draining sync.WaitGroup

	mu sync.Mutex
}

// front is a Front at work. open is Run's.
type front struct {
	Front
	g    *Gateway
	open map[int32]*port
	// foreign are the node ids outside the ranges that were logged; the gateway's mu guards it.
	foreign map[int32]bool
}

// port is the socket of one node id; ln is nil where brokers are told apart by name.
type port struct {
	ln net.Listener
	// stop ends accepting, cut the connections; accepted is closed when nothing is accepted any more.
	stop, cut context.CancelFunc
	accepted  chan struct{}
}

// NewGateway validates the configuration. The sockets are the caller's until Run.
func NewGateway(cfg GatewayConfig) (*Gateway, error) {
	switch {
	case len(cfg.Fronts) == 0:
		return nil, errors.New("gateway: no listener")
	case cfg.Images == nil || cfg.Mirrors == nil || cfg.Guest == nil:
		return nil, errors.New("gateway: Images, Mirrors and Guest are required")
	}
	common := Config{
		Images: cfg.Images, Mirrors: cfg.Mirrors, Owns: cfg.Guest, UpstreamTLS: cfg.UpstreamTLS, MaxFrame: cfg.MaxFrame, Memory: cfg.Memory,
		MaxConnections: cfg.MaxConnections, ReadOnlyError: cfg.ReadOnlyError, IdleTimeout: cfg.IdleTimeout, DrainTimeout: cfg.DrainTimeout,
		Watch: cfg.Watch, Log: cfg.Log, Observer: cfg.Observer,
	}
	if err := common.validateLimits(); err != nil {
		return nil, err
	}
	common.setDefaults()
	common.Observer = gatewayObserver{common.Observer}
	g := &Gateway{}
	g.s = &Server{cfg: common, log: common.Log, conns: make(map[*conn]struct{}), quiet: quiet.New(common.Log, quiet.Interval, nil)}
	g.SetMaxConnections(common.MaxConnections)
	for _, f := range cfg.Fronts {
		if f.Listen == nil || f.Name == "" || f.AdvertisedHost == "" || f.Port == 0 || len(f.Ranges) == 0 && f.Names == nil {
			return nil, fmt.Errorf("gateway: listener %q lacks a socket, a port, an advertised host or node ids", f.Name)
		}
		if f.Names != nil && f.TLS == nil {
			return nil, fmt.Errorf("gateway: listener %q tells brokers apart by server name, and has no TLS", f.Name)
		}
		at := &front{Front: f, g: g, open: make(map[int32]*port), foreign: make(map[int32]bool)}
		if f.Names != nil {
			at.TLS = at.serverNames(f.TLS)
		}
		g.fronts = append(g.fronts, at)
	}
	return g, nil
}

// SetMaxConnections is that of Server.
func (g *Gateway) SetMaxConnections(n int) { g.s.SetMaxConnections(n) }

// gatewayObserver counts connections apart from those to our own node ids.
type gatewayObserver struct{ Observer }

func (o gatewayObserver) ConnectionOpened(l string) { o.Observer.ConnectionOpened("gateway " + l) }
func (o gatewayObserver) ConnectionClosed(l string) { o.Observer.ConnectionClosed("gateway " + l) }

// Run serves until ctx ends, then closes all ports, delivers the replies in flight and returns nil, or ErrDrainTimeout when connections
// had to be cut. An error of a bootstrap port ends it too. It must be called once only.
func (g *Gateway) Run(ctx context.Context) error {
	force, cut := context.WithCancel(context.WithoutCancel(ctx)) // connections outlive ctx while they drain
	defer cut()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	var acceptors sync.WaitGroup
	failed := make(chan error, len(g.fronts))
	for _, f := range g.fronts {
		l := f.listener(f.Listen, noNode)
		acceptors.Go(func() {
			if err := g.s.accept(accepting, force, l); err != nil {
				failed <- fmt.Errorf("gateway %s: %w", f.Name, err)
				stop()
			}
		})
	}
	g.follow(accepting, force)
	for _, f := range g.fronts {
		f.Listen.Close()
		for _, p := range f.open {
			p.shut()
			defer p.cut()
		}
	}
	acceptors.Wait()
	err := g.s.drain(cut)
	cut()
	g.draining.Wait()
	select {
	case cause := <-failed:
		return cause
	default:
		return err
	}
}

// listener is a socket of the front with what connections have to know.
func (f *front) listener(ln net.Listener, id int32) Listener {
	if f.TLS != nil {
		ln = tls.NewListener(ln, f.TLS)
	}
	return Listener{Name: f.Name, Listen: ln, NodeID: id, front: f}
}

// logged names a listener in the log.
func (l Listener) logged() []any {
	switch {
	case l.front == nil:
		return []any{"listener", l.Name, "node", l.NodeID}
	case l.NodeID == noNode:
		return []any{"listener", "gateway " + l.Name}
	}
	return []any{"listener", "gateway " + l.Name, "node", l.NodeID}
}

// follow opens and closes ports as brokers come and go, until ctx ends.
func (g *Gateway) follow(ctx, force context.Context) {
	for {
		changed := g.s.cfg.Images.Changed()
		img := g.s.cfg.Images.Image()
		var retry <-chan time.Time
		for _, f := range g.fronts {
			if !f.reconcile(ctx, force, img) {
				retry = time.After(portRetry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		}
	}
}

// reconcile makes the open ports those of the brokers that have the listener; false when one could not be opened.
func (f *front) reconcile(ctx, force context.Context, img *kraft.Image) (done bool) {
	for id := range f.open {
		if _, ok := endpointOf(img.Brokers[id], f.Name); !ok {
			f.g.s.log.Info("gateway closed for a broker: it is unregistered", "listener", f.Name, "broker", id)
			f.close(id, force)
		}
	}
	done = true
	for id, b := range img.Brokers {
		if _, ok := endpointOf(b, f.Name); !ok || f.open[id] != nil {
			continue
		}
		switch _, number, ok := f.AddressOf(id); {
		case !ok:
			f.outside(id)
		case f.Names != nil:
			f.greet(id)
		default:
			done = f.start(ctx, force, id, number) && done
		}
	}
	return done
}

// start opens the port of a node id.
func (f *front) start(ctx, force context.Context, id int32, number uint16) bool {
	s := f.g.s
	ln, err := net.Listen("tcp", net.JoinHostPort(f.Host, strconv.Itoa(int(number))))
	if err != nil {
		s.quiet.Warn("gateway port", "a gateway port can't be opened: clients don't reach this broker", "listener", f.Name, "broker", id, "err", err)
		return false
	}
	p := &port{ln: ln, accepted: make(chan struct{})}
	ctx, p.stop = context.WithCancel(ctx)
	force, p.cut = context.WithCancel(force)
	f.open[id] = p
	s.log.Info("gateway port open", "listener", f.Name, "broker", id, "port", number)
	l := f.listener(ln, id)
	go func() {
		defer close(p.accepted)
		if err := s.accept(ctx, force, l); err != nil {
			s.log.Error("gateway port failed", "listener", f.Name, "broker", id, "err", err)
		}
	}()
	return true
}

// shut ends accepting; connections go on.
func (p *port) shut() {
	p.stop()
	if p.ln != nil {
		p.ln.Close()
	}
	<-p.accepted
}

// close closes the port of a node id. Its connections get the replies in flight, for DrainTimeout at most.
func (f *front) close(id int32, force context.Context) {
	p, s := f.open[id], f.g.s
	delete(f.open, id)
	p.shut()
	var open []*conn
	s.mu.Lock()
	for c := range s.conns {
		if c.l.front == f && c.l.NodeID == id {
			c.stop()
			open = append(open, c)
		}
	}
	s.mu.Unlock()
	f.g.draining.Go(func() {
		defer s.cut(open)
		defer p.cut()
		timer := time.NewTimer(s.cfg.DrainTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-force.Done():
		}
	})
}

// outside logs, once, that a node id is in none of the ranges.
func (f *front) outside(id int32) {
	f.g.mu.Lock()
	known := f.foreign[id]
	f.foreign[id] = true
	f.g.mu.Unlock()
	if !known {
		f.g.s.log.Warn("a broker is outside the gateway's node_id_ranges: clients are not told of it, and can't reach what it leads",
			"listener", f.Name, "broker", id, "hint", fmt.Sprintf("append %q to the end of node_id_ranges, where it changes no other port, and restart",
				strconv.Itoa(int(id))))
	}
}
