package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"kmirror/internal/testkafka"
)

// toolLimit bounds a run of one of Kafka's tools.
const toolLimit = 90 * time.Second

// toolbox runs Kafka's tools of a version, one at a time, in one JVM: testdata/compat/Tools.java.
type toolbox struct {
	version string
	ns      *namespace

	mu     sync.Mutex
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// toolResult is what came of a run.
type toolResult struct {
	Code     int
	Out, Err string
}

// run runs a tool.
func (x *toolbox) run(class, stdin string, args ...string) (r toolResult, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cmd == nil {
		if err := x.start(); err != nil {
			return r, err
		}
	}
	if args == nil {
		args = []string{}
	}
	job, err := json.Marshal(map[string]any{"class": class, "args": args, "stdin": stdin})
	if err != nil {
		return r, err
	}
	running := x.cmd.Process
	stop := time.AfterFunc(toolLimit, func() { running.Kill() })
	_, err = x.stdin.Write(append(job, '\n'))
	var line []byte
	if err == nil {
		line, err = x.stdout.ReadBytes('\n')
	}
	if !stop.Stop() {
		err = fmt.Errorf("did not end in %v", toolLimit)
	}
	if err != nil {
		x.end()
		return r, fmt.Errorf("%s: %w %.500s", class, err, x.stderr.String())
	}
	return r, json.Unmarshal(line, &r)
}

// alone runs a tool in a JVM of its own.
func (x *toolbox) alone(class string, args ...string) (toolResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolLimit)
	defer cancel()
	cmd := x.ns.inside(testkafka.Tool(ctx, x.version, class, args...))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return toolResult{Out: out.String(), Err: errs.String()}, err
}

func (x *toolbox) start() (err error) {
	x.stderr.Reset()
	x.cmd = x.ns.inside(testkafka.Tool(context.Background(), x.version, "testdata/compat/Tools.java"))
	x.cmd.Stderr = &x.stderr
	var out io.ReadCloser
	if x.stdin, err = x.cmd.StdinPipe(); err == nil {
		out, err = x.cmd.StdoutPipe()
	}
	if err == nil {
		x.stdout = bufio.NewReader(out)
		err = x.cmd.Start()
	}
	if err != nil {
		x.cmd = nil
	}
	return err
}

// end ends the JVM; the next run starts another.
func (x *toolbox) end() {
	if x.cmd != nil {
		x.cmd.Process.Kill()
		x.cmd.Wait()
		x.cmd = nil
	}
}

func (x *toolbox) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end()
}

// toolboxClasses are where the tools are that are not in org.apache.kafka.tools.
var toolboxClasses = map[string]string{
	"ConsoleConsumer":           "org.apache.kafka.tools.consumer.ConsoleConsumer",
	"ConsoleShareConsumer":      "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
	"ConsumerGroupCommand":      "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
	"ShareGroupCommand":         "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
	"ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
	"Tools$Transactions":        "Tools$Transactions",
}

// renamed are options by their names from Kafka 4.2 on (KIP-1147).
var renamed = map[string]string{
	"--producer.config": "--command-config", "--consumer.config": "--command-config", "--admin.config": "--command-config",
	"--config":   "--command-config",
	"--messages": "--num-records", "--reader": "--reader-property", "--formatter": "--formatter-property",
}

// option is the name that an option has in the version under test. --reader and --formatter were both --property.
func (b *compatBed) option(name string) string {
	switch {
	case b.version != testkafka.Oldest:
		return renamed[name]
	case name == "--reader" || name == "--formatter":
		return "--property"
	}
	return name
}

// tool runs one of Kafka's tools and wants it to end well, and to tell nobody's own address.
func (b *compatBed) tool(name, stdin string, args ...string) (string, error) {
	class := "org.apache.kafka.tools." + name
	if toolboxClasses[name] != "" {
		class = toolboxClasses[name]
	}
	if name == "ConfigCommand" && b.version == testkafka.Oldest {
		class = "kafka.admin.ConfigCommand"
	}
	r, err := toolResult{}, error(nil)
	if strings.HasPrefix(name, "Verifiable") { // they do what is left to do in a hook of the JVM, at its end
		r, err = b.tools.alone(class, args...)
	} else {
		r, err = b.tools.run(class, stdin, args...)
	}
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("exit code %d", r.Code)
	}
	for _, addr := range append(b.dst.Bootstrap(testkafka.ClientListener), b.s.client) {
		if strings.Contains(r.Out+r.Err, addr) {
			err = errors.Join(err, fmt.Errorf("tells of %s, which is behind the gateway", addr))
		}
	}
	if err != nil {
		return r.Out, fmt.Errorf("%s %s: %w: %.600s %.1000s", name, strings.Join(args, " "), err, r.Out, r.Err)
	}
	return r.Out, nil
}

// ask is a run of an administrator's tool.
type ask struct {
	tool string
	args string   // separated by spaces; @ is where the servers are named, if not in front
	want []string // what it must print
}

// asks runs tools one after the other. What only looks is tried until it prints what is wanted: brokers know a change a moment later.
func (b *compatBed) asks(t *testing.T, list ...ask) error {
	for _, a := range list {
		looks := strings.Contains(a.args, "list") || strings.Contains(a.args, "describe") || strings.Contains(a.args, "verify") ||
			a.tool == "GetOffsetShell"
		servers := "--bootstrap-server " + b.addr
		args := strings.Replace(a.args, "@", servers, 1)
		if args == a.args {
			args = servers + " " + args
		}
		for end := time.Now().Add(15 * time.Second); ; {
			out, err := b.tool(a.tool, "", strings.Fields(args)...)
			if err != nil {
				return err
			}
			if err = contains(out, a.want...); err == nil {
				break
			}
			if !looks || time.Now().After(end) {
				return fmt.Errorf("%s %s: %w", a.tool, a.args, err)
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-t.Context().Done():
				return t.Context().Err()
			}
		}
	}
	return nil
}

// contains wants texts to be in another, spaces aside.
func contains(text string, want ...string) error {
	plain := strings.Join(strings.Fields(text), " ")
	for _, w := range want {
		if !strings.Contains(plain, w) {
			return fmt.Errorf("%q is not in\n%.3000s", w, text)
		}
	}
	return nil
}
