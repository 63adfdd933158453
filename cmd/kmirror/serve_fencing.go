package main

import (
	"slices"

	"kmirror/internal/fencing"
	"kmirror/internal/mirror"
)

// fencing makes what fences the process while it can't serve clients, unless that is switched off.
func (p *process) fencing() (err error) {
	if p.cfg.FenceAfter == 0 {
		return nil
	}
	p.judge, err = fencing.New(fencing.Config{
		Listeners: p.cfg.clientListeners(), Forward: p.proxy, Member: p.broker, After: p.cfg.FenceAfter, Slow: p.cfg.FenceSlowerThan,
		Needed: p.needed, OnChange: p.metrics.SelfFenced, Log: p.log,
	})
	return err
}

// clientListeners are the names of the listeners that clients use.
func (c *Config) clientListeners() (names []string) {
	for _, l := range c.Listeners {
		if c.forClients(l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

// needed reports whether a mirror topic is being stopped, which takes a process that leads it, and no other one is there for that. Who
// fails over wants to get away from what is broken.
func (p *process) needed() bool {
	return p.manager.Stopping() && !relieved(p.processes())
}

// relieved reports whether another process may lead what this one does not.
func relieved(processes []mirror.Process) bool {
	return slices.ContainsFunc(processes, func(o mirror.Process) bool { return !o.Self && !o.Dead && !o.Starting && !o.Leaving })
}
