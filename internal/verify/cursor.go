package verify

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kmirror/protocol"
)

// maxCursor bounds the text of a cursor, in bytes.
const maxCursor = 4096

// cursor is all that a verification remembers between steps. The client carries it, so nothing in it is trusted beyond
// making this verification report less.
type cursor struct {
	// TopicID and SourceID pin the incarnations of the topic on both sides.
	TopicID  string `json:"t"`
	SourceID string `json:"s"`
	// Start is the first offset compared, Next where the next step goes on. End was pinned by the first step: a topic that
	// is being written to would never be done (kcat #33).
	Start int64 `json:"f"`
	Next  int64 `json:"n"`
	End   int64 `json:"e"`
	// Brokers are the replicas compared from the start on.
	Brokers []int32 `json:"b"`

	SourceCompacts bool `json:"sc,omitempty"`
	DestCompacts   bool `json:"dc,omitempty"`
	// NotBefore is when the next bytes may be read under a rate, Unix milliseconds.
	NotBefore int64 `json:"nb,omitempty"`
	// Idle counts steps in a row that came to nothing.
	Idle int `json:"i,omitempty"`
	// Unpinned says that none of them has pinned an end yet: of all this only Idle has a meaning.
	Unpinned bool `json:"u,omitempty"`

	cleaned
	// Behind is how many records of the source some replica did not show yet when the end was pinned.
	Behind int64 `json:"bh,omitempty"`
	// Starts holds the log start of each side as text where they differ.
	Starts string `json:"ls,omitempty"`
	// Skipped are offsets that a log start moved over while they were waiting.
	Skipped int64 `json:"sk,omitempty"`
	// Left and Joined are replicas that were not compared all the way.
	Left   []int32 `json:"l,omitempty"`
	Joined []int32 `json:"j,omitempty"`
}

func (c *cursor) encode() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// decodeCursor reads what encode wrote. The error is about the text, not about what the cursor says.
func decodeCursor(text string) (*cursor, error) {
	if len(text) > maxCursor {
		return nil, fmt.Errorf("cursor of %d bytes, at most %d", len(text), maxCursor)
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("cursor: %w", err)
	}
	c := &cursor{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("cursor: %w", err)
	}
	for _, id := range []string{c.TopicID, c.SourceID} {
		if _, err := protocol.ParseUUID(id); err != nil && !c.Unpinned {
			return nil, fmt.Errorf("cursor: %w", err)
		}
	}
	if c.Start < 0 || c.Next < c.Start || c.End < 0 {
		return nil, errors.New("cursor: offsets run backwards")
	}
	return c, nil
}

func (c *cursor) rules() rules {
	return rules{sourceCompacts: c.SourceCompacts, destCompacts: c.DestCompacts, maxOpen: maxOpen}
}

// note says why less than everything was compared, and what was let pass.
func (c *cursor) note() string {
	var parts []string
	say := func(n int64, format string) {
		if n != 0 {
			parts = append(parts, fmt.Sprintf(format, n))
		}
	}
	say(c.Behind, "%d records of the source beyond the destination's high watermark were not compared")
	if c.Starts != "" {
		parts = append(parts, "log starts differ: "+c.Starts)
	}
	say(c.Skipped, "%d offsets were deleted by retention meanwhile")
	say(c.GoneDest, "%d records compacted away at the destination, all replicas together")
	say(c.GoneSource, "%d records compacted away at the source")
	say(c.Unopened, "%d batches written anew by a cleaner could not be opened")
	say(c.Damaged, "%d batches have a wrong CRC, alike on both sides")
	for _, id := range c.Left {
		parts = append(parts, fmt.Sprintf("broker %d left the in-sync replicas meanwhile", id))
	}
	for _, id := range c.Joined {
		parts = append(parts, fmt.Sprintf("broker %d was compared in part, it joined the in-sync replicas meanwhile", id))
	}
	return strings.Join(parts, "; ")
}

// members notes replicas that came or went since the end was pinned.
func (c *cursor) members(now []int32) {
	const most = 20 // keeps a cursor short whatever the cluster does
	for _, id := range now {
		if !slices.Contains(c.Brokers, id) && !slices.Contains(c.Joined, id) && len(c.Joined) < most {
			c.Joined = append(c.Joined, id)
		}
	}
	for _, id := range c.Brokers {
		if !slices.Contains(now, id) && !slices.Contains(c.Left, id) && len(c.Left) < most {
			c.Left = append(c.Left, id)
		}
	}
}
