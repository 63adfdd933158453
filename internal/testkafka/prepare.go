package testkafka

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"kmirror/protocol"
)

// warmUpLimit bounds the start of the node whose classes are archived.
const warmUpLimit = 2 * time.Minute

// randomID returns a random (version 4) UUID whose text does not begin with '-', which Kafka's tools take for an option.
func randomID() protocol.UUID {
	var u protocol.UUID
	for {
		rand.Read(u[:]) // never fails: crypto/rand ends the program instead
		u[6] = u[6]&0x0f | 0x40
		u[8] = u[8]&0x3f | 0x80
		if u.String()[0] != '-' {
			return u
		}
	}
}

// javaArgs returns the arguments of a JVM up to the main class.
func (l *library) javaArgs(heap, logConfig string, extra ...string) []string {
	args := []string{"-Xmx" + heap, "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true"}
	if l.archive != "" {
		// An archive that does not fit this JVM any more is passed over in silence.
		args = append(args, "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-XX:SharedArchiveFile="+l.archive)
	}
	args = append(args, "-Dlog4j2.configurationFile="+filepath.Join(l.dir, logConfig))
	args = append(args, extra...)
	return append(args, "-cp", l.classpath)
}

// command is a short-lived JVM: it compiles little, so that it starts fast.
func (l *library) command(ctx context.Context, heap, class string, args ...string) *exec.Cmd {
	java := append(l.javaArgs(heap, toolLogConfig, "-XX:TieredStopAtLevel=1"), class)
	return exec.CommandContext(ctx, l.java, append(java, args...)...)
}

// formatted returns a directory with what StorageTool writes into a node's directory for these arguments, less
// meta.properties. None of it differs from node to node when the voters are static, so one run of the tool serves all.
func (l *library) formatted(ctx context.Context, args []string) (string, error) {
	sum := sha256.Sum256([]byte(strings.Join(args, "\x00")))
	dir := filepath.Join(l.dir, "format-"+hex.EncodeToString(sum[:6]))
	unlock, err := l.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(l.dir, "format.tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	n := &Node{ID: 1, Broker: true, Controller: true, dir: tmp,
		ports: map[string]int{ClientListener: 1, ControllerListener: 2}}
	o := Options{Brokers: 1, Combined: 1, Listeners: []string{ClientListener}}
	if err := os.WriteFile(n.configFile(), formatProperties(o.properties(n, []*Node{n})), 0o644); err != nil {
		return "", err
	}
	args = append([]string{"format", "--cluster-id", randomID().String(), "--config", n.configFile()}, args...)
	if out, err := l.command(ctx, "128m", "kafka.tools.StorageTool", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("StorageTool format: %w\n%s", err, lastLines(string(out), 10))
	}
	if err := os.Remove(filepath.Join(n.LogDir(), metaFile)); err != nil {
		return "", err
	}
	return dir, os.Rename(n.LogDir(), dir)
}

// ensureArchive makes a class data archive by running one node up and down. The archive belongs to the JVM that made it,
// hence the JVM's identity in its name. Without an archive everything works as well, but slower.
func (l *library) ensureArchive(ctx context.Context) error {
	name, err := archiveName(l.java)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, name)
	format, err := l.formatted(ctx, nil)
	if err != nil {
		return err
	}
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		l.archive = path
		return nil
	}
	tmp, err := os.MkdirTemp(l.dir, "archive.tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	dump := filepath.Join(tmp, "classes.jsa")
	c := &Cluster{lib: l, format: format, dir: tmp}
	c.opts, err = Options{JVM: []string{"-XX:ArchiveClassesAtExit=" + dump}}.withDefaults()
	if err != nil {
		return err
	}
	if err := c.layOut(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, warmUpLimit)
	defer cancel()
	if err := errors.Join(c.up(ctx), c.nodes[0].Stop(), c.Close()); err != nil {
		return fmt.Errorf("node that is run for its classes: %w", err)
	}
	if err := os.Rename(dump, path); err != nil {
		return err
	}
	l.archive = path
	return nil
}

func archiveName(java string) (string, error) {
	real, err := filepath.EvalSymlinks(java)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", real, info.Size(), info.ModTime().UnixNano()))
	return "classes-" + hex.EncodeToString(sum[:6]) + ".jsa", nil
}
