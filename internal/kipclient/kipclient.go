// Package kipclient is a client that knows KIP-1279 by its message schemas alone, for tests: the field tables stand in Kafka's own JSON
// form in schemas, and what goes over the wire is encoded and decoded by them. It shares no code with the messages of protocol/kip1279,
// so that the two check each other. Of Kafka's own APIs there is what an admin client asks around it, in one version each.
package kipclient

import (
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed schemas/*.json
var files embed.FS

// Field is a field of a message or of a struct in it.
type Field struct {
	Name    string           `json:"name"`
	Type    string           `json:"type"`
	Null    string           `json:"nullableVersions"`
	Tag     *uint64          `json:"tag"`
	Default *json.RawMessage `json:"default"`
	Fields  []Field          `json:"fields"`
}

// Schema is a message. All are flexible, in the one version that is used.
type Schema struct {
	Key     int16   `json:"apiKey"`
	Name    string  `json:"name"`
	Version string  `json:"validVersions"`
	Fields  []Field `json:"fields"`
}

// Object is a struct: its fields by name. Integers are int64, arrays []any, strings string or nil, uuids [16]byte, booleans bool.
type Object = map[string]any

// Schemas returns all schemas by their names.
func Schemas() (map[string]Schema, error) {
	entries, err := files.ReadDir("schemas")
	if err != nil {
		return nil, err
	}
	out := map[string]Schema{}
	for _, e := range entries {
		b, err := files.ReadFile(path.Join("schemas", e.Name()))
		if err != nil {
			return nil, err
		}
		var s Schema
		if err := json.Unmarshal(b, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out[s.Name] = s
	}
	return out, nil
}

// Client is one connection.
type Client struct {
	conn        net.Conn
	schemas     map[string]Schema
	correlation uint32
}

// Dial connects.
func Dial(address string) (*Client, error) {
	schemas, err := Schemas()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return New(conn, schemas), nil
}

// New makes a client of a connection.
func New(conn net.Conn, schemas map[string]Schema) *Client {
	return &Client{conn: conn, schemas: schemas}
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Call sends a request, by its name without "Request", and returns the answer.
func (c *Client) Call(api string, req Object) (Object, error) {
	in, ok := c.schemas[api+"Request"]
	out, ok2 := c.schemas[api+"Response"]
	if !ok || !ok2 {
		return nil, fmt.Errorf("%s has no schema", api)
	}
	version, err := strconv.ParseUint(in.Version, 10, 15)
	if err != nil {
		return nil, err
	}
	c.correlation++
	b := binary.BigEndian.AppendUint16(nil, uint16(in.Key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, c.correlation)
	b = append(b, 0, 3, 'k', 'i', 'p', 0)
	if b, err = Encode(b, in.Fields, req); err != nil {
		return nil, fmt.Errorf("%s: %w", in.Name, err)
	}
	if err := c.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		return nil, err
	}
	answer, err := c.frame()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", out.Name, err)
	}
	const keyApiVersions = 18
	if in.Key != keyApiVersions { // whose response header has no tags
		if len(answer) == 0 || answer[0] != 0 {
			return nil, fmt.Errorf("%s: header %x", out.Name, answer)
		}
		answer = answer[1:]
	}
	back, err := Decode(answer, out.Fields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", out.Name, err)
	}
	return back, nil
}

// frame reads the answer to the newest request, without correlation id.
func (c *Client) frame() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 4 || n > 64<<20 {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.conn, b); err != nil {
		return nil, err
	}
	if got := binary.BigEndian.Uint32(b); got != c.correlation {
		return nil, fmt.Errorf("answer to request %d where %d was asked", got, c.correlation)
	}
	return b[4:], nil
}

var errShort = errors.New("the message ends too early")

// element is the type of an array's elements, false for what is no array.
func element(f Field) (Field, bool) {
	name, ok := strings.CutPrefix(f.Type, "[]")
	return Field{Name: f.Name, Type: name, Fields: f.Fields}, ok
}

// size is of integers in bytes, 0 for other types.
func size(typ string) int { return map[string]int{"int8": 1, "int16": 2, "int32": 4, "int64": 8}[typ] }

// defaultValue is the value of a field that is left out.
func (f Field) defaultValue() any {
	text := ""
	if f.Default != nil {
		if json.Unmarshal(*f.Default, &text) == nil && text == "null" {
			return nil
		}
	}
	_, array := element(f)
	switch {
	case array:
		return []any{}
	case f.Type == "string":
		return text
	case f.Type == "bool":
		return text == "true"
	case f.Type == "uuid":
		return [16]byte{}
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
