package main

import (
	"errors"
	"strings"
	"testing"

	"kmirror/internal/admin"
	"kmirror/internal/preflight"
)

func TestPreflightOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		report preflight.Report
		exit   int
	}{
		"fine":        {preflight.Report{Findings: []preflight.Finding{{Level: preflight.OK}, {Level: preflight.Warn}}}, admin.ExitOK},
		"fails":       {preflight.Report{Findings: []preflight.Finding{{Level: preflight.Fail}}}, admin.ExitRefused},
		"unreachable": {preflight.Report{Findings: []preflight.Finding{{Level: preflight.Fail}}, Unreachable: true}, admin.ExitUnreachable},
	} {
		err := preflightError(&c.report)
		var e *admin.Error
		if c.exit == admin.ExitOK && err != nil || c.exit != admin.ExitOK && (!errors.As(err, &e) || e.Exit != c.exit || e.Hint == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var out strings.Builder
	preflightTable(&out, []preflight.Finding{{Check: "a", Level: preflight.Fail, Detail: "b\nc", Hint: "d"},
		{Check: "e", Level: preflight.OK, Detail: "f"}})
	if want := "FAIL\ta\tb; c (d)\nok\te\tf\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
}
