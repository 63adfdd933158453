package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// ErrNoMirror: there is no such mirror, so nothing is stored of it.
var ErrNoMirror = errors.New("there is no such mirror")

// aclJSON is the value of an ACL.
type aclJSON struct {
	ResourceType string `json:"resource_type"`
	ResourceName string `json:"resource_name"`
	PatternType  string `json:"pattern_type"`
	Principal    string `json:"principal"`
	Host         string `json:"host"`
	Operation    string `json:"operation"`
	Permission   string `json:"permission"`
}

func (a ACL) fields() []string {
	return []string{a.ResourceType, a.ResourceName, a.PatternType, a.Principal, a.Host, a.Operation, a.Permission}
}

// Compare orders ACLs by their fields; 0 means that they are the same.
func (a ACL) Compare(b ACL) int { return slices.Compare(a.fields(), b.fields()) }

// String is all fields in the order of Kafka's tools.
func (a ACL) String() string {
	return fmt.Sprintf("%s %s %s %q for %s from %s: %s", a.Permission, a.Operation, a.ResourceType, a.ResourceName, a.Principal, a.Host,
		a.PatternType)
}

// id identifies an ACL in the key of its record: the first 16 bytes of the SHA-256 of its fields, each behind its length.
func (a ACL) id() protocol.UUID {
	var b []byte
	for _, f := range a.fields() {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	sum := sha256.Sum256(b)
	return protocol.UUID(sum[:16])
}

func aclKey(mirror string, a ACL) kip1279.StateKey {
	return kip1279.StateKey{Type: kip1279.RecordMirrorACL, Mirror: mirror, TopicID: a.id()}
}

func aclRecord(mirror string, a ACL, n int32) (record, error) {
	if !utf8.ValidString(strings.Join(a.fields(), "")) {
		return record{}, fmt.Errorf("ACL is not UTF-8: %q", a.fields()) // JSON would hold another one
	}
	b, err := marshal(aclJSON(a))
	return newRecord(aclKey(mirror, a), &kip1279.JSONValue{JSON: b}, n), err
}

func decodeACL(k kip1279.StateKey, v *kip1279.JSONValue) (ACL, error) {
	var j aclJSON
	if err := json.Unmarshal(v.JSON, &j); err != nil {
		return ACL{}, err
	}
	a := ACL(j)
	if a.id() != k.TopicID {
		return ACL{}, fmt.Errorf("%q is not the one that its key means", a.fields()) // could be removed by no one
	}
	return a, nil
}

func (t *table) aclList(mirror string) []ACL {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []ACL
	for id, a := range t.acls {
		if id.mirror == mirror {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, ACL.Compare)
	return out
}

// ACLs returns those that a mirror created at the destination, sorted.
func (s *Store) ACLs(mirror string) []ACL { return s.table.aclList(mirror) }

// PutACLs remembers ACLs as created by a mirror; ErrNoMirror where that is not defined (any more). They lie with the mirror's metadata
// coordinator.
func (s *Store) PutACLs(ctx context.Context, mirror string, acls ...ACL) error {
	if err := ValidateName(mirror); err != nil {
		return err
	}
	if err := s.lockACLs(ctx); err != nil {
		return err
	}
	defer s.unlockACLs()
	if _, ok := s.Mirror(mirror); !ok {
		return fmt.Errorf("%w: %s", ErrNoMirror, mirror)
	}
	return s.write(ctx, func(n int32) ([]record, error) {
		out := make([]record, 0, len(acls))
		for _, a := range acls {
			r, err := aclRecord(mirror, a, n)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
		return out, nil
	})
}

// DeleteACLs forgets that a mirror created ACLs. Those that nobody knows of are no error.
func (s *Store) DeleteACLs(ctx context.Context, mirror string, acls ...ACL) error {
	return s.write(ctx, func(n int32) ([]record, error) {
		out := make([]record, 0, len(acls))
		for _, a := range acls {
			out = append(out, newRecord(aclKey(mirror, a), nil, n))
		}
		return out, nil
	})
}

// lockACLs waits until all is loaded and nobody else is between looking at a mirror and writing of its ACLs.
func (s *Store) lockACLs(ctx context.Context) error {
	if err := s.awaitLoaded(ctx); err != nil {
		return err
	}
	select {
	case s.acls <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) unlockACLs() { <-s.acls }
