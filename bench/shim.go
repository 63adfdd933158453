package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kmirror/internal/testkafka"
)

// shim is the kmirror process under measurement.
type shim struct {
	binary, dir, admin, log string
	config, http, profile   string
	cmd                     *exec.Cmd
}

// ports returns n free ports in a row.
func ports(n int) (int, error) {
	for range 200 {
		first, err := testkafka.FreePort()
		if err != nil {
			return 0, err
		}
		var open []net.Listener
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				break
			}
			open = append(open, l)
		}
		for _, l := range open {
			l.Close()
		}
		if len(open) == n {
			return first, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row", n)
}

// startShim starts a process with the node ids first and the one after, in a directory of its own, and further lines of configuration.
func startShim(ctx context.Context, set settings, dir string, first int, dst *testkafka.Cluster, more ...string) (*shim, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p, err := ports(6)
	if err != nil {
		return nil, err
	}
	s := &shim{binary: set.binary, dir: dir, admin: fmt.Sprintf("127.0.0.1:%d", p), log: filepath.Join(dir, "kmirror.log")}
	yaml := fmt.Sprintf(`node_ids: [%d, %d]
admin: %s
http: 127.0.0.1:%d
destination: {bootstrap_servers: ["%s"], controllers: ["%s"], inter_broker_listener: REPL}
listeners:
  - {name: CLIENT, bind: "127.0.0.1:%d", advertised: "127.0.0.1:%d", protocol: PLAINTEXT}
  - {name: REPL, bind: "127.0.0.1:%d", advertised: "127.0.0.1:%d", protocol: PLAINTEXT}
log: {level: debug}
%s
`, first, first+1, s.admin, p+1, strings.Join(dst.Bootstrap("CLIENT"), `", "`), strings.Join(dst.Controllers(), `", "`), p+2, p+2, p+4, p+4, strings.Join(more, "\n"))
	s.config, s.http, s.profile = filepath.Join(dir, "kmirror.yaml"), fmt.Sprintf("http://127.0.0.1:%d/readyz", p+1), set.profile
	if err := os.WriteFile(s.config, []byte(yaml), 0o600); err != nil {
		return nil, err
	}
	return s, s.start(ctx)
}

// start starts the process, or starts it again, and waits until it is ready.
func (s *shim) start(ctx context.Context) error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"serve", "--config", s.config}
	if s.profile != "" {
		args = append(args, "--cpu-profile", s.profile)
	}
	s.cmd = exec.Command(s.binary, args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	if err := until(ctx, time.Minute, func() (bool, error) {
		resp, err := http.Get(s.http)
		if err != nil {
			return false, nil
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	}); err != nil {
		out, _ := os.ReadFile(s.log)
		s.stop()
		return fmt.Errorf("kmirror is not ready: %w\n%s", err, out)
	}
	return nil
}

// create defines the mirror "bench" of a source.
func (s *shim) create(src *testkafka.Cluster) error { return s.define("create", src) }

// alter gives the mirror "bench" further properties besides its source.
func (s *shim) alter(src *testkafka.Cluster, properties ...string) error {
	return s.define("alter", src, properties...)
}

func (s *shim) define(verb string, src *testkafka.Cluster, properties ...string) error {
	file := filepath.Join(s.dir, "mirror.properties")
	lines := append([]string{"bootstrap.servers=" + strings.Join(src.Bootstrap("CLIENT"), ",")}, properties...)
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return s.run(verb, "--mirror", "bench", "--mirror-config", file)
}

// run runs a command of kmirror against the process.
func (s *shim) run(args ...string) error {
	out, err := exec.Command(s.binary, append(args, "--bootstrap-server", s.admin)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kmirror %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func (s *shim) stop() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		s.cmd.Process.Kill()
		<-done
	}
}

// peak is the most memory that the process ever held, in bytes.
func (s *shim) peak() int64 { return peakOf(s.cmd.Process.Pid) }

func peakOf(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return -1
}

// until polls every 20 ms.
func until(ctx context.Context, limit time.Duration, ok func() (bool, error)) error {
	return poll(ctx, limit, 20*time.Millisecond, ok)
}

func poll(ctx context.Context, limit, every time.Duration, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not within %s", limit), ctx.Err())
		case <-t.C:
		}
	}
}
