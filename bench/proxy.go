package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"kmirror/internal/testkafka"
)

// Bars of the gateway: throughput as a part of the broker's own, and what it adds to the p99 of a produce, in ms.
const (
	fetchBar   = 0.9
	produceBar = 0.97
	addedBar   = 0.3
)

// way is one of the ways to the broker: the broker itself, or a proxy in front of it.
type way struct {
	name string
	addr string
	pid  int // of the proxy, 0 for none
}

// road is the cluster of one broker with what is in front of it.
type road struct {
	settings
	c    *testkafka.Cluster
	ways []way
}

// proxy measures the gateway: throughput, CPU time and latency by way of it, beside the broker itself and, where its binary is given,
// kafka-proxy.
func (s settings) proxy(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "kmirror-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := s.pin(false, os.Getpid()); err != nil { // all that is started from here on has the same cores
		return err
	}
	fmt.Println("starting a cluster of 1 node, Kafka", testkafka.Latest)
	c, err := testkafka.Launch(ctx, filepath.Join(dir, "dst"), testkafka.Options{Name: "destination", Properties: props}, os.Stderr)
	if err != nil {
		return err
	}
	defer c.Close()
	gateway, err := ports(4)
	if err != nil {
		return err
	}
	sh, err := startShim(ctx, s, filepath.Join(dir, "shim"), 9001, c, fmt.Sprintf(
		`gateway: [{name: CLIENT, bootstrap: "127.0.0.1:%d", advertised_host: 127.0.0.1, node_id_ranges: ["1", "9001-9002"]}]`, gateway))
	if err != nil {
		return err
	}
	defer sh.stop()
	r := &road{settings: s, c: c, ways: []way{
		{name: "direct", addr: c.Bootstrap("CLIENT")[0]},
		{name: "kmirror", addr: fmt.Sprintf("127.0.0.1:%d", gateway+1), pid: sh.cmd.Process.Pid}, // that of broker 1
	}}
	if s.kafkaProxy != "" {
		other, stop, err := startKafkaProxy(ctx, s.kafkaProxy, dir, r.ways[0].addr)
		if err != nil {
			return err
		}
		defer stop()
		r.ways = append(r.ways, other)
	}
	for _, w := range r.ways[1:] {
		if err := s.pin(true, w.pid); err != nil {
			return err
		}
	}
	if err := r.throughput(ctx); err != nil {
		return err
	}
	if s.loads == "" {
		if err := r.delay(ctx); err != nil {
			return err
		}
	}
	for _, w := range r.ways[1:] {
		fmt.Printf("  peak resident memory of %s, MB: %.0f\n", w.name, float64(peakOf(w.pid))/1e6)
	}
	return nil
}

// pin gives a process the last core if it is a proxy, else all but that, where proxies are to have a core of their own: it shows what a
// gateway costs that takes no CPU time from broker and clients, as one on a host of its own.
func (s settings) pin(proxy bool, pid int) error {
	if !s.ownCore {
		return nil
	}
	last := runtime.NumCPU() - 1 // those that there were at its start
	if last < 1 {
		return errors.New("-proxy-own-core: this machine has a single core")
	}
	list := fmt.Sprintf("0-%d", last-1)
	if proxy {
		list = strconv.Itoa(last)
	}
	if out, err := exec.Command("taskset", "--all-tasks", "--cpu-list", "--pid", list, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("-proxy-own-core: %w\n%s", err, out)
	}
	return nil
}

// startKafkaProxy starts grepplabs/kafka-proxy in front of a broker, as it is by default.
func startKafkaProxy(ctx context.Context, binary, dir, broker string) (w way, stop func(), err error) {
	port, err := testkafka.FreePort()
	if err != nil {
		return w, nil, err
	}
	w = way{name: "kafka-proxy", addr: fmt.Sprintf("127.0.0.1:%d", port)}
	log, err := os.Create(filepath.Join(dir, "kafka-proxy.log"))
	if err != nil {
		return w, nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, "server", "--bootstrap-server-mapping", broker+","+w.addr, "--http-disable", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return w, nil, err
	}
	w.pid = cmd.Process.Pid
	stop = func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // that it was killed
	}
	if err := until(ctx, 10*time.Second, func() (bool, error) {
		nc, err := net.Dial("tcp", w.addr)
		if err != nil {
			return false, nil
		}
		return true, nc.Close()
	}); err != nil {
		stop()
		return w, nil, fmt.Errorf("kafka-proxy is not ready: %w", err)
	}
	return w, stop, nil
}
