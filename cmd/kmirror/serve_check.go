package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// checkLimit bounds what serve --check takes to ask.
const checkLimit = 30 * time.Second

// checkServe connects to brokers, and to controllers where there are any, as serve would, registers nowhere, and prints what it found.
func checkServe(ctx context.Context, cfg *Config, out io.Writer) error {
	quiet := slog.New(slog.DiscardHandler)
	l, err := cfg.legs(quiet)
	if err != nil {
		return err
	}
	s, err := openSockets(cfg, quiet)
	if err != nil {
		return err
	}
	defer s.close()
	for _, note := range s.notes {
		fmt.Fprintln(out, "note:", note)
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	meta, err := cfg.askBrokers(ctx, l)
	if err != nil {
		return err
	}
	for _, note := range cfg.outsideNotes(brokerIDs(meta.Brokers)) {
		fmt.Fprintln(out, "note:", note)
	}
	fmt.Fprintf(out, "brokers      cluster %s, %d brokers\n", meta.Cluster, len(meta.Brokers))
	if cfg.alone() {
		for _, b := range meta.Brokers {
			if !cfg.Gateway[0].fronts(b.NodeID) {
				continue // noted above
			}
			fmt.Fprintf(out, "gateway      fronts broker %d at %s\n", b.NodeID, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
		}
		fmt.Fprintln(out, "listeners    all addresses are free\nno controllers are configured: serve is a gateway alone, without mirrors")
		return nil
	}
	if err := checkNodes(ctx, cfg, l, meta, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "listeners    all addresses are free\nnothing was registered")
	return nil
}

// checkNodes looks at what concerns kmirror's own node ids: who has them now, the brokers' settings, and the controllers.
func checkNodes(ctx context.Context, cfg *Config, l legs, meta kadm.Metadata, out io.Writer) error {
	for _, b := range meta.Brokers {
		if slices.Contains(cfg.NodeIDs, b.NodeID) {
			fmt.Fprintf(out, "note: node id %d is registered now, at %s:%d: by an earlier run of kmirror, or by a real broker\n", b.NodeID, b.Host, b.Port)
		}
	}
	real := slices.DeleteFunc(brokerIDs(meta.Brokers), func(id int32) bool { return slices.Contains(cfg.NodeIDs, id) })
	if err := checkSettings(ctx, cfg, l, real); isUsage(err) {
		return err
	} else if err != nil {
		fmt.Fprintln(out, "note:", err)
	}
	for _, addr := range cfg.Destination.Controllers {
		id, err := controllerCluster(ctx, addr, l.controller)
		if errors.Is(err, kerr.MismatchedEndpointType) {
			return usageError(addr+" of destination.controllers is a listener of brokers", controllersHint)
		}
		if err != nil {
			return unreachableError("controller "+addr, err)
		}
		if id != meta.Cluster {
			return usageError(fmt.Sprintf("controller %s is of cluster %s, the brokers are of %s", addr, id, meta.Cluster), "point both at one cluster")
		}
		fmt.Fprintf(out, "controller   %s answers\n", addr)
	}
	return nil
}

// controllerCluster asks one controller for its cluster id.
func controllerCluster(ctx context.Context, addr string, opts []kgo.Opt) (string, error) {
	cl, err := kgo.NewClient(append(slices.Clone(opts), kgo.SeedBrokers(addr))...)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	req := kmsg.NewPtrDescribeClusterRequest()
	req.EndpointType = 2 // controllers
	kr, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return "", err
	}
	resp := kr.(*kmsg.DescribeClusterResponse)
	return resp.ClusterID, kerr.ErrorForCode(resp.ErrorCode)
}
