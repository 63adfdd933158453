package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"kmirror/fetch"
	"kmirror/internal/admin"
	"kmirror/internal/broker"
	"kmirror/internal/coordinator"
	"kmirror/internal/fencing"
	"kmirror/internal/metapoll"
	"kmirror/internal/metasync"
	"kmirror/internal/mirror"
	"kmirror/internal/peers"
	"kmirror/internal/trace/tap"
	"kmirror/internal/verify"
	"kmirror/protocol/kraft"
	"kmirror/proxy"
)

func newServeCommand(c *cli) *cobra.Command {
	var file, profile string
	var check bool
	cmd := &cobra.Command{
		Use:   "serve --config F",
		Short: "Run kmirror: join the destination and mirror what was started",
		Long: `Run kmirror in the foreground: join the destination with the node ids of the configuration and mirror what was started. The
log goes to stderr and says "ready" when all is in place, or every half minute why it is not; so does /readyz of the key http. A cluster
that does not answer is waited for; what only another configuration can mend ends serve with exit code 2.
SIGTERM or Ctrl-C: leadership is given away in order, within shutdown_timeout; a second one ends at once. SIGHUP: the configuration is
read again. See also kmirror preflight; all keys are in docs/operations.md.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reloads := newReloader(file, c.environ)
			cfg, err := loadConfig(file, c.environ())
			if err != nil {
				return err
			}
			logging := new(logSettings)
			if err := logging.set(cfg.Log); err != nil {
				return usageError("log.level: "+err.Error(), "use debug, info, warn or error")
			}
			log := newLogger(c.err, logging)
			if check {
				return checkServe(cmd.Context(), cfg, c.out)
			}
			newer := newProcess
			if cfg.alone() {
				newer = newAlone
			}
			p, err := newer(cfg, log, c.err)
			if err != nil {
				return err
			}
			p.logging = logging
			p.reloads, reloads.log, reloads.current, reloads.apply = reloads, log, cfg, p.reload
			signal.Notify(reloads.signals, syscall.SIGHUP)
			defer signal.Stop(reloads.signals)
			p.garbage.setLimit(cfg.Limits.Memory)
			stop, err := startProfile(profile)
			if err != nil {
				return err
			}
			return errors.Join(p.run(cmd.Context()), stop())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "kmirror.yaml")
	cmd.Flags().BoolVar(&check, "check", false, "connect everywhere, register nowhere, and say what was found")
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write a CPU profile of the whole run to this file")
	cobra.CheckErr(cmd.MarkFlagRequired("config"))
	cobra.CheckErr(cmd.Flags().MarkHidden("cpu-profile"))
	return cmd
}

// process is everything that serve runs, put together and not started. One that is a gateway alone has polled, and neither broker nor what
// goes with it.
type process struct {
	cfg      *Config
	log      *slog.Logger
	sockets  *sockets
	broker   *broker.Broker
	polled   *metapoll.Poller
	legs     legs // to ask brokers with, of a gateway alone
	leader   *fetch.Leader
	store    *coordinator.Store
	manager  *mirror.Manager
	syncer   *metasync.Syncer
	proxy    *proxy.Server
	gateway  *proxy.Gateway // nil where the configuration has none
	requests *proxy.Memory
	judge    *fencing.Judge // nil where fence_after is 0
	admin    *admin.Server
	verifier *verify.Verifier
	self     coordinator.Member
	asker    *admin.Peers
	replicas *replicas
	peers    *peers.Peers
	http     *httpServer // nil where the configuration has none
	metrics  *metrics
	// certificates are those that are shown to others now.
	certificates func() []shownCertificate
	tap          *tap.Tap
	stderr       io.Writer // for a trace
	logging      *logSettings
	reloads      *reloader
	garbage      collector
	untraced     bool // the trace of the configuration in force could not begin; the reloader's
}

// newProcess opens all sockets, so that what is registered can be reached, and connects to nothing.
func newProcess(cfg *Config, log *slog.Logger, stderr io.Writer) (_ *process, err error) {
	p := &process{cfg: cfg, log: log, stderr: stderr, tap: tap.New(log)}
	legs, err := cfg.legs(log)
	if err != nil {
		return nil, err
	}
	if p.sockets, err = openSockets(cfg, log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.sockets.close()
		}
	}()
	for _, note := range p.sockets.notes {
		log.Warn(note)
	}
	p.metrics = newMetrics(version, cfg.Metrics.PerPartition)
	if err := p.dataSide(legs); err != nil {
		return nil, err
	}
	if err := p.peerSide(); err != nil {
		return nil, err
	}
	if err := p.operatorSide(legs); err != nil {
		return nil, err
	}
	if err := p.listeners(legs); err != nil {
		return nil, err
	}
	p.metrics.watch(p.manager.States, p.manager.SourceFetches)
	if err := p.certificatesSide(); err != nil {
		return nil, err
	}
	p.metrics.registry.MustRegister(newSyncCollector(operator{p.manager, p.syncer}.SyncStatus))
	p.httpSide(p.ready)
	return p, nil
}

// httpSide makes what answers over HTTP, where the configuration has it.
func (p *process) httpSide(ready func() error) {
	if p.sockets.http == nil {
		return
	}
	p.http = newHTTPServer(p.sockets.http, p.metrics.registry, func() error { return nil }, ready)
	p.http.logStrangers(p.log)
}

// dataSide makes the membership of the destination and the data path.
func (p *process) dataSide(legs legs) (err error) {
	cfg, log := p.cfg, p.log
	if p.broker, err = broker.New(broker.Config{
		Nodes: p.sockets.nodes, ClusterID: cfg.ClusterID, Bootstrap: cfg.Destination.BootstrapServers, Controllers: cfg.Destination.Controllers,
		ClientOpts: legs.client, ControllerOpts: legs.controller, ReplicationOpts: legs.replication,
		InterBrokerListener: cfg.Destination.InterBrokerListener, Log: log, OnEvicted: cfg.OnEvicted, ShutdownTimeout: cfg.ShutdownTimeout,
		Check: func(ctx context.Context, img *kraft.Image) error { return p.checkListeners(ctx, img, legs) }, Observer: p.metrics,
		LiftPeers: p.liftPeers,
	}); err != nil {
		return usageError(err.Error(), "correct the configuration")
	}
	p.leader, err = fetch.NewLeader(fetch.Config{
		Images: p.broker, Controller: p.broker, Log: log, MemoryBytes: cfg.Limits.share(),
		SourceBytesPerSecond: int64(cfg.Limits.SourceBytesPerSecond), Observer: p.metrics,
	})
	return err
}

// operatorSide makes what remembers and directs.
func (p *process) operatorSide(legs legs) (err error) {
	cfg, log := p.cfg, p.log
	if p.store, err = coordinator.New(coordinator.Config{Opts: legs.bootstrap, Exclude: p.broker.Guest, Self: p.self, Peer: p.asker, Liveness: p.peers,
		Standing: p.broker, Log: log}); err != nil {
		return err
	}
	if p.verifier, err = verify.New(verify.Config{
		Images: p.broker, Owns: p.broker.Guest, Destination: legs.bootstrap, Log: log, Source: p.verifySource,
	}); err != nil {
		return err
	}
	p.manager, err = mirror.New(mirror.Config{
		Destination: p.broker, Data: dataPath{p.leader}, Store: p.store, NodeIDs: cfg.NodeIDs, DestinationOpts: legs.bootstrap,
		MinRealISR: cfg.MinRealInsync, Process: cfg.Admin.address(), Log: log, Verify: p.verifier.Call,
		OnForeign: p.metrics.ForeignReassignment, Fault: faultFromEnv(), Processes: p.processes, ProcessesChanged: p.peers.Changed,
		Registered: p.broker.Registered, Coordinates: p.coordinates, SyncsGroups: true, OnRequest: p.metrics.Request,
	})
	if err != nil {
		return err
	}
	p.syncer, err = metasync.New(metasync.Config{Store: p.store, Destination: p.broker, Mirrors: p.manager, Coordinates: p.coordinates,
		Observer: p.metrics, Log: log})
	return err
}

// listeners makes what clients, brokers and operators connect to.
func (p *process) listeners(legs legs) (err error) {
	code := proxy.PolicyViolation
	if p.cfg.ReadOnlyError == "read_only_topic" {
		code = proxy.ReadOnlyTopic
	}
	upstream, err := p.cfg.upstreamTLS(p.log)
	if err != nil {
		return err
	}
	among, err := p.cfg.peerTLS(p.log)
	if err != nil {
		return err
	}
	if p.replicas, err = newReplicas(slices.Clone(legs.bootstrap)); err != nil {
		return err
	}
	p.requests = proxy.NewMemory(p.cfg.Limits.share())
	if p.proxy, err = proxy.New(proxy.Config{
		Listeners: p.sockets.clients, Images: p.broker, ClusterID: p.broker.ClusterID, Leader: p.leader, Mirrors: p.manager,
		Owns: p.broker.Guest, Memory: p.requests, MaxConnections: p.cfg.Limits.Connections, ReadOnlyError: code, DrainTimeout: 5 * time.Second,
		NodeConfig: p.nodeConfig, Log: p.log, Observer: p.metrics,
		UpstreamTLS: upstream, PeerTLS: among, Asker: p.replicas, Watch: p.watch(false),
	}); err != nil {
		return err
	}
	if err := p.gateways(code, upstream); err != nil {
		return err
	}
	if err := p.fencing(); err != nil {
		return err
	}
	p.admin, err = admin.New(admin.Config{Listen: p.sockets.admin, Service: p.service(), States: p.store, Pong: p.pong, Log: p.log,
		TLS: p.sockets.adminTLS, Allow: p.cfg.Admin.Allow, Processes: p.adminProcesses, ClusterID: p.broker.ClusterID,
		Uncordon: func(ctx context.Context) error { return p.broker.Uncordon(ctx, uncordonFor) }})
	return err
}

// ready is nil when the process does its job: registered, unfenced, metadata caught up, state loaded.
func (p *process) ready() error {
	if err := p.twin(); err != nil {
		return err
	}
	if err := p.broker.Ready(); err != nil {
		return err
	}
	select {
	case <-p.store.Loaded():
		return nil
	default:
		return errors.New("__mirror_state is being loaded")
	}
}

// run works until ctx ends or the process has retired. Leaving goes in two steps: first leadership is given away in order, and
// after a retirement the node ids are unregistered, while followers and clients are still served; then everything stops.
func (p *process) run(ctx context.Context) error {
	if p.polled != nil {
		return p.runAlone(ctx)
	}
	defer p.sockets.close()
	defer p.asker.Close()
	defer p.replicas.client.Close()
	if err := p.traceFrom(p.cfg); err != nil {
		return err
	}
	defer p.endTrace()
	p.log.Info("starting", "version", version, "node_ids", fmt.Sprint(p.cfg.NodeIDs), "admin", p.cfg.Admin.Bind, "http", p.cfg.HTTP)
	if principal := p.sockets.adminPrincipal(); principal != "" {
		p.log.Info("other processes of this destination need this one's principal in admin.allow", "principal", principal)
	}
	outer, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	back, outer := errgroup.WithContext(outer) // goes on until leadership is gone
	front := newDeparture(ctx)
	defer front.end()
	behind := map[string]func(context.Context) error{"data path": p.leader.Run, "listeners": p.proxy.Run, "state": p.store.Run, "peers": p.peers.Run}
	if p.http != nil {
		behind["http"] = p.http.Run
	}
	if p.gateway != nil {
		behind["gateway"] = p.gateway.Run
	}
	for name, run := range behind {
		back.Go(func() error { return named(name, run(outer)) })
	}
	// What fails behind ends what is in front too.
	front.group.Go(func() error {
		select {
		case <-front.ctx.Done():
			return nil
		case <-outer.Done():
			return errors.New("a part of the process ended")
		}
	})
	p.runFront(front)
	err := front.group.Wait()
	stop()
	if e := back.Wait(); e != nil {
		err = e
	}
	if front.retiring.Load() && err == nil {
		p.log.Info("retired: the node ids are unregistered", "node_ids", fmt.Sprint(p.cfg.NodeIDs))
	}
	return p.stopped(err)
}

// stopped says in the log that the process has ended, and why if that was not in order; what it returns has an exit code.
func (p *process) stopped(err error) error {
	if err != nil {
		p.log.Error("stopped", "err", err)
	} else {
		p.log.Info("stopped")
	}
	return serveError(err)
}

// runFront starts what is in front.
func (p *process) runFront(front *departure) {
	ctx := front.ctx
	front.group.Go(func() error { p.nameCluster(ctx); return nil })
	front.group.Go(func() error { tellReady(ctx, p.ready, p.log); return nil })
	front.group.Go(func() error { p.reloads.run(ctx); return nil })
	front.group.Go(func() error { tellExpiry(ctx, p.certificates, p.log); return nil })
	front.group.Go(func() error { p.garbage.run(ctx); return nil })
	front.group.Go(func() error { front.await(p.manager.Retired(), p.broker.Retire, p.log); return nil })
	if p.judge != nil {
		front.group.Go(func() error { return p.judge.Run(ctx) })
	}
	for name, run := range map[string]func(context.Context) error{
		"manager": p.manager.Run, "metadata sync": p.syncer.Run, "verify": p.verifier.Run,
		"membership": func(ctx context.Context) error { defer front.left(); return p.broker.Run(ctx) },
	} {
		front.group.Go(func() error {
			return ended(ctx, name, run(ctx))
		})
	}
	front.group.Go(func() error { return front.runAdmin(p.admin.Run) })
}

// nameCluster puts the destination's id into the metrics once it is known.
func (p *process) nameCluster(ctx context.Context) {
	for p.broker.ClusterID() == "" {
		select {
		case <-ctx.Done():
			return
		case <-p.broker.Changed():
		}
	}
	p.metrics.setCluster(version, p.broker.ClusterID())
}

// ended names a part that failed, or that gave no reason while ctx goes on.
func ended(ctx context.Context, name string, err error) error {
	if err == nil && ctx.Err() == nil {
		err = errors.New("ended by itself")
	}
	return named(name, err)
}

func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
