package clientconf

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// reference is ${file:PATH}, ${file:PATH:KEY} (a key of a properties file, Kafka's FileConfigProvider) or ${env:NAME}.
var reference = regexp.MustCompile(`\$\{(file|env):([^}]*)\}`)

// isReference reports whether s is one reference and nothing else.
func isReference(s string) bool {
	m := reference.FindStringIndex(strings.TrimSpace(s))
	return m != nil && m[0] == 0 && m[1] == len(strings.TrimSpace(s))
}

// Resolve replaces the references in s by what they refer to now. What they refer to is not looked at for references.
// Errors name the reference, never a value.
func Resolve(s string) (string, error) {
	var first error
	out := reference.ReplaceAllStringFunc(s, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		v, err := lookup(m[1], m[2])
		if err != nil && first == nil {
			first = fmt.Errorf("%s: %w", ref, err)
		}
		return v
	})
	if first != nil {
		return "", first
	}
	return out, nil
}

// filesIn names the files that references in s lead to, or may: a colon in a path stands before a key, or is part of the name.
func filesIn(s string) (names []string) {
	for _, m := range reference.FindAllStringSubmatch(s, -1) {
		if m[1] != "file" {
			continue
		}
		names = append(names, m[2])
		if i := strings.LastIndexByte(m[2], ':'); i >= 0 {
			names = append(names, m[2][:i])
		}
	}
	return names
}

func lookup(kind, arg string) (string, error) {
	if kind == "env" {
		v, ok := os.LookupEnv(arg)
		if !ok {
			return "", fmt.Errorf("environment variable is not set")
		}
		return v, nil
	}
	if b, err := readFile(arg); err == nil {
		return strings.TrimRight(string(b), "\r\n"), nil
	} else if i := strings.LastIndexByte(arg, ':'); i < 0 || !os.IsNotExist(err) {
		return "", err
	}
	i := strings.LastIndexByte(arg, ':')
	f, err := os.Open(arg[:i])
	if err != nil {
		return "", err
	}
	defer f.Close()
	props, err := ParseProperties(f)
	if err != nil {
		return "", err
	}
	v, ok := props[arg[i+1:]]
	if !ok {
		return "", fmt.Errorf("the file has no key %s", arg[i+1:])
	}
	return v, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return b, err
}

// RemoteAdminPrefix begins the properties of a mirror that say how the kmirror of its source is reached: bootstrap.servers,
// security.protocol, ssl.*.
const RemoteAdminPrefix = "mirror.source.admin."

// secretKeys are client properties whose value is a secret as a whole. sasl.jaas.config is looked into.
var secretKeys = []string{
	"ssl.key.password", "ssl.keystore.password", "ssl.truststore.password", "ssl.keystore.key",
	"sasl.oauthbearer.client.credentials.client.secret",
}

// Secret reports whether a property's value may hold a secret, or what leads to one.
func Secret(key string) bool {
	name := strings.ToLower(strings.TrimPrefix(key, RemoteAdminPrefix))
	return name == "sasl.jaas.config" || secretName(name)
}

// CheckSecrets refuses literal secrets: a definition that others can read may hold references only. The error lists all
// offending keys, without their values.
func CheckSecrets(props map[string]string) error {
	var bad []string
	for key, value := range props {
		switch {
		case slices.Contains(secretKeys, strings.TrimPrefix(key, RemoteAdminPrefix)):
			if value != "" && !isReference(value) {
				bad = append(bad, key)
			}
		case key == "sasl.jaas.config":
			if !isReference(value) && jaasHasSecret(value) {
				bad = append(bad, key)
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return fmt.Errorf("%s must refer to the secret instead of holding it: write ${file:PATH} or ${env:NAME}",
		strings.Join(bad, ", "))
}

// jaasHasSecret reports whether an option that names a secret has a literal value. What can't be parsed counts as one.
func jaasHasSecret(value string) bool {
	j, err := parseJAAS(value)
	if err != nil {
		return true
	}
	for name, v := range j.options {
		if !harmlessJAAS[strings.ToLower(name)] && !isReference(v) {
			return true
		}
	}
	return false
}

// harmlessJAAS are the JAAS options that hold no secret; of any other that is not sure.
var harmlessJAAS = map[string]bool{"username": true, "tokenauth": true, "clientid": true, "scope": true, "usekeytab": true,
	"principal": true, "storekey": true, "keytab": true, "servicename": true}

// Shown returns properties as others may read them: secrets are references, which are not resolved; a value that is or may hold a secret
// and is no reference, which CheckSecrets refuses but a definition that something else stored may have, is hidden.
func Shown(props map[string]string) map[string]string {
	out := make(map[string]string, len(props))
	for key, value := range props {
		if secretValue(key, value) {
			value = "****"
		}
		out[key] = value
	}
	return out
}

// secretWords make a property's value a secret wherever they stand in its name.
var secretWords = []string{"password", "secret", "private.key", "passphrase"}

func secretValue(key, value string) bool {
	name := strings.ToLower(strings.TrimPrefix(key, RemoteAdminPrefix))
	switch {
	case value == "" || isReference(value):
		return false
	case name == "sasl.jaas.config":
		return jaasHasSecret(value)
	}
	return secretName(name)
}

// secretName reports whether a property of this name, in lower case, holds nothing but a secret.
func secretName(name string) bool {
	return slices.Contains(secretKeys, name) || slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(name, w) })
}
