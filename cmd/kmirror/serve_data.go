package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/fetch"
	"kmirror/internal/mirror"
)

// dataPath gives the manager its view of the leader: mirror properties under KIP-1279's names become the leader's settings.
type dataPath struct{ *fetch.Leader }

var _ mirror.Data = dataPath{}

// AddMirror reads the properties of a mirror that are about fetching. Values that are no numbers are errors.
func (d dataPath) AddMirror(name string, opts []kgo.Opt, config map[string]string) error {
	c := fetch.MirrorConfig{Name: name, Opts: opts}
	var wait, fetchers int64
	minBytes, respMax, partMax := int64(0), int64(0), int64(0)
	for key, into := range map[string]*int64{
		"mirror.num.replica.fetchers": &fetchers, "mirror.fetch.wait.max.ms": &wait, "mirror.fetch.min.bytes": &minBytes,
		"mirror.fetch.response.max.bytes": &respMax, "mirror.fetch.max.bytes": &partMax, "mirror.throttle.bytes.per.second": &c.BytesPerSecond,
	} {
		text, ok := config[key]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > 1<<31-1 && key != "mirror.throttle.bytes.per.second" {
			return fmt.Errorf("mirror %s: %s=%s is not a number in range", name, key, text)
		}
		*into = n
	}
	c.Fetchers, c.WaitMax = int(fetchers), time.Duration(wait)*time.Millisecond
	c.MinBytes, c.ResponseMaxBytes, c.MaxBytes = int32(minBytes), int32(respMax), int32(partMax)
	return d.Leader.AddMirror(c)
}
