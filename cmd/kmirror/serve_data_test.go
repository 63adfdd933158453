package main

import (
	"strings"
	"testing"
	"time"
)

func TestFetchConfig(t *testing.T) {
	c, err := fetchConfig(map[string]string{"mirror.num.replica.fetchers": "2", "mirror.fetch.wait.max.ms": "250", "mirror.fetch.min.bytes": "10",
		"mirror.fetch.response.max.bytes": "2000", "mirror.fetch.max.bytes": "1000", "mirror.throttle.bytes.per.second": "5000000000", "other": "x"})
	if err != nil || c.Fetchers != 2 || c.WaitMax != 250*time.Millisecond || c.MinBytes != 10 || c.ResponseMaxBytes != 2000 || c.MaxBytes != 1000 ||
		c.BytesPerSecond != 5_000_000_000 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []string{"", "-1", "1e3", "99999999999999999999", "2147483648"} {
		if _, err := fetchConfig(map[string]string{"mirror.fetch.max.bytes": bad}); err == nil ||
			!strings.Contains(err.Error(), "mirror.fetch.max.bytes") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
