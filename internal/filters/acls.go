package filters

// ACLRule is one rule of mirror.acls.include.
type ACLRule struct{}

// ParseACLRule reads a rule.
func ParseACLRule(rule string) (ACLRule, error) { return ACLRule{}, nil }

// splitRules splits a list of rules.
func splitRules(list string) []string { return split(list) }
