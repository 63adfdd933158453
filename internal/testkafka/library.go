package testkafka

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"
)

//go:embed files
var files embed.FS

// MirrorMakerVersion is the version of MirrorMaker 2 that the bench compares with.
const MirrorMakerVersion = "4.3.0"

// log4jVersion is the logging back end put beside the jars; without one, Kafka's nodes log nothing. Kafka 4 up to 4.4
// depends on slf4j-api 1.7, for which the binding is log4j-slf4j-impl.
const log4jVersion = "2.25.5"

// lockRetry is how often a lock held by another process is tried again.
const lockRetry = 200 * time.Millisecond

// A download is tried mavenTries times, with mavenPause in between: a registry may be away for a moment.
const (
	mavenTries = 3
	mavenPause = 5 * time.Second
)

type artifact struct{ Group, Name, Version string }

// bundle is a set of jars that Maven resolves together.
type bundle struct {
	name      string // directory below the cache's root
	artifacts []artifact
	nodes     bool // nodes are run from it
}

func kafkaBundle(version string) bundle {
	if beforeFour(version) {
		return oldBundle(version)
	}
	return bundle{name: "kafka-" + version, nodes: true, artifacts: []artifact{
		{"org.apache.kafka", "kafka_2.13", version},
		{"org.apache.kafka", "kafka-tools", version},
		{"org.apache.logging.log4j", "log4j-slf4j-impl", log4jVersion},
	}}
}

// streamsBundle is what a program on Kafka Streams needs.
func streamsBundle(version string) bundle {
	return bundle{name: "streams-" + version, artifacts: []artifact{
		{"org.apache.kafka", "kafka-streams", version},
		{"org.apache.logging.log4j", "log4j-slf4j-impl", log4jVersion},
	}}
}

func mirrorMakerBundle() bundle {
	return bundle{name: "connect-mirror-" + MirrorMakerVersion, artifacts: []artifact{
		{"org.apache.kafka", "connect-mirror", MirrorMakerVersion},
		{"org.apache.logging.log4j", "log4j-slf4j-impl", log4jVersion},
	}}
}

// library is a bundle in the cache, ready to run.
type library struct {
	dir       string // absolute
	java      string
	classpath string
	archive   string // class data archive of this JVM, "" where there is none
	slow      error  // why there is none
}

var libraries = struct {
	sync.Mutex
	m map[string]*library
}{m: map[string]*library{}}

// Fetch makes sure that the jars of a Kafka version are in the cache. Start, Launch and Tool do so by themselves; it is
// for callers who want the download, which can take minutes, apart from what they measure.
func Fetch(ctx context.Context, version string) error {
	_, err := load(ctx, kafkaBundle(version))
	return err
}

// load returns a bundle from the cache and fills the cache first where it must. Processes that need the same bundle at
// the same time wait for one of them.
func load(ctx context.Context, b bundle) (*library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.m[b.name]; l != nil {
		return l, nil
	}
	java, err := findJava()
	if err != nil {
		return nil, err
	}
	root, err := cacheRoot()
	if err != nil {
		return nil, err
	}
	l := &library{dir: filepath.Join(root, b.name), java: java}
	if err := l.ensureJars(ctx, b); err != nil {
		return nil, fmt.Errorf("testkafka: jars of %s: %w", b.name, err)
	}
	jars, err := filepath.Glob(filepath.Join(l.dir, "lib", "*.jar"))
	if err != nil {
		return nil, err
	}
	slices.Sort(jars)
	l.classpath = strings.Join(jars, ":")
	if b.nodes {
		l.slow = l.ensureArchive(ctx)
	}
	libraries.m[b.name] = l
	return l, nil
}

// lock gives the caller the cache for itself, across processes.
func (l *library) lock(ctx context.Context) (unlock func(), err error) {
	return lockFile(ctx, filepath.Join(filepath.Dir(l.dir), "lock"))
}

func cacheRoot() (string, error) {
	root := os.Getenv("KMIRROR_CACHE")
	if root == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("testkafka: no cache directory, set KMIRROR_CACHE: %w", err)
		}
		root = filepath.Join(base, "kmirror")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	return root, os.MkdirAll(root, 0o755)
}

// lockFile takes an exclusive lock that the kernel drops when the process ends, however it ends.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		}
	}
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if p, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			return p, nil
		}
	}
	return findCommand("java", "default-jdk-headless")
}

func findCommand(name, debianPackage string) (string, error) {
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("testkafka: %s is not installed: run scripts/setup.sh, or install %s (the Debian package)",
			name, debianPackage)
	}
	return p, nil
}

// ensureJars fills l.dir by way of a directory beside it, so that nobody ever sees half of it.
func (l *library) ensureJars(ctx context.Context, b bundle) error {
	pom, err := b.pom()
	if err != nil {
		return err
	}
	stamp, err := b.stamp(pom)
	if err != nil {
		return err
	}
	if l.stamped(stamp) {
		return nil
	}
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if l.stamped(stamp) {
		return nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(l.dir), b.name+".tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := runMaven(ctx, tmp, pom, mavenPause); err != nil {
		return err
	}
	if err := checkPinned(filepath.Join(tmp, "lib"), b); err != nil {
		return err
	}
	for _, name := range configFiles {
		content, err := files.ReadFile("files/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, name), content, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "stamp"), []byte(stamp), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(l.dir); err != nil {
		return err
	}
	return os.Rename(tmp, l.dir)
}

func (l *library) stamped(stamp string) bool {
	old, err := os.ReadFile(filepath.Join(l.dir, "stamp"))
	return err == nil && string(old) == stamp
}

const (
	nodeLogConfig = "node-log4j2.properties"
	toolLogConfig = "tool-log4j2.properties"
)

var configFiles = []string{nodeLogConfig, toolLogConfig}

func (b bundle) pom() ([]byte, error) {
	t, err := template.ParseFS(files, "files/pom.xml")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, b.artifacts); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// stamp changes with everything that a cached bundle is made from.
func (b bundle) stamp(pom []byte) (string, error) {
	h := sha256.New()
	h.Write(pom)
	for _, name := range configFiles {
		content, err := files.ReadFile("files/" + name)
		if err != nil {
			return "", err
		}
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// runMaven copies the run-time jars of pom and of all it depends on to dir/lib. Strict checksums: a download that
// differs from the registry's checksum is an error.
func runMaven(ctx context.Context, dir string, pom []byte, pause time.Duration) error {
	mvn, err := findCommand("mvn", "maven")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pom.xml"), pom, 0o644); err != nil {
		return err
	}
	args := []string{"--batch-mode", "--quiet", "--strict-checksums", "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory=" + filepath.Join(dir, "lib"),
		// A connection that has gone silent ends after a minute, in milliseconds: the default is half an hour (Maven before 3.9, and after).
		"-Dmaven.wagon.rto=60000", "-Daether.connector.requestTimeout=60000"}
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, mvn, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		if try < mavenTries {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
		if try == mavenTries || ctx.Err() != nil {
			return fmt.Errorf("mvn dependency:copy-dependencies: %w\n%s", err, lastLines(string(out), 15))
		}
		if try == 1 {
			args = append(args, "--update-snapshots") // else it remembers what it did not find
		}
	}
}

// JarsUnmodified compares Kafka's own jars of a version in the cache with the SHA-512 sums listed in this package and
// returns how many there are. A version without a list is an error.
func JarsUnmodified(version string) (int, error) {
	root, err := cacheRoot()
	if err != nil {
		return 0, err
	}
	b := kafkaBundle(version)
	sums, err := pinned(b)
	if err != nil {
		return 0, err
	}
	if sums == nil {
		return 0, fmt.Errorf("testkafka: no checksums are listed for Kafka %s", version)
	}
	return len(sums), compareSums(filepath.Join(root, b.name, "lib"), sums)
}

func checkPinned(lib string, b bundle) error {
	sums, err := pinned(b)
	if err != nil || sums == nil {
		return err
	}
	return compareSums(lib, sums)
}

// pinned returns the listed sums by file name, nil where a bundle has no list.
func pinned(b bundle) (map[string]string, error) {
	text, err := files.ReadFile("files/" + b.name + ".sha512")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			return nil, fmt.Errorf("testkafka: %s.sha512: bad line %q", b.name, line)
		}
		sums[name] = sum
	}
	return sums, nil
}

func compareSums(lib string, sums map[string]string) error {
	for name, want := range sums {
		got, err := sha512File(filepath.Join(lib, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("testkafka: %s is not the published file: sha512 %s, want %s", name, got, want)
		}
	}
	return nil
}

func sha512File(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
