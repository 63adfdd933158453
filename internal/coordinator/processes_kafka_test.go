package coordinator_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/peers"
	"kmirror/internal/testkafka"
)

// helperEnv holds bootstrap servers, process id and admin address of a process that TestHelperProcess is to be.
const helperEnv = "KMIRROR_STORE_HELPER"

// process is what kmirror serve is as far as the state topic is concerned.
type process struct {
	store *coordinator.Store
	peers *peers.Peers
	stop  func() error
}

type noService struct{ admin.Service }

func startProcess(log *slog.Logger, bootstrap []string, id, address string) (*process, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	self := coordinator.Member{ProcessID: id, Admin: l.Addr().String(), NodeIDs: []int32{9001}}
	asker := admin.NewPeers(admin.ClientConfig{})
	live, err := peers.New(peers.Config{Pinger: asker, Log: log})
	if err != nil {
		return nil, err
	}
	store, err := coordinator.New(coordinator.Config{Opts: []kgo.Opt{kgo.SeedBrokers(bootstrap...)}, Self: self, Peer: asker,
		Liveness: live, Log: log})
	if err != nil {
		return nil, err
	}
	server, err := admin.New(admin.Config{Listen: l, Service: noService{}, States: store, Log: log, DrainTimeout: time.Second,
		Pong: func() peers.Pong { return peers.Pong{ProcessID: id, NodeIDs: self.NodeIDs} }})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	errs := make(chan error, 3)
	for _, run := range []func(context.Context) error{live.Run, store.Run, server.Run} {
		wg.Go(func() { errs <- run(ctx) })
	}
	stop := sync.OnceValue(func() error {
		cancel()
		wg.Wait()
		asker.Close()
		for range 3 {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	})
	select {
	case <-store.Loaded():
		return &process{store, live, stop}, nil
	case <-time.After(3 * time.Minute):
		return nil, fmt.Errorf("not loaded in three minutes, %v", stop())
	}
}

// TestHelperProcess is a process of its own, which writes without end.
func TestHelperProcess(t *testing.T) {
	spec := strings.Split(os.Getenv(helperEnv), "|")
	if len(spec) != 3 {
		t.Skip("only as a helper")
	}
	p, err := startProcess(slog.New(slog.NewTextHandler(os.Stderr, nil)), strings.Split(spec[0], ","), spec[1], spec[2])
	if err != nil {
		t.Fatal(err)
	}
	for round := int16(1); ; round++ {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		states := coordinator.StatesOfOneMirror(60, round%1000)
		for i := range states {
			states[i].Hint = spec[1]
		}
		err := p.store.PutState(ctx, states...)
		cancel()
		fmt.Println("wrote", round, err)
		time.Sleep(10 * time.Millisecond)
	}
}

// helper is such a process.
type helper struct {
	cmd *exec.Cmd

	mu    sync.Mutex
	wrote int
}

func startHelper(t *testing.T, bootstrap []string, id, address string) *helper {
	t.Helper()
	h := &helper{cmd: exec.Command(os.Args[0], "-test.run=^TestHelperProcess$", "-test.v")}
	h.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%s", helperEnv, strings.Join(bootstrap, ","), id, address))
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.cmd.Stderr = t.Output()
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "wrote") {
				h.mu.Lock()
				h.wrote++
				h.mu.Unlock()
				if !strings.HasSuffix(lines.Text(), "<nil>") {
					fmt.Fprintln(t.Output(), id, lines.Text())
				}
			}
		}
	}()
	t.Cleanup(func() {
		h.signal(t, syscall.SIGKILL)
		<-done
		h.cmd.Wait()
	})
	return h
}

func (h *helper) signal(t *testing.T, s syscall.Signal) {
	if err := h.cmd.Process.Signal(s); err != nil && s != syscall.SIGKILL {
		t.Error(err)
	}
}

func (h *helper) rounds() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wrote
}

func within(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	limit *= 3 // it only ends the wait, also on a machine with much else to do
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			t.Fatalf("not in %v: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}

// TestStaleOwner stops a process that writes, lets another take over, and lets it go on.
func TestStaleOwner(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "stale", Brokers: 3, Controllers: 1})
	bootstrap := c.Bootstrap(testkafka.ClientListener)
	address := func() string {
		port, err := testkafka.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	addressOfA := address()
	a := startHelper(t, bootstrap, "a-1", addressOfA)
	within(t, 60*time.Second, "a writes", func() bool { return a.rounds() > 3 })
	b, err := startProcess(slog.New(slog.NewTextHandler(t.Output(), nil)), bootstrap, "b-1", address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	}()
	half := func() bool { return len(b.store.Members()) == 2 && coordinator.Held(b.store) == 25 }
	t.Logf("spread after %v", within(t, 30*time.Second, "b owns half", half))
	was := a.rounds()
	within(t, 30*time.Second, "a goes on", func() bool { return a.rounds() > was+5 })

	takeOver := func(how syscall.Signal) {
		t.Helper()
		a.signal(t, how)
		start, still := time.Now(), coordinator.Standstill()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		err := b.store.PutState(ctx, coordinator.StatesOfOneMirror(60, 2000)...)
		took := time.Since(start) - still()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("after %v all states were written in %v", how, took)
		if took > 6*time.Second { // the session of a group's member: as if nobody had seen it before
			t.Errorf("taking over after %v took %v", how, took)
		}
		within(t, 30*time.Second, "b owns all", func() bool { return coordinator.Held(b.store) == 50 })
	}
	takeOver(syscall.SIGSTOP)
	within(t, 30*time.Second, "the group lets a go", func() bool { return len(b.store.Members()) == 1 })
	was = a.rounds()
	a.signal(t, syscall.SIGCONT)
	t.Logf("spread again after %v", within(t, 30*time.Second, "b owns half", half))
	within(t, 30*time.Second, "a goes on", func() bool { return a.rounds() > was+5 })

	takeOver(syscall.SIGKILL)
	a = startHelper(t, bootstrap, "a-2", addressOfA)
	within(t, 30*time.Second, "a goes on", func() bool { return a.rounds() > 5 })
	t.Logf("spread again after %v", within(t, 30*time.Second, "b owns half", half))

	// A short stop: the group does not notice.
	takeOver(syscall.SIGSTOP)
	was = a.rounds()
	a.signal(t, syscall.SIGCONT)
	within(t, 30*time.Second, "a goes on", func() bool { return a.rounds() > was+5 })
	t.Logf("spread again after %v", within(t, 30*time.Second, "b owns half", half))
	a.signal(t, syscall.SIGKILL)
	coordinator.CheckNoOldWrites(t, c)
}
