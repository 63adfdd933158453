package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/trace"
)

// aroundOf is for a trace at an address, on a machine with the address 10.0.0.5 that knows two names.
func aroundOf(listen string) (*around, *bytes.Buffer) {
	var log bytes.Buffer
	a := &around{log: slog.New(slog.NewTextHandler(&log, nil)), at: netip.MustParseAddrPort(listen), host: "given", seen: map[string]bool{}}
	a.local = func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.5")}
	}
	a.lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
		switch host {
		case "here":
			return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.5"), netip.MustParseAddr("fd00::1")}, nil
		case "there":
			return []netip.Addr{netip.MustParseAddr("10.0.0.9")}, nil
		}
		return nil, errors.New("no such host")
	}
	return a, &log
}

func TestOwnAddress(t *testing.T) {
	for _, c := range []struct {
		listen, address string
		own             bool
	}{
		{"10.0.0.5:9292", "10.0.0.5:9292", true}, {"10.0.0.5:9292", "10.0.0.5:9092", false}, {"10.0.0.5:9292", "10.0.0.9:9292", false},
		{"10.0.0.5:9292", "here:9292", true}, {"10.0.0.5:9292", "there:9292", false}, {"10.0.0.5:9292", "nowhere:9292", false},
		{"10.0.0.5:9292", "given:9292", true}, {"10.0.0.5:9292", "given:9092", false},
		{"127.0.0.1:9092", "here:9092", false}, {"0.0.0.0:9092", "here:9092", true}, {"[::]:9092", "10.0.0.5:9092", true},
		{"0.0.0.0:9092", "there:9092", false}, {"0.0.0.0:9092", "127.0.0.1:9092", true},
	} {
		if a, _ := aroundOf(c.listen); a.own(c.address) != c.own {
			t.Errorf("a trace at %s, told of %s: own is %v", c.listen, c.address, !c.own)
		}
	}
}

// TestGoingAroundIsToldOnce: for each foreign address, whichever response names it.
func TestGoingAroundIsToldOnce(t *testing.T) {
	a, log := aroundOf("10.0.0.5:9292")
	metadata := kmsg.NewPtrMetadataResponse()
	metadata.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "here", Port: 9292}, {NodeID: 2, Host: "there", Port: 9092}}
	coordinator := kmsg.NewPtrFindCoordinatorResponse()
	coordinator.Coordinators = []kmsg.FindCoordinatorResponseCoordinator{{Host: "there", Port: 9092}, {Host: "other", Port: 9092},
		{NodeID: -1, Port: -1}}
	old := kmsg.NewPtrFindCoordinatorResponse()
	old.Host, old.Port = "old", 9092
	cluster := kmsg.NewPtrDescribeClusterResponse()
	cluster.Brokers = []kmsg.DescribeClusterResponseBroker{{Host: "fd00::2", Port: 9092}}
	for range 2 {
		for _, body := range []any{metadata, coordinator, old, cluster, kmsg.NewPtrFetchResponse(), nil} {
			a.look(&trace.Event{Message: &trace.Message{Kind: trace.Response}, Body: body})
		}
	}
	for _, address := range []string{"there:9092", "other:9092", "old:9092", "[fd00::2]:9092"} {
		if n := strings.Count(log.String(), "address="+address) + strings.Count(log.String(), `address="`+address); n != 1 {
			t.Errorf("%s is told %d times", address, n)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 4 {
		t.Errorf("%d lines:\n%s", n, log)
	}
}
