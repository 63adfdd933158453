package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/protocol/kip1279"
)

// emit prints a result in the chosen format. table writes rows of tab-separated cells.
func (c *cli) emit(v any, table func(w io.Writer)) error {
	if c.output != "table" {
		return encode(c.out, c.output, v)
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// encode writes v as JSON, or as YAML with the same keys in the same order.
func encode(w io.Writer, format string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if format == "json" {
		_, err = fmt.Fprintf(w, "%s\n", text)
		return err
	}
	var doc yaml.Node // JSON is YAML in flow style
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	blockStyle(&doc)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	return enc.Close()
}

// blockStyle takes flow and quoting away; the encoder quotes again where it is needed.
func blockStyle(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode && len(n.Content) > 0 {
		n.Style = 0
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	}
	for _, child := range n.Content {
		blockStyle(child)
	}
}

// errorDocument is what stderr gets with -o json or yaml.
type errorDocument struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	} `json:"error"`
}

func (c *cli) printError(e *admin.Error) {
	if c.output == "json" || c.output == "yaml" {
		var d errorDocument
		d.Error.Code, d.Error.Message, d.Error.Hint = kip1279.ErrorName(e.Code), e.Message, e.Hint
		if encode(c.err, c.output, d) == nil {
			return
		}
	}
	fmt.Fprintf(c.err, "kmirror: %s\n", e.Message)
	if e.Hint != "" {
		fmt.Fprintf(c.err, "  what to do: %s\n", e.Hint)
	}
}

// note prints a line for a human; results never go this way.
func (c *cli) note(format string, args ...any) { fmt.Fprintf(c.err, format+"\n", args...) }

// confirm asks at a terminal. Scripts and --yes are not asked; Ctrl-C is a no.
func (c *cli) confirm(ctx context.Context, question string) error {
	if c.yes || !c.terminal {
		return nil
	}
	fmt.Fprintf(c.err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // reading a terminal can't be cut short: after Ctrl-C this ends with the process
		line, _ := bufio.NewReader(c.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		c.note("")
	case a := <-answer:
		if ctx.Err() == nil && (a == "y" || a == "yes") {
			return nil
		}
	}
	return &admin.Error{Code: kip1279.PolicyViolation, Message: "not confirmed, nothing was changed",
		Hint: "answer y, or give --yes", Exit: admin.ExitRefused}
}

func readProperties(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, usageError(err.Error(), "give a readable properties file")
	}
	defer f.Close()
	props, err := clientconf.ParseProperties(f)
	if err != nil {
		return nil, usageError(name+": "+err.Error(), "correct the file: Java properties, one key=value a line")
	}
	return props, nil
}

// cell prints a value that may not be known.
func cell[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}
