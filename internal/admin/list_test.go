package admin

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "@" + path
	}
	file := write("topics", "# ours\norders, payments # two\n\n/audit\\..*/\n")
	for _, c := range []struct {
		name, list string
		want       []string
		err        string
	}{
		{"one", "orders", []string{"orders"}, ""},
		{"several", " a, b ,,c", []string{"a", "b", "c"}, ""},
		{"pattern", "/a.*/", []string{"/a.*/"}, ""},
		{"comma within a pattern", "x,/a{1,2}/,y", []string{"x", "/a{1,2}/", "y"}, ""},
		{"slash within a pattern", "/a/b/, c", []string{"/a/b/", "c"}, ""},
		{"file", "z," + file, []string{"z", "orders", "payments", `/audit\..*/`}, ""},
		{"empty", "", nil, "empty"},
		{"only commas", ",,", nil, "empty"},
		{"no closing slash", "/a.*", nil, "no closing slash"},
		{"not a pattern", "/(/", nil, "not a pattern"},
		{"not a name", "a b", nil, "not a topic name"},
		{"dots", "..", nil, "not a topic name"},
		{"too long", strings.Repeat("x", 250), nil, "not a topic name"},
		{"no such file", "@" + dir + "/none", nil, "no such file"},
		{"empty file", write("empty", "# nothing\n"), nil, "empty"},
		{"file that names a file", write("nested", file), nil, "may not name another"},
		{"bad line in a file", write("bad", "a\n/b\n"), nil, ":2:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseList(c.list)
			var e *Error
			switch {
			case c.err == "" && (err != nil || !reflect.DeepEqual(got, c.want)):
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			case c.err != "" && (!errors.As(err, &e) || !strings.Contains(e.Message, c.err) || e.Exit != ExitUsage || e.Hint == ""):
				t.Errorf("got %q, %+v", got, err)
			}
		})
	}
}

func TestMatcher(t *testing.T) {
	m, err := NewMatcher([]string{"orders", "/pay(ments)?/", "/a|b/"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"orders": true, "orders2": false, "pay": true, "payments": true, "mypay": false, "a": true, "b": true, "ab": false,
	} {
		if m.Match(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	if got := m.Literals(); !reflect.DeepEqual(got, []string{"orders"}) {
		t.Errorf("literals %v", got)
	}
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"a,b", "/a{1,2}/,c", "/a/b/", ",", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if strings.Contains(list, "@") {
			return // reads files
		}
		got, err := ParseList(list)
		if err != nil {
			return
		}
		again, err := ParseList(strings.Join(got, ","))
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%q gave %q, then %q, %v", list, got, again, err)
		}
	})
}
