package main

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/fetch"
	"kmirror/internal/mirror"
)

// dataPath gives the manager its view of the leader: mirror properties under KIP-1279's names become the leader's settings.
type dataPath struct{ *fetch.Leader }

var _ mirror.Data = dataPath{}

// CheckMirror reports what is wrong with the properties of a mirror that are about fetching.
func (d dataPath) CheckMirror(config map[string]string) error {
	_, err := fetchConfig(config)
	return err
}

// AddMirror makes a source known.
func (d dataPath) AddMirror(name string, opts []kgo.Opt, config map[string]string) error {
	c, err := fetchConfig(config)
	if err != nil {
		return fmt.Errorf("mirror %s: %w", name, err)
	}
	c.Name, c.Opts = name, opts
	return d.Leader.AddMirror(c)
}

// fetchConfig reads the properties of a mirror that are about fetching. Values that are no numbers in range are errors.
func fetchConfig(config map[string]string) (c fetch.MirrorConfig, err error) {
	number := func(key string, most int64) (n int64) {
		text, ok := config[key]
		if !ok || err != nil {
			return 0
		}
		if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 0 || n > most {
			n, err = 0, fmt.Errorf("%s=%s is not a number from 0 to %d", key, text, most)
		}
		return n
	}
	c.ClusterID = config["mirror.source.cluster.id"]
	c.Fetchers = int(number("mirror.num.replica.fetchers", 1000))
	c.WaitMax = time.Duration(number("mirror.fetch.wait.max.ms", math.MaxInt32)) * time.Millisecond
	c.MinBytes = int32(number("mirror.fetch.min.bytes", math.MaxInt32))
	c.ResponseMaxBytes = int32(number("mirror.fetch.response.max.bytes", 1<<30))
	c.MaxBytes = int32(number("mirror.fetch.max.bytes", 1<<30))
	c.BytesPerSecond = number("mirror.throttle.bytes.per.second", math.MaxInt64)
	return c, err
}
