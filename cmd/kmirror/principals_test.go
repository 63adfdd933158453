package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kmirror/internal/testkafka"
)

// ruled are rules, and subjects with the names that they make of them; "" is none.
var ruled = []struct {
	rules string
	names map[string]string
}{
	{"", map[string]string{"CN=a,O=b": "CN=a,O=b"}},
	{"DEFAULT", map[string]string{"CN=a,O=b": "CN=a,O=b"}},
	{`RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,` +
		`RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT`, map[string]string{
		"CN=Duke,OU=ServiceUsers,O=Org,C=US":              "Duke",
		"CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US":       "duke@sme",
		"CN=duke,OU=JavaSoft,O=Sun Microsystems":          "duke",
		"cn=Some.One+OU=x":                                "some.one",
		"O=nobody,OU=JavaSoft":                            "O=nobody,OU=JavaSoft",
		"CN=,OU=ServiceUsers":                             "",
		"CN=a,CN=b,OU=ServiceUsers,O=CN=c,OU=ServiceUser": "a,CN=b",
	}},
	{` RULE:^CN=(broker-\d+)\.acme,.*$/$1/ , RULE:^CN=([^,]+)$/x\/$1\$/U`, map[string]string{
		"CN=broker-1.acme,O=x": "broker-1", "CN=broker-x.acme,O=x": "", "CN=abc": "X/ABC$", "CN=broker-1.acme": "X/BROKER-1.ACME$",
		"O=x,CN=broker-1.acme,O=x": "",
	}},
	{`RULE:^(CN|OU)=(\w+)$/$0 $2/`, map[string]string{"OU=a": "OU=a a", "O=a": ""}},
	{`RULE:^CN=[(a|b\]]+(c|d)$/$1/`, map[string]string{"CN=a](|c": "c", "CN=ac|d": "", "CN=a": ""}},
	{`RULE:^CN=a\/b$/slash/`, map[string]string{"CN=a/b": "slash"}},
	{`RULE:^((?:a|bc*)+,?)(\d*)$/<$1$2>/`, map[string]string{"aabcc,12": "<aabcc,12>", "bcc": "<bcc>", "": ""}},
	{`RULE:^CN=(a)?b$/<$1>/`, map[string]string{"CN=ab": "<a>", "CN=b": "<>"}},
}

func TestPrincipalRules(t *testing.T) {
	for _, c := range ruled {
		rules, err := parsePrincipalRules(c.rules)
		if err != nil {
			t.Errorf("%s: %v", c.rules, err)
			continue
		}
		for subject, want := range c.names {
			if got, _ := rules.name(subject); got != want {
				t.Errorf("%s of %s: %q, want %q", c.rules, subject, got, want)
			}
		}
	}
	rules, err := parsePrincipalRules("RULE:^CN=(.*)$/$1/L")
	if err != nil {
		t.Fatal(err)
	}
	for subject, want := range map[string]string{"CN=a\nb": "", "CN=\u2028": "", "CN=\u212aafka": "\u212aafka"} { // the sign for Kelvin is no k
		if got, _ := rules.name(subject); got != want {
			t.Errorf("%q: got %q", subject, got)
		}
	}
	for rules, part := range map[string]string{
		"default": "write DEFAULT", "RULE:^a$/b": "write DEFAULT", "RULE:^a$/b/X": "write DEFAULT", "DEFAULT RULE:^a$/b/": "write DEFAULT",
		"RULE:a/b/": "begin with ^", "RULE:^a/b/": "begin with ^", `RULE:^a\$/b/`: "begin with ^", "RULE:^a|b$/c/": "parentheses only",
		"RULE:^[(]a|b[)]$/c/": "parentheses", "RULE:^[)]a|(b)[(]$/c/": "parentheses", `RULE:^[\]]a|b$/c/`: "parentheses",
		"RULE:^(?i)a$/b/": "(?i is not supported", "RULE:^[a&&b]$/c/": "&&", `RULE:^\pL$/b/`: `\p`,
		"RULE:^[a[b]]$/c/": "not supported", "RULE:^(a$/b/": "parentheses", "RULE:^a++$/b/": "nested repetition",
		"RULE:^(a)$/$2/": "up to 1", "RULE:^(a)$/$x/": "one digit", "RULE:^(a)$/$10/": "one digit", "RULE:^a$/${b}/": "one digit",
		"RULE:^(a*)*$/$1/": "hold a group", "RULE:^CN=(?:x(a|b)){2},.*$/$1/": "hold a group", "RULE:^(a|(?:b?c*)+)$/$1/": "nor be empty",
		`RULE:^\Qa\E$/b/`: "not supported", `RULE:^a\b$/b/`: "not supported",
	} {
		if _, err := parsePrincipalRules(rules); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v", rules, err)
		}
	}
}

// TestPrincipalRulesAreKafkas asks Kafka's own mapper for all names of the table.
func TestPrincipalRulesAreKafkas(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kafka")
	}
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("needs a JDK")
	}
	source := filepath.Join(t.TempDir(), "Map.java")
	if err := os.WriteFile(source, []byte(`import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
public class Map {
    public static void main(String[] args) {
        for (int i = 0; i < args.length; i += 2) {
            String name = "";
            try {
                name = SslPrincipalMapper.fromRules(args[i]).getName(args[i + 1]);
            } catch (java.io.IOException e) { // no rule applies
            }
            System.out.println("=" + name);
        }
    }
}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var args, want []string
	for _, c := range ruled[1:] { // no rules at all are a setting that is not there
		rules, err := parsePrincipalRules(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		for subject := range c.names {
			name, _ := rules.name(subject)
			args, want = append(args, c.rules, subject), append(want, name)
		}
	}
	out, err := testkafka.Tool(t.Context(), "", source, args...).Output()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "="); ok {
			got = append(got, name)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d names, want %d", len(got), len(want))
	}
	for i, name := range want {
		if got[i] != name {
			t.Errorf("%s of %s: %q here, %q in Kafka", args[2*i], args[2*i+1], name, got[i])
		}
	}
}
