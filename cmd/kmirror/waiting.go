package main

import (
	"context"
	"crypto/tls"
	"time"

	"kmirror/internal/admin"
	"kmirror/internal/wait"
)

const (
	// cliClientID is the client id of commands.
	cliClientID = "kmirror-cli"
	// standingInterval is how often a process that keeps a command waiting is asked why.
	standingInterval = time.Second
)

// waiting returns what says on stderr why a process does not answer, such as one that was killed and has not joined the destination again.
// A reason is told once. A process that is ready takes its time for what it was asked.
func (c *cli) waiting(secure func() *tls.Config) func(ctx context.Context, address string) {
	told := map[string]string{} // by address; requests of a client come one after the other
	return func(ctx context.Context, address string) {
		asker, err := admin.NewClient(admin.ClientConfig{Addresses: []string{address}, ClientID: cliClientID, TLS: secure})
		if err != nil {
			return
		}
		defer asker.Close()
		for {
			pong, err := asker.Standing(ctx)
			if err == nil && ctx.Err() == nil && !pong.Ready && pong.Why != told[address] {
				c.note("waiting for the kmirror at %s, which is not ready: %s", address, pong.Why)
				if told[address] == "" {
					c.note("  what to do: nothing if it was started just now: after a kill its node ids are free again in about 9 s; else see its log. " +
						"To interrupt this command does no harm, the same command again attaches")
				}
				told[address] = pong.Why
			}
			if !wait.For(ctx, standingInterval) {
				return
			}
		}
	}
}
