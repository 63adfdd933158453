package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

func newVersionCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return c.emit(v, func(w io.Writer) { fmt.Fprintf(w, "kmirror %s (%s, %s)\n", v.Version, v.Go, v.Platform) })
		},
	}
}
