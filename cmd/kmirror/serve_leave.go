package main

import (
	"context"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// departure runs what is in front of a process, and knows how that ends: when it is told to, when a part of it fails, or when
// the process retires.
type departure struct {
	group *errgroup.Group
	// ctx is of everything in front. admin is of the admin listener, which stays open until the membership of the destination is over: its
	// end is how an operator sees that the node ids have retired, and a process that gives its leadership away is not dead to others.
	ctx, admin        context.Context
	leave, closeAdmin context.CancelFunc
	retiring          atomic.Bool
}

func newDeparture(parent context.Context) *departure {
	d := &departure{}
	d.ctx, d.leave = context.WithCancel(parent)
	d.group, d.ctx = errgroup.WithContext(d.ctx)
	d.admin, d.closeAdmin = context.WithCancel(context.WithoutCancel(parent))
	return d
}

// await waits until retired is closed, calls retire and ends the front; it returns without that when the front ends before.
func (d *departure) await(retired <-chan struct{}, retire func(), log *slog.Logger) {
	select {
	case <-d.ctx.Done():
	case <-retired:
		log.Info("everything is handed back: leaving the destination for good")
		retire()
		d.retiring.Store(true)
		d.leave()
	}
}

// runAdmin runs the admin listener. What ends it in order is that the membership has ended, which says itself why: its reason must not be
// covered by one of ours that is a moment earlier.
func (d *departure) runAdmin(run func(context.Context) error) error {
	return ended(d.admin, "admin listener", run(d.admin))
}

// left says that the membership of the destination is over.
func (d *departure) left() { d.closeAdmin() }

// end releases what is left.
func (d *departure) end() {
	d.leave()
	d.closeAdmin()
}
