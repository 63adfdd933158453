package main

import (
	"net"
	"slices"
	"strings"
	"testing"
)

// FuzzParseConfig reads any text as kmirror.yaml: it is refused with a reason, or what serve relies on holds.
func FuzzParseConfig(f *testing.F) {
	f.Add(goodConfig, "KMIRROR_LIMITS_MEMORY=128MiB")
	f.Add(goodConfig+"---\n", "")
	f.Add("", "KMIRROR_NODE_IDS=1,2")
	f.Add("node_ids: [1, 2]\nnode_ids: [3, 4]\n", "")
	f.Add("tls: &a {ca: *a}", "")
	f.Add("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n", "")
	f.Add("listeners: [{bind: \":65535\", advertised: \"a:65535\", name: A, protocol: PLAINTEXT}]", "KMIRROR_LOCK=size,min_isr")
	f.Add("limits: {memory: 99999999999999999999GiB}\nshutdown_timeout: -1s", "KMIRROR_ADMIN=[::1]:0")
	f.Add("admin: {bind: 1, bind: 2, <<: {tls: 3}}", "=")
	f.Fuzz(func(t *testing.T, text, env string) {
		if strings.Contains(text+env, "file:") || strings.Contains(text, "location") {
			return // would read files
		}
		c, err := parseConfig([]byte(text), []string{env})
		if err != nil {
			if c != nil || err.Error() == "" {
				t.Fatalf("%+v next to %q", c, err)
			}
			return
		}
		if more := c.problems(); len(more) > 0 {
			t.Fatalf("accepted with %q", more)
		}
		if len(c.NodeIDs) < 2 || slices.Min(c.NodeIDs) < 0 || c.Limits.Memory <= 0 || c.Limits.SourceBytesPerSecond < 0 ||
			c.Limits.Connections < 1 || c.ShutdownTimeout <= 0 || !loopback(c.Admin.Bind) {
			t.Fatalf("accepted %+v", c)
		}
		seen := map[string]bool{}
		for i := range c.NodeIDs {
			for _, l := range c.Listeners {
				bind, host, port := l.endpoint(i)
				_, bound, err := net.SplitHostPort(bind)
				if err != nil || host == "" || port == 0 || bound != "0" && seen[bind] {
					t.Fatalf("node id %d, listener %s: bound to %q, advertised as %q, %d", i, l.Name, bind, host, port)
				}
				seen[bind] = true
			}
		}
	})
}
