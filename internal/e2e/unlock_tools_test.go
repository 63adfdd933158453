package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// tools runs the commands of docs/failover.md.
type tools struct {
	dir, topic, bootstrap string
	steps                 map[string]string
}

// toolClasses are what the scripts of a Kafka distribution run.
var toolClasses = map[string]string{
	"kafka-topics.sh": "org.apache.kafka.tools.TopicCommand", "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand",
	"kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
	"kafka-leader-election.sh":     "org.apache.kafka.tools.LeaderElectionCommand",
	"kafka-transactions.sh":        "org.apache.kafka.tools.TransactionsCommand", "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
	"kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}

var stepBlock = regexp.MustCompile("(?ms)^\\*\\*(\\d+a?)\\. .*?^```sh\n(.*?)^```$")

// newTools reads the page and makes the scripts that it names.
func newTools(t *testing.T, c *testkafka.Cluster) *tools {
	t.Helper()
	page := mustRead(t, filepath.Join("..", "..", "docs", "failover.md"))
	_, section, ok := strings.Cut(page, "\n## With Kafka's stock tools alone\n")
	if !ok {
		t.Fatal("docs/failover.md has no section about the stock tools")
	}
	x := &tools{dir: t.TempDir(), bootstrap: strings.Join(c.Bootstrap("CLIENT"), ","), steps: map[string]string{}}
	for _, m := range stepBlock.FindAllStringSubmatch(section, -1) {
		x.steps[m[1]] = m[2]
	}
	if len(x.steps) != 16 {
		t.Fatalf("%d steps with commands", len(x.steps))
	}
	for script, class := range toolClasses {
		cmd := testkafka.Tool(context.Background(), c.Version(), class)
		if cmd.Err != nil {
			t.Fatal(cmd.Err)
		}
		var b strings.Builder
		b.WriteString("#!/bin/sh\nexec")
		for _, arg := range append([]string{cmd.Path}, cmd.Args[1:]...) {
			b.WriteString(" '" + arg + "'")
		}
		b.WriteString(" \"$@\"\n")
		if err := os.WriteFile(filepath.Join(x.dir, script), []byte(b.String()), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// run runs the commands of a step as they stand, with the variables of step 0 set to this cluster's, and returns what they print.
func (x *tools) run(t *testing.T, step string) string {
	t.Helper()
	vars := strings.NewReplacer("b1:9092", x.bootstrap, "T=orders", "T="+x.topic).Replace(x.steps["0"])
	cmd := exec.CommandContext(timeout(t, 2*time.Minute), "bash", "-e", "-c", vars+x.steps[step])
	cmd.Dir = x.dir
	cmd.Env = append(os.Environ(), "PATH="+x.dir+":"+os.Getenv("PATH"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	t.Logf("step %s:\n%s%s", step, out, errs.String())
	if err != nil {
		t.Fatalf("step %s: %v", step, err)
	}
	return string(out)
}

// file reads what a step has left.
func (x *tools) file(t *testing.T, kind string) string {
	t.Helper()
	return mustRead(t, filepath.Join(x.dir, x.topic+"."+kind))
}
