// Command kmirror mirrors topics from one Kafka cluster into another, unmodified one, byte for byte.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() {
	c := &cli{
		out: os.Stdout, err: os.Stderr, in: os.Stdin, env: os.LookupEnv, environ: os.Environ,
		terminal: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
		screen:   term.IsTerminal(int(os.Stdout.Fd())),
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Once the first signal has been heard the default is back: a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(c.run(ctx, os.Args[1:]))
}
