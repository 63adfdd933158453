package main

import (
	"os"
	"strings"
	"syscall"
)

// faultEnv names the one point at which the process ends itself as kill -9 would, or, after an @, a file that holds its name and is
// looked at whenever any point is reached, so that a process can be given a point while it runs. With "stop at " before the name it stands
// still there (SIGSTOP) instead. It is for tests of what a crash leaves behind, and is not documented for operators.
const faultEnv = "TEST_KMIRROR_FAULT_POINT"

// faultFromEnv returns nil where no point is named.
func faultFromEnv() func(string) {
	at := os.Getenv(faultEnv)
	if at == "" {
		return nil
	}
	file, fromFile := strings.CutPrefix(at, "@")
	return func(point string) {
		due := at
		if fromFile {
			text, _ := os.ReadFile(file) // no file, no point
			due = string(text)
		}
		name, stop := strings.CutPrefix(due, "stop at ")
		if point != name {
			return
		}
		signal := syscall.SIGKILL
		if stop {
			signal = syscall.SIGSTOP
		}
		_ = syscall.Kill(os.Getpid(), signal)
	}
}
