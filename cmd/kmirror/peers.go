package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/internal/mirror"
	"kmirror/internal/peers"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
	"kmirror/protocol/kraft"
)

// uncordonFor is how long node ids stay open for placement when another process is about to name them.
const uncordonFor = 5 * time.Second

// peerSide makes what this process knows of others, and asks them by.
func (p *process) peerSide() (err error) {
	p.self = coordinator.Member{ProcessID: processID(), Admin: p.cfg.Admin.address(), NodeIDs: p.cfg.NodeIDs, Self: true}
	p.asker = admin.NewPeers(admin.ClientConfig{TLS: p.sockets.peerTLS})
	p.peers, err = peers.New(peers.Config{Pinger: p.asker, Log: p.log})
	return err
}

// processID names this run of the process.
func processID() string {
	var id protocol.UUID
	rand.Read(id[:]) // never fails
	return id.String()
}

// pong is what others learn of this process.
func (p *process) pong() peers.Pong {
	pong := peers.Pong{ProcessID: p.self.ProcessID, NodeIDs: p.self.NodeIDs, Unreachable: p.manager.Blind(), Leaving: p.manager.Leaving(),
		Ready: true, Idle: !p.broker.Registered()}
	if err := p.ready(); err != nil {
		pong.Ready, pong.Why = false, err.Error()
	}
	return pong
}

// others returns the other processes, dead ones among them until their session in the group ends.
func (p *process) others() []coordinator.Member {
	return slices.DeleteFunc(slices.Clone(p.store.Members()), func(m coordinator.Member) bool {
		// An earlier run of this very process may still be a member.
		return m.Self || len(m.NodeIDs) == 0 || slices.Contains(p.self.NodeIDs, m.NodeIDs[0])
	})
}

// alive returns the other processes that answer.
func (p *process) alive() []coordinator.Member {
	return slices.DeleteFunc(p.others(), func(m coordinator.Member) bool { return !p.peers.Alive(m) })
}

// processes are this one and those of the others of which something is known.
func (p *process) processes() []mirror.Process {
	// One that has fenced itself is not ready to the others, and must come to the same choice of leaders as they do.
	out := []mirror.Process{{NodeIDs: p.self.NodeIDs, Self: true, Starting: p.judge.Fenced()}}
	for _, m := range p.others() {
		switch pong, ok := p.peers.Answer(m); {
		case ok && pong.Idle:
			// It leads nothing, and its node ids may be another's: neither given anything nor held dead.
		case ok:
			out = append(out, processOf(m, pong, p.broker.Image()))
		default: // one that has not been asked yet is not there
			if last, silent, dead := p.peers.Silence(m); dead {
				out = append(out, unseen(m, last, silent, p.broker.Image()))
			}
		}
	}
	return out
}

// apartAfter is for how long a process that is a member of the group and of the destination may be held dead. One that is dead has been no member
// of the group for long by then (6 s), and is fenced (9 s).
const apartAfter = 12 * time.Second

// unseen is a process that does not answer: a dead one, or one that lives and can't be reached from here, such as through a firewall. Each of two
// that held the other dead for good would take everything from it, again and again.
func unseen(m coordinator.Member, last peers.Pong, silent time.Duration, img *kraft.Image) mirror.Process {
	if silent < apartAfter || !serving(m, img) {
		return mirror.Process{NodeIDs: m.NodeIDs, Dead: true}
	}
	return mirror.Process{NodeIDs: m.NodeIDs, Blind: last.Unreachable, Apart: true}
}

// serving reports whether the destination has an id of a process that is not fenced.
func serving(m coordinator.Member, img *kraft.Image) bool {
	return slices.ContainsFunc(m.NodeIDs, func(id int32) bool {
		b := img.Brokers[id]
		return b != nil && !b.Fenced && !b.InControlledShutdown
	})
}

// processOf is another process by its answer. Of one that refuses us the destination tells whether it is there for others: both may have
// fenced themselves, and each would wait for the other to lead, also in a stop.
func processOf(m coordinator.Member, pong peers.Pong, img *kraft.Image) mirror.Process {
	out := mirror.Process{NodeIDs: m.NodeIDs, Blind: pong.Unreachable, Leaving: pong.Leaving, Starting: !pong.Ready}
	if pong.Refused {
		out.Leaving, out.Starting, out.Apart = false, !serving(m, img), true
	}
	return out
}

// twin is an error when this process is no member of the destination because another one that answers has its node ids: it takes no
// part in anything then, until that one has ended.
func (p *process) twin() error {
	if p.broker.Registered() {
		return nil
	}
	for _, m := range p.store.Others() {
		if !slices.ContainsFunc(m.NodeIDs, func(id int32) bool { return slices.Contains(p.self.NodeIDs, id) }) {
			continue
		}
		if _, answers := p.peers.Answer(m); answers {
			return &admin.Error{Code: kip1279.CoordinatorNotAvailable, Exit: admin.ExitRefused,
				Message: fmt.Sprintf("the kmirror at %s takes no part in anything: it has node_ids %v, and the kmirror that is alive at %s has %v",
					p.self.Admin, p.self.NodeIDs, m.Admin, m.NodeIDs),
				Hint: fmt.Sprintf("ask %s; stop one of the two, or give it node_ids of its own", m.Admin)}
		}
	}
	return nil
}

// liftPeers has other processes lift the cordon of their node ids. Ids of a process that is gone are left to the controller's refusal.
func (p *process) liftPeers(ctx context.Context, ids []int32) error {
	for _, m := range p.alive() {
		if slices.ContainsFunc(ids, func(id int32) bool { return slices.Contains(m.NodeIDs, id) }) {
			if err := p.asker.Uncordon(ctx, m.Admin); err != nil {
				return fmt.Errorf("process at %s: %w", m.Admin, err)
			}
		}
	}
	return nil
}

// coordinates reports whether this process is the metadata coordinator of a mirror.
func (p *process) coordinates(name string) bool {
	m, ok := p.store.MetadataOwner(name)
	return ok && m.Self
}

func asProcess(m coordinator.Member) admin.Process {
	return admin.Process{Address: m.Admin, NodeIDs: m.NodeIDs, Self: m.Self}
}

// adminProcesses are where the processes that live are asked, this one first.
func (p *process) adminProcesses() []admin.Process {
	out := []admin.Process{asProcess(p.self)}
	for _, m := range p.alive() {
		out = append(out, asProcess(m))
	}
	return out
}

// service answers operators for all processes.
func (p *process) service() admin.Service {
	return &admin.Forward{
		Service: operator{p.manager, p.syncer}, Processes: p.adminProcesses, Idle: p.twin,
		Owner: func(name string) (admin.Process, bool) {
			m, ok := p.store.MetadataOwner(name)
			return asProcess(m), ok && (m.Self || p.peers.Alive(m))
		},
		Dial: func(address string) (admin.Service, func(), error) {
			c, err := admin.NewClient(admin.ClientConfig{Addresses: []string{address}, ClientID: admin.PeerClientID, TLS: p.sockets.peerTLS})
			if err != nil {
				return nil, nil, err
			}
			return c, c.Close, nil
		},
	}
}
