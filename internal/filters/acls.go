package filters

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kmirror/internal/coordinator"
)

// What an ACL may consist of, in Kafka's names, by the number that each has in the protocol. What has an empty name is no part of an
// ACL but of a filter (ANY, MATCH), or is not synced: 8 is CLUSTER_MIRROR, whose ACLs are about the mirrors of one cluster alone.
var (
	ResourceTypes = []string{2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}
	PatternTypes  = []string{3: "LITERAL", 4: "PREFIXED"}
	Operations    = []string{2: "ALL", 3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE", 9: "CLUSTER_ACTION",
		10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS", 12: "IDEMPOTENT_WRITE", 13: "CREATE_TOKENS", 14: "DESCRIBE_TOKENS",
		15: "TWO_PHASE_COMMIT"}
	Permissions = []string{2: "DENY", 3: "ALLOW"}
)

// anything stands for whatever there is.
const anything = "*"

// ACLRule is one rule of mirror.acls.include: type;name;operation;permission;principal. Each is "*" or what an ACL must have there; what
// is left out at the end is "*". A name is a resource's as it stands in the ACL, so the rule for an ACL on a prefix has the prefix.
type ACLRule struct{ resource, name, operation, permission, principal string }

// ParseACLRule reads a rule. Types, operations and permissions may be written in any case.
func ParseACLRule(rule string) (ACLRule, error) {
	r := ACLRule{anything, anything, anything, anything, anything}
	parts := strings.SplitN(rule, ";", 5)
	for i, f := range []struct {
		into  *string
		check func(string) (string, error)
	}{
		{&r.resource, oneOf("resource type", ResourceTypes)}, {&r.name, func(s string) (string, error) { return s, nil }},
		{&r.operation, oneOf("operation", Operations)}, {&r.permission, oneOf("permission", Permissions)}, {&r.principal, principal},
	} {
		if i == len(parts) {
			break
		}
		part := strings.TrimSpace(parts[i])
		var err error
		switch part {
		case anything:
		case "":
			err = errors.New(`a part is empty; write "*" for any, or leave out the end of the rule`)
		default:
			*f.into, err = f.check(part)
		}
		if err != nil {
			return ACLRule{}, fmt.Errorf("rule %q (type;name;operation;permission;principal): %w", rule, err)
		}
	}
	if r.resource == "TOPIC" && strings.Contains(r.name, ",") {
		return ACLRule{}, fmt.Errorf("rule %q: no topic is named %q; a rule after a comma begins with * or one of %s", rule, r.name,
			words(ResourceTypes))
	}
	return r, nil
}

// oneOf accepts the words of a list, in any case, and returns them as they are in the list.
func oneOf(what string, list []string) func(string) (string, error) {
	return func(s string) (string, error) {
		if up := strings.ToUpper(s); slices.Contains(list, up) {
			return up, nil
		}
		return "", fmt.Errorf("%q is no %s; give * or one of %s", s, what, words(list))
	}
}

// principal accepts what has a type and a name. A semicolon in it is taken for one too many unless it is escaped, as in
// distinguished names (RFC 2253).
func principal(s string) (string, error) {
	if kind, name, ok := strings.Cut(s, ":"); !ok || kind == "" || name == "" {
		return "", fmt.Errorf("%q is no principal; give * or one such as User:alice", s)
	}
	if strings.Contains(strings.ReplaceAll(s, `\;`, ""), ";") {
		return "", fmt.Errorf("%q has more than five parts", s)
	}
	return s, nil
}

func words(list []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == "" }), ", ")
}

// String is the rule with all its parts.
func (r ACLRule) String() string {
	return strings.Join([]string{r.resource, r.name, r.operation, r.permission, r.principal}, ";")
}

// Match reports whether an ACL is one that the rule means, whatever its host and the type of its pattern.
func (r ACLRule) Match(a coordinator.ACL) bool {
	for _, f := range [...][2]string{
		{r.resource, a.ResourceType}, {r.name, a.ResourceName}, {r.operation, a.Operation}, {r.permission, a.Permission},
		{r.principal, a.Principal},
	} {
		if f[0] != anything && f[0] != f[1] {
			return false
		}
	}
	return true
}

// splitRules splits a list of rules. Principals hold commas (User:CN=a,O=b), so a comma counts only where a rule begins after it: where
// the text up to the next semicolon or comma is "*" or a resource type.
func splitRules(list string) []string {
	var out []string
	add := func(rule string) {
		if rule = strings.TrimSpace(rule); rule != "" {
			out = append(out, rule)
		}
	}
	from := 0
	for i := range len(list) {
		if list[i] == ',' && begins(list[i+1:]) {
			add(list[from:i])
			from = i + 1
		}
	}
	add(list[from:])
	return out
}

// begins reports whether a rule begins here, or the list has nothing here.
func begins(s string) bool {
	end := strings.IndexAny(s, ";,")
	if end < 0 {
		end = len(s)
	}
	first := strings.ToUpper(strings.TrimSpace(s[:end]))
	if first == "" {
		return end == len(s) || s[end] == ','
	}
	return first == anything || slices.Contains(ResourceTypes, first)
}
