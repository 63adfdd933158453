// Command compat makes a round trip with a client library: admin, an idempotent producer, a group, transactions. The environment
// names the gateway, the users and what is to be made. The first line of standard output is the library's version.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

// limit bounds each step.
const limit = time.Minute

// job is what the environment asks for.
type job struct {
	bootstrap, topic, group string
	app, appPassword        string
	admin, adminPassword    string
	count                   int
	tls                     *tls.Config
}

// at is where a record is, and what it holds.
type (
	at  struct{ partition, offset int64 }
	kv  struct{ key, value string }
	log map[at]kv
)

func main() {
	libraries := map[string]struct {
		module string
		run    func(job) error
	}{
		"franz-go": {"github.com/twmb/franz-go", franz}, "sarama": {"github.com/IBM/sarama", saramaTrip},
		"kafka-go": {"github.com/segmentio/kafka-go", kafkaGo},
	}
	l, ok := libraries[os.Args[1]]
	if !ok {
		fmt.Fprintln(os.Stderr, "which library?")
		os.Exit(2)
	}
	fmt.Println(version(l.module))
	j, err := fromEnvironment()
	if err == nil {
		err = l.run(j)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return "unknown"
}

func fromEnvironment() (job, error) {
	j := job{
		bootstrap: os.Getenv("BOOTSTRAP"), topic: os.Getenv("TOPIC"), group: os.Getenv("GROUP"), app: os.Getenv("APP"),
		appPassword: os.Getenv("APP_PASSWORD"),
		admin:       os.Getenv("ADMIN"), adminPassword: os.Getenv("ADMIN_PASSWORD"), tls: &tls.Config{RootCAs: x509.NewCertPool(),
			MinVersion: tls.VersionTLS12},
	}
	var err error
	if j.count, err = strconv.Atoi(os.Getenv("COUNT")); err != nil {
		return j, err
	}
	ca, err := os.ReadFile(os.Getenv("CA"))
	if err == nil && !j.tls.RootCAs.AppendCertsFromPEM(ca) {
		err = errors.New("CA: no certificate")
	}
	return j, err
}

// onlyGateway wants no other host than the gateway's.
func (j job) onlyGateway(hosts ...string) error {
	want, _, err := net.SplitHostPort(j.bootstrap)
	if err != nil {
		return err
	}
	if len(hosts) != 5 {
		return fmt.Errorf("told of %d brokers: %v, want 5", len(hosts), hosts)
	}
	for _, h := range hosts {
		if h != want {
			return fmt.Errorf("told of host %s", h)
		}
	}
	return nil
}

// same wants what was read to be what was written, where it was written.
func same(written, read log) error {
	if len(written) != len(read) {
		return fmt.Errorf("%d records read, %d written", len(read), len(written))
	}
	for where, r := range written {
		if read[where] != r {
			return fmt.Errorf("%v holds %v, written was %v", where, read[where], r)
		}
	}
	return nil
}

// committed wants ten records, all of the transaction that was committed.
func committed(read log) error {
	for where, r := range read {
		if r.value != "committed" {
			return fmt.Errorf("%v: a record that was %s is seen", where, r.value)
		}
	}
	if len(read) != 10 {
		return fmt.Errorf("%d records of transactions are seen, want 10", len(read))
	}
	return nil
}
