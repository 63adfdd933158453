package admin

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"strings"
)

// anonymous is the principal of a connection without authentication, in Kafka's notation.
const anonymous = "User:ANONYMOUS"

// Principal is the principal of a client's certificate as Kafka's brokers name it without rules of ssl.principal.mapping.rules: "User:"
// and the subject in the form of RFC 2253, as Java writes it (X500Principal.getName). What can't be read as a name has none.
func Principal(cert *x509.Certificate) (string, bool) {
	name, ok := distinguishedName(cert.RawSubject)
	return "User:" + name, ok
}

// attribute is one attribute of a relative name; several of them make a set.
type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

type attributesSET []attribute

// keywords are the attributes that RFC 2253 has a name for; the others stand as their numbers.
var keywords = map[string]string{
	"2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O", "2.5.4.11": "OU",
	"0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}

// distinguishedName writes a DER encoded name.
func distinguishedName(der []byte) (string, bool) {
	var names []attributesSET
	if rest, err := asn1.Unmarshal(der, &names); err != nil || len(rest) > 0 {
		return "", false
	}
	var out strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		for j, a := range names[i] {
			switch {
			case j > 0:
				out.WriteByte('+')
			case i < len(names)-1:
				out.WriteByte(',')
			}
			a.write(&out)
		}
	}
	return out.String(), true
}

// write appends TYPE=VALUE. Java takes the bytes of a string for UTF-8, whatever its type says.
func (a attribute) write(out *strings.Builder) {
	keyword, known := keywords[a.Type.String()]
	if !known || !isText(a.Value) {
		if !known {
			keyword = a.Type.String()
		}
		out.WriteString(keyword + "=#" + hex.EncodeToString(a.Value.FullBytes))
		return
	}
	out.WriteString(keyword + "=")
	text := strings.ToValidUTF8(string(a.Value.Bytes), "\uFFFD")
	inner := strings.Trim(text, " ")
	if inner == "" {
		out.WriteString(strings.Repeat(`\ `, len(text)))
		return
	}
	lead := strings.Index(text, inner)
	out.WriteString(strings.Repeat(`\ `, lead))
	for _, c := range inner {
		switch {
		case c == 0:
			out.WriteString(`\00`)
			continue
		case strings.ContainsRune(`,=+<>#;"\`, c):
			out.WriteByte('\\')
		}
		out.WriteRune(c)
	}
	out.WriteString(strings.Repeat(`\ `, len(text)-lead-len(inner)))
}

// isText reports whether Java writes a value of this type as text.
func isText(v asn1.RawValue) bool {
	if v.Class != asn1.ClassUniversal {
		return false
	}
	switch v.Tag {
	case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagT61String, asn1.TagIA5String, asn1.TagGeneralString, asn1.TagBMPString:
		return true
	}
	return false
}
