package kipclient

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
)

// Encode appends a struct. Fields that are left out have their defaults; names that the schema does not have are an error.
func Encode(dst []byte, fields []Field, o Object) ([]byte, error) {
	for name := range o {
		if !slices.ContainsFunc(fields, func(f Field) bool { return f.Name == name }) {
			return nil, fmt.Errorf("there is no field %s", name)
		}
	}
	type tagged struct {
		number uint64
		value  []byte
	}
	var tags []tagged
	for _, f := range fields {
		v, ok := o[f.Name]
		if !ok {
			v = f.defaultValue()
		}
		if f.Tag == nil {
			var err error
			if dst, err = encodeValue(dst, f, v); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			continue
		}
		if ok && !reflect.DeepEqual(v, f.defaultValue()) {
			b, err := encodeValue(nil, f, v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			tags = append(tags, tagged{*f.Tag, b})
		}
	}
	slices.SortFunc(tags, func(a, b tagged) int { return int(a.number) - int(b.number) })
	dst = binary.AppendUvarint(dst, uint64(len(tags)))
	for _, t := range tags {
		dst = binary.AppendUvarint(dst, t.number)
		dst = binary.AppendUvarint(dst, uint64(len(t.value)))
		dst = append(dst, t.value...)
	}
	return dst, nil
}

func encodeValue(dst []byte, f Field, v any) ([]byte, error) {
	inner, array := element(f)
	switch v := v.(type) {
	case nil:
		if f.Null == "" {
			return nil, fmt.Errorf("null")
		}
		return append(dst, 0), nil
	case []any:
		if !array {
			break
		}
		dst = binary.AppendUvarint(dst, uint64(len(v)+1))
		for _, e := range v {
			var err error
			if dst, err = encodeValue(dst, inner, e); err != nil {
				return nil, err
			}
		}
		return dst, nil
	case Object:
		if len(f.Fields) > 0 && !array {
			return Encode(dst, f.Fields, v)
		}
	case string:
		if f.Type == "string" {
			return append(binary.AppendUvarint(dst, uint64(len(v)+1)), v...), nil
		}
	case bool:
		if f.Type == "bool" && v {
			return append(dst, 1), nil
		} else if f.Type == "bool" {
			return append(dst, 0), nil
		}
	case [16]byte:
		if f.Type == "uuid" {
			return append(dst, v[:]...), nil
		}
	case int:
		return encodeValue(dst, f, int64(v))
	case int64:
		if n := size(f.Type); n > 0 {
			return append(dst, binary.BigEndian.AppendUint64(nil, uint64(v))[8-n:]...), nil
		}
	}
	return nil, fmt.Errorf("%T can't be a %s", v, f.Type)
}

// Decode reads a message, which src must hold and nothing else. Tagged fields that the schema does not have are skipped.
func Decode(src []byte, fields []Field) (Object, error) {
	d := decoder{src: src}
	o := d.object(fields)
	if d.err == nil && len(d.src) > 0 {
		d.err = fmt.Errorf("%d bytes left over", len(d.src))
	}
	return o, d.err
}

type decoder struct {
	src []byte
	err error
}

// take returns the next n bytes; after an error nothing is left.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.src)) {
		d.err, d.src = errShort, nil
		return nil
	}
	b := d.src[:n:n]
	d.src = d.src[n:]
	return b
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.src)
	if n <= 0 {
		d.err, d.src = errShort, nil
		return 0
	}
	d.src = d.src[n:]
	return v
}

func (d *decoder) object(fields []Field) Object {
	o := Object{}
	for _, f := range fields {
		if f.Tag != nil {
			o[f.Name] = f.defaultValue()
		} else {
			o[f.Name] = d.value(f)
		}
	}
	for range d.uvarint() {
		number, b := d.uvarint(), d.take(d.uvarint())
		if d.err != nil {
			break
		}
		for _, f := range fields {
			if f.Tag != nil && *f.Tag == number {
				inner := decoder{src: b}
				o[f.Name] = inner.value(f)
				d.err = inner.err
			}
		}
	}
	return o
}

func (d *decoder) value(f Field) any {
	inner, array := element(f)
	switch {
	case array:
		n := d.uvarint()
		if n == 0 {
			return d.null(f)
		}
		out := []any{}
		for range n - 1 {
			if d.err != nil {
				break
			}
			out = append(out, d.value(inner))
		}
		return out
	case len(f.Fields) > 0:
		return d.object(f.Fields)
	case f.Type == "string":
		n := d.uvarint()
		if n == 0 {
			return d.null(f)
		}
		return string(d.take(n - 1))
	case f.Type == "bool":
		b := d.take(1)
		return len(b) == 1 && b[0] != 0
	case f.Type == "uuid":
		var id [16]byte
		copy(id[:], d.take(16))
		return id
	}
	n := size(f.Type)
	if n == 0 {
		d.err, d.src = fmt.Errorf("type %s of %s is not known", f.Type, f.Name), nil
		return nil
	}
	var v int64
	for i, b := range d.take(uint64(n)) {
		if i == 0 {
			v = int64(int8(b))
		} else {
			v = v<<8 | int64(b)
		}
	}
	return v
}

func (d *decoder) null(f Field) any {
	if f.Null == "" && d.err == nil {
		d.err, d.src = fmt.Errorf("%s is null", f.Name), nil
	}
	return nil
}
