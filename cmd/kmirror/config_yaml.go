package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// What the decoder says of a key that there is not, and of a value that is none for its key.
var (
	unknownField = regexp.MustCompile(`(line \d+): field (\S+) not found in type \S+`)
	wrongType    = regexp.MustCompile("^line (\\d+): cannot unmarshal (!!\\w+)(?: `((?s).*)`)? into (\\S+)$")
)

// mistyped is an error in the decoder's own form, which lets it go on and tell of further ones.
func mistyped(n *yaml.Node, into any) error {
	value := ""
	if n.Kind == yaml.ScalarNode {
		value = " `" + n.Value + "`"
	}
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: cannot unmarshal %s%s into %T", n.Line, n.ShortTag(), value, into)}}
}

// plainYAMLError says what yaml says of a text without the names of our types, and of a value which key it has.
func plainYAMLError(err error, text []byte) error {
	var te *yaml.TypeError
	if !errors.As(err, &te) {
		return err
	}
	var doc yaml.Node
	_ = yaml.Unmarshal(text, &doc) // it was read once already
	lines := make([]string, 0, len(te.Errors))
	for _, e := range te.Errors {
		if m := wrongType.FindStringSubmatch(e); m != nil {
			e = plainTypeError(&doc, m[1], m[2], m[3], m[4])
		}
		lines = append(lines, unknownField.ReplaceAllString(e, "$1: unknown key $2"))
	}
	return errors.New(strings.Join(lines, "\n  "))
}

// plainTypeError is the error of a value with a tag in a line of a document, for a key of a type. The decoder shows the beginning of it.
func plainTypeError(doc *yaml.Node, line, tag, value, typ string) string {
	at, _ := strconv.Atoi(line)
	what := fmt.Sprintf("%q", value)
	switch tag {
	case "!!seq":
		what = "a list"
	case "!!map":
		what = "a block of keys"
	}
	key := keyOf(doc, "", func(n *yaml.Node) bool {
		return n.Line == at && n.ShortTag() == tag && (n.Kind != yaml.ScalarNode || strings.HasPrefix(n.Value, strings.TrimSuffix(value, "...")))
	})
	if key == "" {
		key = "a value"
	}
	return fmt.Sprintf("line %s: %s: %s is not %s", line, key, what, plainType(typ))
}

// keyOf is the path of the first value that is the one looked for, what is inside it first; empty where there is none.
func keyOf(n *yaml.Node, path string, is func(*yaml.Node) bool) string {
	for i, c := range n.Content {
		below := path
		switch n.Kind {
		case yaml.MappingNode:
			if i%2 == 0 {
				continue
			}
			if below != "" {
				below += "."
			}
			below += n.Content[i-1].Value
		case yaml.SequenceNode:
			below = fmt.Sprintf("%s[%d]", path, i)
		}
		if key := keyOf(c, below, is); key != "" {
			return key
		}
	}
	if path != "" && is(n) {
		return path
	}
	return ""
}

// plainType names a type of a configuration's values.
func plainType(typ string) string {
	switch {
	case typ == "int" || typ == "int32":
		return "a whole number"
	case typ == "bool":
		return "true or false"
	case typ == "string":
		return "text"
	case typ == "time.Duration":
		return "a time such as 30s"
	case typ == "main.byteSize":
		return "a size in bytes such as 1048576, 10MB or 1GiB"
	case strings.HasPrefix(typ, "[]"):
		return "a list"
	}
	return "a block of keys"
}
