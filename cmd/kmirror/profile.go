package main

import (
	"os"
	"runtime/pprof"
)

// startProfile begins a CPU profile, which bench asks for; stop ends it. Without a path both do nothing.
func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, usageError(err.Error(), "give a file that can be written")
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() error { pprof.StopCPUProfile(); return f.Close() }, nil
}
