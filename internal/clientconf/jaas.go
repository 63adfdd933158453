package clientconf

import (
	"errors"
	"fmt"
	"strings"
)

// jaas is one entry of a JAAS configuration: login module, control flag, options.
type jaas struct {
	module, flag string
	options      map[string]string
}

// option returns an option with its references resolved.
func (j jaas) option(name string) (string, error) {
	v, ok := j.options[name]
	if !ok {
		return "", fmt.Errorf("sasl.jaas.config has no %s", name)
	}
	return Resolve(v)
}

// parseJAAS reads `module flag key=value ... ;`. Values may be quoted with " or ', with backslash escapes within. Errors
// give positions and never text, which may be a secret.
func parseJAAS(s string) (jaas, error) {
	t := jaasTokens{s: s}
	j := jaas{options: map[string]string{}}
	var err error
	if j.module, err = t.word("a login module"); err != nil {
		return j, err
	}
	if j.flag, err = t.word("a control flag such as required"); err != nil {
		return j, err
	}
	for {
		t.space()
		if t.i == len(s) || s[t.i] == ';' {
			break
		}
		key, err := t.word("an option")
		if err != nil {
			return j, err
		}
		t.space()
		if t.i == len(s) || s[t.i] != '=' {
			return j, fmt.Errorf("sasl.jaas.config: = is missing after an option at position %d", t.i)
		}
		t.i++
		if j.options[key], err = t.word("a value"); err != nil {
			return j, err
		}
	}
	if strings.Trim(s[t.i:], "; \t\r\n") != "" {
		return j, errors.New("sasl.jaas.config holds more than one login module")
	}
	return j, nil
}

type jaasTokens struct {
	s string
	i int
}

func (t *jaasTokens) space() {
	for t.i < len(t.s) && strings.IndexByte(" \t\r\n", t.s[t.i]) >= 0 {
		t.i++
	}
}

// word reads a quoted string or a bare word; a bare word ends at white space, = or ;.
func (t *jaasTokens) word(what string) (string, error) {
	t.space()
	start := t.i
	if t.i < len(t.s) && (t.s[t.i] == '"' || t.s[t.i] == '\'') {
		return t.quoted()
	}
	for t.i < len(t.s) && strings.IndexByte(" \t\r\n=;", t.s[t.i]) < 0 {
		t.i++
	}
	if t.i == start {
		return "", fmt.Errorf("sasl.jaas.config: %s is missing at position %d", what, start)
	}
	return t.s[start:t.i], nil
}

func (t *jaasTokens) quoted() (string, error) {
	quote, start := t.s[t.i], t.i
	var out strings.Builder
	for t.i++; t.i < len(t.s); t.i++ {
		switch c := t.s[t.i]; {
		case c == quote:
			t.i++
			return out.String(), nil
		case c == '\\' && t.i+1 < len(t.s):
			t.i++
			out.WriteByte(escaped(t.s[t.i]))
		default:
			out.WriteByte(c)
		}
	}
	return "", fmt.Errorf("sasl.jaas.config: the quote at position %d is not closed", start)
}

func escaped(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 'r':
		return '\r'
	}
	return c
}
