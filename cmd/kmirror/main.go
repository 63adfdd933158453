// Command kmirror mirrors topics from one Kafka cluster into another, unmodified one, byte for byte.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	c := &cli{
		out: os.Stdout, err: os.Stderr, in: os.Stdin, env: os.LookupEnv, environ: os.Environ,
		terminal: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
		screen:   term.IsTerminal(int(os.Stdout.Fd())),
	}
	os.Exit(c.run(untilSignal(context.Background()), os.Args[1:]))
}

// secondSignal is how long after the first signal another one still counts as the same: timeout(1) and terminals with a process in between
// send each of theirs twice.
const secondSignal = time.Second

// untilSignal ends with Ctrl-C or SIGTERM. A moment after the first signal the default is back: a second one ends the process at once.
func untilSignal(parent context.Context) context.Context {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(secondSignal, stop) })
	return ctx
}
