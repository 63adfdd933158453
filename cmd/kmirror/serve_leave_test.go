package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

func TestARetirementKeepsTheAdminListenerToTheLast(t *testing.T) {
	d := newDeparture(t.Context())
	retired, unregister := make(chan struct{}), make(chan struct{})
	d.group.Go(func() error {
		d.await(retired, func() { close(unregister) }, slog.New(slog.DiscardHandler))
		return nil
	})
	if d.ctx.Err() != nil || d.admin.Err() != nil {
		t.Fatal("over before it began")
	}
	close(retired)
	<-unregister
	<-d.ctx.Done()
	if err := d.group.Wait(); err != nil || !d.retiring.Load() {
		t.Errorf("%v, retiring %v", err, d.retiring.Load())
	}
	if d.admin.Err() != nil {
		t.Error("the admin listener ended before the membership did")
	}
	d.left()
	<-d.admin.Done()
	d.end()
}

// TestTheMembershipSaysWhyItEnded: the end of the admin listener that follows from it is no error, another one is.
func TestTheMembershipSaysWhyItEnded(t *testing.T) {
	d := newDeparture(t.Context())
	defer d.end()
	if err := d.runAdmin(func(context.Context) error { return nil }); err == nil {
		t.Error("an end without a reason is taken for one in order")
	}
	d.left()
	if err := d.runAdmin(func(ctx context.Context) error { <-ctx.Done(); return nil }); err != nil {
		t.Errorf("after the membership: %v", err)
	}
	broken := errors.New("broken")
	if err := d.runAdmin(func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("of its own: %v", err)
	}
}

func TestOtherEndsKeepTheAdminListenerWhileTheMembershipLasts(t *testing.T) {
	never := func() { t.Error("unregistered") }
	for name, end := range map[string]func(cancel func(), d *departure){
		"told to end": func(cancel func(), _ *departure) { cancel() },
		"a part fails": func(_ func(), d *departure) {
			d.group.Go(func() error { return errors.New("failed") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := newDeparture(ctx)
			defer d.end()
			d.group.Go(func() error { d.await(nil, never, slog.New(slog.DiscardHandler)); return nil })
			end(cancel, d)
			_ = d.group.Wait()
			if d.admin.Err() != nil {
				t.Error("the admin listener ended before the membership did")
			}
			d.left()
			<-d.admin.Done()
			if d.retiring.Load() {
				t.Error("a retirement")
			}
		})
	}
}
