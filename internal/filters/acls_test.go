package filters

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"kmirror/internal/coordinator"
)

func TestSplitRules(t *testing.T) {
	for list, want := range map[string][]string{
		"":                                      nil,
		" , ,":                                  nil,
		"*":                                     {"*"},
		"TOPIC,GROUP":                           {"TOPIC", "GROUP"},
		" topic ; a , * ; b ":                   {"topic ; a", "* ; b"},
		"TOPIC;a;*;*;User:CN=a,O=b,C=c,GROUP;g": {"TOPIC;a;*;*;User:CN=a,O=b,C=c", "GROUP;g"},
		"*;*;*;*;User:a,*;*;*;*;User:b":         {"*;*;*;*;User:a", "*;*;*;*;User:b"},
		"*;*;*;*;User:a,*b":                     {"*;*;*;*;User:a,*b"},
		"GROUP;a,b;READ":                        {"GROUP;a,b;READ"},
		"GROUP;a,;READ":                         {"GROUP;a,;READ"},
		"USER;User:CN=a,O=b":                    {"USER;User:CN=a,O=b"},
		"TOPIC,,CLUSTER,":                       {"TOPIC", "CLUSTER"},
		"TOPIC;a,TPIC;b":                        {"TOPIC;a,TPIC;b"},
		"TRANSACTIONAL_ID,DELEGATION_TOKEN;x":   {"TRANSACTIONAL_ID", "DELEGATION_TOKEN;x"},
	} {
		if got := splitRules(list); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

func TestParseACLRule(t *testing.T) {
	for rule, want := range map[string]string{
		"*":                                "*;*;*;*;*",
		"topic":                            "TOPIC;*;*;*;*",
		"Group;g":                          "GROUP;g;*;*;*",
		"CLUSTER;kafka-cluster;alter":      "CLUSTER;kafka-cluster;ALTER;*;*",
		"TRANSACTIONAL_ID;*;describe;Deny": "TRANSACTIONAL_ID;*;DESCRIBE;DENY;*",
		"USER;User:a,b;CREATE_TOKENS":      "USER;User:a,b;CREATE_TOKENS;*;*",
		" TOPIC ; o ; READ ; ALLOW ; User:CN=a, O=b ": "TOPIC;o;READ;ALLOW;User:CN=a, O=b",
		`*;*;*;*;User:CN=a\;b`:                        `*;*;*;*;User:CN=a\;b`,
		"*;*;*;*;User:*":                              "*;*;*;*;User:*",
	} {
		if got, err := ParseACLRule(rule); err != nil || got.String() != want {
			t.Errorf("%q: %q, %v, want %q", rule, got, err, want)
		}
	}
	for rule, say := range map[string]string{
		"":            "a part is empty",
		"TOPIC;":      "a part is empty",
		"TOPIC;;READ": "a part is empty",
		"CLUSTER_MIRROR": `"CLUSTER_MIRROR" is no resource type; give * or one of TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, ` +
			"DELEGATION_TOKEN, USER",
		"ANY":                         "is no resource type",
		"topics;a":                    "is no resource type",
		"TOPIC;a;FETCH":               `"FETCH" is no operation; give * or one of ALL, READ, WRITE, CREATE`,
		"TOPIC;a;ANY":                 "is no operation",
		"TOPIC;a;READ;YES":            `"YES" is no permission; give * or one of DENY, ALLOW`,
		"TOPIC;a;READ;ALLOW;alice":    `"alice" is no principal`,
		"TOPIC;a;READ;ALLOW;User:":    "is no principal",
		"TOPIC;a;READ;ALLOW;User:a;x": "more than five parts",
		"TOPIC;a,TPIC;b":              "is no operation",
		"TOPIC;a,TPIC":                `no topic is named "a,TPIC"; a rule after a comma begins with * or one of TOPIC`,
	} {
		if got, err := ParseACLRule(rule); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %q, %v, want an error with %s", rule, got, err, say)
		}
	}
}

func TestMatch(t *testing.T) {
	acl := coordinator.ACL{ResourceType: "TOPIC", ResourceName: "orders", PatternType: "PREFIXED", Principal: "User:CN=a,O=b",
		Host: "10.0.0.1", Operation: "READ", Permission: "ALLOW"}
	for rules, want := range map[string]bool{
		"*": true, "TOPIC": true, "topic;orders": true, "TOPIC;orders;READ;ALLOW;User:CN=a,O=b": true, "*;*;*;*;User:CN=a,O=b": true,
		"*;orders": true, "*;*;READ": true, "*;*;*;ALLOW": true, "GROUP,TOPIC": true, "GROUP;*,*;orders": true,
		"": false, "GROUP": false, "TOPIC;order": false, "TOPIC;orders*": false, "TOPIC;orders;WRITE": false, "TOPIC;orders;ALL": false,
		"*;*;*;DENY": false, "*;*;*;*;User:CN=a": false, "*;*;*;*;User:cn=a,o=b": false, "TOPIC;orders;READ;ALLOW;User:*": false,
	} {
		f, err := Parse(map[string]string{ACLsInclude: rules})
		if err != nil {
			t.Errorf("%q: %v", rules, err)
		} else if got := f.ACL(acl); got != want {
			t.Errorf("%q: %v", rules, got)
		}
	}
	f, err := Parse(nil)
	if err != nil || !f.ACL(acl) {
		t.Errorf("by default all ACLs are synced: %v", err)
	}
}

// FuzzRules: rules that are accepted are the same rules when they are written out in full.
func FuzzRules(f *testing.F) {
	for _, s := range []string{"*", "TOPIC,GROUP;g", "*;*;*;*;User:CN=a,O=b,TOPIC;a;READ", "GROUP;a,;READ", `USER;User:a,b,*;*;*;*;User:\;`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		p, err := Parse(map[string]string{ACLsInclude: list})
		if err != nil {
			return
		}
		var full []string
		for _, r := range p.acls {
			full = append(full, r.String())
		}
		again, err := Parse(map[string]string{ACLsInclude: strings.Join(full, ",")})
		if err != nil || !reflect.DeepEqual(again.acls, p.acls) {
			t.Errorf("%q is %q, and that is %+v, %v", list, full, again, err)
		}
	})
}
