package main

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"kmirror/internal/trace"
)

const (
	// maxAround bounds the addresses that are remembered: a server can name any number.
	maxAround = 1000
	// lookupLimit bounds the look-up of a name, during which nothing is written.
	lookupLimit = time.Second
)

// around tells, once for each address, that clients are going to go around a trace: they are told of an address that is not its own.
// Who sees nothing in the trace finds out why. It belongs to one goroutine.
type around struct {
	log *slog.Logger
	// host is how the trace's own address was given, at what it is.
	host string
	at   netip.AddrPort
	// lookup resolves names, local are the addresses of this machine.
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	local  func() []netip.Addr
	seen   map[string]bool
}

// newAround is for a trace that listens at l, of which address is how the user gave it.
func newAround(address string, l net.Listener, log *slog.Logger) *around {
	host, _ := splitPort(address)
	at, _ := netip.ParseAddrPort(l.Addr().String())
	return &around{log: log, host: host, at: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), local: localAddresses, seen: map[string]bool{},
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}}
}

// look takes an event of the trace.
func (a *around) look(e *trace.Event) {
	for _, address := range e.Addresses() {
		if a.seen[address] || len(a.seen) >= maxAround {
			continue
		}
		a.seen[address] = true
		if !a.own(address) {
			a.log.Warn("clients are told of an address that is not the trace's own: they go there next, and that is not seen here",
				"address", address, "hint", "have that broker advertise the address of a trace (advertised.listeners)")
		}
	}
}

// own reports whether connecting to an address leads to the trace, as seen from this machine.
func (a *around) own(address string) bool {
	host, port := splitPort(address)
	switch {
	case port != int(a.at.Port()):
		return false
	case host == a.host:
		return true
	}
	addrs := []netip.Addr{}
	if ip, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, ip)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
		defer cancel()
		addrs, _ = a.lookup(ctx, host) // a name that leads nowhere does not lead here
	}
	mine := []netip.Addr{a.at.Addr()}
	if a.at.Addr().IsUnspecified() {
		mine = a.local()
	}
	return slices.ContainsFunc(addrs, func(ip netip.Addr) bool { return slices.Contains(mine, ip.Unmap()) })
}

// localAddresses are those of this machine's interfaces.
func localAddresses() (out []netip.Addr) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}
