package trace

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// Object is a message's structure as it is shown: fields in the order of the schema.
type Object []Field

// remark is what we say in place of a value.
type remark string

// Field is a named value: an Object, []any, string, remark, bool, int64, uint64, float64, or nil.
type Field struct {
	Name  string
	Value any
}

// hidden stands for what is not shown.
const hidden remark = "****"

// secretFields are bytes that prove who somebody is, or may hold such (Envelope carries whole requests).
var secretFields = map[string]bool{
	"SASLAuthBytes": true, "HMAC": true, "Salt": true, "SaltedPassword": true, "RequestData": true, "ResponseData": true,
}

// always are fields that are shown also when they have their default: they say what the others are about.
var always = map[string]bool{"Partition": true, "ApiKey": true, "Acks": true}

const (
	// maxNodes bounds the values of one message that are shown; maxText the bytes of one string.
	maxNodes = 50_000
	maxText  = 4 << 10
)

// Render turns a message into what may be shown of it: names and values, without what has its default value. Secrets are
// hidden, bytes counted. A message of more than maxNodes values is cut, and says so.
func Render(body any) Object {
	r := renderer{left: maxNodes}
	if m, ok := body.(interface{ Key() int16 }); ok {
		r.configs = configAPIs[m.Key()]
	}
	v := reflect.ValueOf(body)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return nil
	}
	o := r.object(v.Elem())
	if r.left <= 0 {
		o = append(o, Field{"truncated", fmt.Sprintf("more than %d values", maxNodes)})
	}
	return o
}

type renderer struct {
	left    int
	configs bool // the message is of configAPIs
	loggers bool // the resource is brokerLogger
}

// secret reports whether the value in a structure is a secret, by the field that names it.
func (r *renderer) secret(fields []field, v reflect.Value) (secret bool) {
	for _, f := range fields {
		switch field := v.Field(f.index); f.name {
		case "ResourceType":
			r.loggers = field.Int() == brokerLogger
		case "Name", "ConfigName":
			secret = secret || sensitive(text(field)) || r.configs && !r.loggers && secretConfig(text(field))
		case "Key":
			secret = secret || sensitive(text(field))
		case "IsSensitive":
			secret = secret || field.Bool()
		}
	}
	return secret
}

// object renders a structure.
func (r *renderer) object(v reflect.Value) Object {
	fields, defaults := fieldsOf(v.Type()), defaultsOf(v.Type())
	secret := r.secret(fields, v)
	o := Object{}
	for _, f := range fields {
		field := v.Field(f.index)
		if r.left <= 0 {
			break
		}
		if f.name == "Version" && len(o) == 0 && f.index == 0 || !always[f.name] && same(f.name, field, defaults.Field(f.index)) {
			continue
		}
		r.left--
		quoted := r.configs && f.name == "ErrorMessage" && quotesSecret(text(field))
		if secret && f.name == "Value" || secretFields[f.name] || quoted {
			o = append(o, Field{f.name, hidden})
			continue
		}
		if value, show := r.value(f, field); show {
			o = append(o, Field{f.name, value})
		}
	}
	return o
}

func (r *renderer) value(f field, v reflect.Value) (value any, show bool) {
	if f.errorCode {
		return errorName(int16(v.Int())), true
	}
	switch x := v.Interface().(type) {
	case kmsg.Tags:
		return remark(fmt.Sprintf("%d tags", x.Len())), x.Len() > 0
	case [16]byte:
		return protocol.UUID(x).String(), true
	case []byte:
		return remark(fmt.Sprintf("%d bytes", len(x))), true
	case fmt.Stringer:
		if v.Kind() != reflect.Pointer {
			return x.String(), true
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil, true
		}
		return r.value(f, v.Elem())
	case reflect.Struct:
		return r.object(v), true
	case reflect.Slice, reflect.Array:
		list := []any{}
		for i := 0; i < v.Len() && r.left > 0; i++ {
			r.left--
			if item, ok := r.value(field{name: f.name}, v.Index(i)); ok {
				list = append(list, item)
			}
		}
		return list, true
	case reflect.String:
		s := v.String()
		if len(s) > maxText {
			s = fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:maxText], ""), len(s))
		}
		return s, true
	case reflect.Bool:
		return v.Bool(), true
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), true
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint(), true
	case reflect.Float64:
		return v.Float(), true
	}
	return nil, false
}

// same compares a field with its default.
func same(name string, a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		return a.Len() == 0
	case reflect.Struct:
		if tags, ok := a.Interface().(kmsg.Tags); ok {
			return tags.Len() == 0
		}
		return reflect.DeepEqual(a.Interface(), b.Interface())
	case reflect.Pointer:
		// Old versions send an empty message where newer ones send none.
		return a.IsNil() && b.IsNil() || name == "ErrorMessage" && text(a) == ""
	}
	return a.Equal(b)
}

// defaultsOf returns a structure of a type with every field at its default.
func defaultsOf(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(interface{ Default() }); ok {
		d.Default()
	}
	return v.Elem()
}

// errorName is Kafka's name of an error code. The client library keeps one old name, and lacks what KIP-1279 adds.
func errorName(code int16) string {
	if code == 6 {
		return "NOT_LEADER_OR_FOLLOWER"
	}
	if e := kerr.TypedErrorForCode(code); e != nil && e.Code == code {
		return e.Message
	}
	return kip1279.ErrorName(code)
}
