package admin

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"kmirror/protocol/kip1279"
)

// ParseList reads a LIST of the command line: literal topic names, /re/ (RE2 over the whole name) and @file, separated by
// commas. A file holds the same, one or more a line; text from # on is a comment. Topic names hold neither slash nor
// comma, so a slash that ends an entry ends a pattern and commas within one need no escape.
func ParseList(list string) ([]string, error) {
	entries, err := splitList(list)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name, isFile := strings.CutPrefix(e, "@")
		if !isFile {
			out = append(out, e)
			continue
		}
		more, err := readList(name)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	if len(out) == 0 {
		return nil, usage("the list of topics is empty", "give names, /patterns/ or @file, separated by commas")
	}
	if _, err := NewMatcher(out); err != nil {
		return nil, err
	}
	return out, nil
}

func readList(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, usage(fmt.Sprintf("list file: %v", err), "give a readable file after @")
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if strings.HasPrefix(strings.TrimSpace(line), "@") {
			return nil, usage(fmt.Sprintf("%s:%d: a list file may not name another", name, n), "write its entries here")
		}
		entries, err := splitList(line)
		if err != nil {
			return nil, usage(fmt.Sprintf("%s:%d: %v", name, n, err), "one entry a line is safest")
		}
		out = append(out, entries...)
	}
	if err := lines.Err(); err != nil {
		return nil, usage(fmt.Sprintf("%s: %v", name, err), "one entry a line")
	}
	return out, nil
}

// splitList splits at the commas that are not within a pattern. Empty entries are dropped.
func splitList(list string) ([]string, error) {
	var out []string
	for rest := strings.TrimSpace(list); rest != ""; rest = strings.TrimSpace(rest) {
		var entry string
		if rest[0] == '/' {
			end := patternEnd(rest)
			if end < 0 {
				return nil, usage(fmt.Sprintf("pattern %s has no closing slash", rest), "write /pattern/")
			}
			entry, rest = rest[:end], strings.TrimPrefix(strings.TrimSpace(rest[end:]), ",")
		} else {
			entry, rest, _ = strings.Cut(rest, ",")
			entry = strings.TrimSpace(entry)
		}
		if entry != "" {
			out = append(out, entry)
		}
	}
	return out, nil
}

// patternEnd returns where the pattern that s begins with ends: after the first slash that a comma or nothing follows.
func patternEnd(s string) int {
	for i := 1; i < len(s); i++ {
		if s[i] != '/' {
			continue
		}
		after := strings.TrimSpace(s[i+1:])
		if after == "" || after[0] == ',' {
			return i + 1
		}
	}
	return -1
}

// Matcher tells which topic names a list selects. The zero Matcher selects none.
type Matcher struct {
	literals []string
	patterns []*regexp.Regexp
}

// NewMatcher compiles literal names and /re/. The error is an *Error that names the entry.
func NewMatcher(list []string) (*Matcher, error) {
	m := &Matcher{}
	for _, e := range list {
		if len(e) < 2 || e[0] != '/' || e[len(e)-1] != '/' {
			if err := validTopic(e); err != nil {
				return nil, err
			}
			m.literals = append(m.literals, e)
			continue
		}
		re, err := regexp.Compile(`^(?:` + e[1:len(e)-1] + `)$`)
		if err != nil {
			return nil, usage(fmt.Sprintf("%s is not a pattern: %v", e, err), "patterns are RE2 and match the whole name")
		}
		m.patterns = append(m.patterns, re)
	}
	return m, nil
}

// Match reports whether the list selects a name.
func (m *Matcher) Match(name string) bool {
	return slices.Contains(m.literals, name) ||
		slices.ContainsFunc(m.patterns, func(re *regexp.Regexp) bool { return re.MatchString(name) })
}

// Literals returns the names that were given literally, in order: one that matches nothing is an error of its own.
func (m *Matcher) Literals() []string { return slices.Clone(m.literals) }

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func validTopic(name string) error {
	if topicName.MatchString(name) && name != "." && name != ".." {
		return nil
	}
	return usage(fmt.Sprintf("%q is not a topic name", name),
		"names have up to 249 letters, digits, dots, underscores and dashes; patterns stand between slashes")
}

func usage(message, hint string) *Error {
	return &Error{Code: kip1279.InvalidRequest, Message: message, Hint: hint, Exit: ExitUsage}
}
