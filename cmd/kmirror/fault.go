package main

import (
	"os"
	"syscall"
)

// faultEnv names the one point at which the process ends itself as kill -9 would. It is for tests of what a crash leaves behind, and
// is not documented for operators.
const faultEnv = "TEST_KMIRROR_FAULT_POINT"

// faultFromEnv returns nil where no point is named.
func faultFromEnv() func(string) {
	at := os.Getenv(faultEnv)
	if at == "" {
		return nil
	}
	return func(point string) {
		if point == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
}
