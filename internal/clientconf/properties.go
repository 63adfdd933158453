package clientconf

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
)

// maxFile bounds property files and referenced files, in bytes.
const maxFile = 1 << 20

// ParseProperties reads a Java properties file (UTF-8). Later values replace earlier ones. Errors name the line, never its
// text, which may be a secret.
func ParseProperties(r io.Reader) (map[string]string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("properties file is larger than %d bytes", maxFile)
	}
	props := map[string]string{}
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(b)), "\n")
	for i := 0; i < len(lines); i++ {
		first, line := i+1, strings.TrimLeft(lines[i], " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for continued(line) {
			line = line[:len(line)-1]
			if i++; i == len(lines) {
				break
			}
			line += strings.TrimLeft(lines[i], " \t\f")
		}
		key, value := splitProperty(line)
		k, okK := unescape(key)
		v, okV := unescape(value)
		if !okK || !okV {
			return nil, fmt.Errorf(`line %d: \u is not followed by four hexadecimal digits`, first)
		}
		props[k] = v
	}
	return props, nil
}

// continued reports whether a line ends in an odd number of backslashes.
func continued(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// splitProperty splits at the first unescaped =, : or white space.
func splitProperty(line string) (key, value string) {
	end := len(line)
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			i++
			continue
		}
		if strings.IndexByte("=: \t\f", line[i]) >= 0 {
			end = i
			break
		}
	}
	key, rest := line[:end], strings.TrimLeft(line[end:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	return key, rest
}

func unescape(s string) (string, bool) {
	if !strings.Contains(s, `\`) {
		return s, true
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			if s[i] != '\\' {
				out.WriteByte(s[i])
			}
			continue
		}
		i++
		switch s[i] {
		case 't':
			out.WriteByte('\t')
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 'f':
			out.WriteByte('\f')
		case 'u':
			r, used, ok := unicodeEscape(s[i+1:])
			if !ok {
				return "", false
			}
			out.WriteRune(r)
			i += used
		default:
			out.WriteByte(s[i])
		}
	}
	return out.String(), true
}

// unicodeEscape reads XXXX, or XXXX\uXXXX where that is a surrogate pair.
func unicodeEscape(s string) (r rune, used int, ok bool) {
	hex := func(s string) (rune, bool) {
		if len(s) < 4 {
			return 0, false
		}
		v, err := strconv.ParseUint(s[:4], 16, 16)
		return rune(v), err == nil
	}
	r, ok = hex(s)
	if !ok {
		return 0, 0, false
	}
	if utf16.IsSurrogate(r) && strings.HasPrefix(s[4:], `\u`) {
		if low, ok := hex(s[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != '\uFFFD' {
				return pair, 10, true
			}
		}
	}
	return r, 4, true
}
