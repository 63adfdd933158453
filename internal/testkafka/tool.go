package testkafka

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// toolHeap lets the performance tools buffer what they are asked to.
const toolHeap = "512m"

// Tool returns a command that runs a class of Kafka's, such as org.apache.kafka.tools.ProducerPerformance or
// org.apache.kafka.tools.consumer.ConsoleConsumer. Its standard output is the tool's alone; warnings go to standard
// error. An empty version is the latest. What keeps it from running is returned by the command's Start or Run.
func Tool(ctx context.Context, version, class string, args ...string) *exec.Cmd {
	if version == "" {
		version = Latest
	}
	return javaTool(ctx, kafkaBundle(version), class, args)
}

// MirrorMaker returns a command that runs MirrorMaker 2 as its own process with a properties file.
func MirrorMaker(ctx context.Context, config string) *exec.Cmd {
	return javaTool(ctx, mirrorMakerBundle(), "org.apache.kafka.connect.mirror.MirrorMaker", []string{config})
}

// Streams returns a command that runs a class, or a file with the source of one, with Kafka Streams of a version at hand.
func Streams(ctx context.Context, version, class string, args ...string) *exec.Cmd {
	return javaTool(ctx, streamsBundle(version), class, args)
}

func javaTool(ctx context.Context, b bundle, class string, args []string) *exec.Cmd {
	l, err := load(ctx, b)
	if err != nil {
		cmd := exec.CommandContext(ctx, "java")
		cmd.Err = err
		return cmd
	}
	return l.command(ctx, toolHeap, class, args...)
}

// KcatPatience are kcat's arguments with which it waits longer for metadata than the five seconds that it has by default: a machine with
// much else to do may need them.
var KcatPatience = []string{"-m", "60"}

// Kcat returns a command that runs kcat, a client on librdkafka, with KcatPatience; a later -m counts. That it is missing is returned by
// Start or Run.
func Kcat(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "kcat", slices.Concat(KcatPatience, args)...)
	if _, err := findCommand("kcat", "kcat"); err != nil {
		cmd.Err = err
	}
	return cmd
}

// EnsureKcat fails the test at once when kcat is missing.
func EnsureKcat(tb testing.TB) {
	tb.Helper()
	if _, err := findCommand("kcat", "kcat"); err != nil {
		tb.Fatal(err)
	}
}

// Usage returns the CPU time (user and system) that a process has used and the bytes of memory it holds.
func Usage(pid int) (cpu time.Duration, resident int64, err error) {
	const ticksPerSecond = 100 // USER_HZ, the same on all Linux platforms that Go runs on
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The command's name in parentheses may hold spaces. After it come the fields from 3 on.
	_, rest, ok := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 22 {
		return 0, 0, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	var n [3]int64
	for i, field := range []int{14, 15, 24} { // utime, stime, rss in pages
		if n[i], err = strconv.ParseInt(f[field-3], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	return time.Duration(n[0]+n[1]) * time.Second / ticksPerSecond, n[2] * int64(os.Getpagesize()), nil
}
