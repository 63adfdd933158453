package trace

import (
	"fmt"
	"io"
)

// Reporter decodes messages, counts them and writes those that pass the filter. It belongs to one goroutine.
type Reporter struct {
	Decoder *Decoder
	Filter  Filter
	Format  Format
	Stats   *Stats
	// Out gets each event by one call of Write.
	Out io.Writer
	// Seen, if set, is shown each event, also those that the Filter takes out.
	Seen func(*Event)

	buf []byte
}

// maxBuffer is the largest buffer that is kept for the next event.
const maxBuffer = 1 << 20

// Report handles one message. The error is that of Out. The caller gives the message's Charge back.
func (r *Reporter) Report(m *Message) error {
	e := r.Decoder.Decode(m)
	r.Stats.Event(e)
	if r.Seen != nil {
		r.Seen(e)
	}
	if !r.Filter.Match(e) {
		return nil
	}
	r.buf = r.Format.Append(r.buf[:0], e)
	_, err := r.Out.Write(r.buf)
	if cap(r.buf) > maxBuffer {
		r.buf = nil
	}
	if err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	return nil
}
