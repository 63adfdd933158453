package main

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// principalRules are those of ssl.principal.mapping.rules in Kafka's syntax (KIP-371): the first that matches a subject makes the name of
// it. No rule at all is DEFAULT. They mean what they mean to Kafka, so what Java's expressions could take otherwise than Go's is refused.
type principalRules []principalRule

// principalRule names subjects that match by replacement, without a pattern all by themselves.
type principalRule struct {
	pattern     *regexp.Regexp
	replacement string
	fold        string // L or U for names in lower or upper case
}

// ruleSyntax is one rule with what separates it from the next. A backslash keeps a slash from ending a part.
var ruleSyntax = regexp.MustCompile(`^\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)`)

// parsePrincipalRules reads rules. The error says what is wrong with which.
func parsePrincipalRules(text string) (rules principalRules, err error) {
	for strings.TrimSpace(text) != "" {
		m := ruleSyntax.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("at %q: write DEFAULT, or RULE:pattern/replacement/ with L, U or nothing behind it", text)
		}
		rule := principalRule{replacement: m[3], fold: m[4]}
		if m[1] == "" {
			if rule.pattern, err = compileLikeJava(m[2]); err == nil {
				_, err = rule.expand(make([]string, rule.pattern.NumSubexp()+1))
			}
			if err != nil {
				return nil, fmt.Errorf("RULE:%s/%s/: %w", m[2], m[3], err)
			}
		}
		rules, text = append(rules, rule), text[len(m[0]):]
	}
	return rules, nil
}

// otherInJava finds what Go's expressions take and mean otherwise than Java's: flags, sets within sets, and classes of characters beyond ASCII.
var otherInJava = regexp.MustCompile(`\(\?[^:]|&&|\[\^?\]|\[[^\]]*\[|\\[^.,=+/\\ $^|*?(){}[\]\-"#<>;dDwW]`)

// compileLikeJava takes only patterns from ^ to $: Java replaces what it finds of others, which need not be all, or twice.
func compileLikeJava(pattern string) (*regexp.Regexp, error) {
	if found := otherInJava.FindString(pattern); found != "" {
		return nil, fmt.Errorf("%s is not supported, since it may mean something else to Kafka", found)
	}
	inner, begins := strings.CutPrefix(pattern, "^")
	inner, ends := strings.CutSuffix(inner, "$")
	if !begins || !ends || strings.HasSuffix(inner, `\`) || outerAlternative(inner) {
		return nil, errors.New("a pattern has to begin with ^ and end with $, with alternatives in parentheses only")
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	if tree, err := syntax.Parse(pattern, syntax.Perl); err != nil || repeatsOtherwise(tree) {
		return nil, errors.New("what is repeated may not hold a group nor be empty, as in (a)* or (?:a*)*, since Kafka may remember another " +
			"turn of it: write (?:a)* or a*")
	}
	return re, nil
}

// repeatsOtherwise reports whether an expression repeats a part that has a group, or that can match the empty text. Java ends such loops
// elsewhere, and keeps what a group had in turns that were empty or taken back; Go does not.
func repeatsOtherwise(re *syntax.Regexp) bool {
	repeats := re.Op == syntax.OpStar || re.Op == syntax.OpPlus || re.Op == syntax.OpRepeat
	return repeats && (re.MaxCap() > 0 || canBeEmpty(re.Sub[0])) || slices.ContainsFunc(re.Sub, repeatsOtherwise)
}

// canBeEmpty reports whether an expression matches the empty text.
func canBeEmpty(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral, syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !canBeEmpty(sub) })
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, canBeEmpty)
	case syntax.OpCapture, syntax.OpPlus:
		return canBeEmpty(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || canBeEmpty(re.Sub[0])
	}
	return true
}

// outerAlternative reports whether a | stands outside of all parentheses. In sets nothing of that means anything.
func outerAlternative(pattern string) bool {
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			for i++; i < len(pattern) && pattern[i] != ']'; i++ {
				if pattern[i] == '\\' {
					i++
				}
			}
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				return true
			}
		}
	}
	return depth != 0
}

// name maps a subject; false where no rule matches.
func (rules principalRules) name(subject string) (string, bool) {
	if len(rules) == 0 {
		return subject, true
	}
	if strings.ContainsFunc(subject, func(c rune) bool { return c < ' ' || c == 0x85 || c == 0x2028 || c == 0x2029 }) {
		return "", false // ends of lines: Java's . and $ know others than Go's
	}
	for _, r := range rules {
		if r.pattern == nil {
			return subject, true
		}
		if groups := r.pattern.FindStringSubmatch(subject); groups != nil {
			name, err := r.expand(groups)
			return r.folded(name), err == nil
		}
	}
	return "", false
}

// expand fills the groups into the replacement.
func (r *principalRule) expand(groups []string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(r.replacement); i++ {
		c := r.replacement[i]
		switch {
		case c == '\\': // what follows stands for itself; the syntax of rules has something follow
			i++
			out.WriteByte(r.replacement[i])
		case c != '$':
			out.WriteByte(c)
		default:
			i++
			digits := r.replacement[i:]
			n := len(digits) - len(strings.TrimLeft(digits, "0123456789"))
			if n != 1 || int(digits[0]-'0') >= len(groups) {
				return "", fmt.Errorf("$ in the replacement has to be followed by one digit, of a group that there is: up to %d", len(groups)-1)
			}
			out.WriteString(groups[digits[0]-'0'])
		}
	}
	return out.String(), nil
}

// folded changes the case of ASCII letters; names with others that have two cases stay, and so can't be mistaken for names without.
func (r *principalRule) folded(name string) string {
	if r.fold == "" || strings.ContainsFunc(name, func(c rune) bool { return c > 0x7f }) {
		return name
	}
	if r.fold == "L" {
		return strings.ToLower(name)
	}
	return strings.ToUpper(name)
}
