package clientconf

import (
	"strings"
	"testing"
)

func TestCheckKeys(t *testing.T) {
	for key, want := range map[string]string{
		"mirror.topics.include": "", "mirror.source.cluster.id": "", "mirror.throttle.bytes.per.second": "", RemoteAdminPrefix + "any.thing": "",
		"mirror.socket.timeout.ms": "", "linger.ms": "", "client.rack": "", "mirrors": "",
		"mirror.topics.exlude":                                "mirror.topics.exclude",
		"mirror.topic.exclude":                                "mirror.topics.exclude",
		"mirror.group.include":                                "mirror.groups.include",
		"mirror.acl.include":                                  "mirror.acls.include",
		"mirror.throttle.bytes.per.seconds":                   "mirror.throttle.bytes.per.second",
		"mirror.TOPICS.include":                               "mirror.topics.include",
		"mirror.nothing.of.the.kind.whatsoever":               "no property of a mirror",
		"mirror." + strings.Repeat("x", 1000):                 "no property of a mirror",
		"mirror.source.admn.bootstrap.servers.that.are.wrong": "no property of a mirror",
	} {
		err := CheckKeys(map[string]string{"bootstrap.servers": "a:1", key: "x"})
		switch {
		case want == "" && err != nil:
			t.Errorf("%.50s: %v", key, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), want)):
			t.Errorf("%.50s: %v, want %q", key, err, want)
		case strings.HasPrefix(want, "no") && strings.Contains(err.Error(), "meant"):
			t.Errorf("%.50s: %v", key, err)
		}
	}
}
