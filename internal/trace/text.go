package trace

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// plain reports whether text may stand in a line as it is: it can't be taken for something else, nor steer a terminal.
func plain(s string) bool {
	if s == "" || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsGraphic(r) || unicode.IsSpace(r) || strings.ContainsRune(`"=[]`, r) {
			return false
		}
	}
	return true
}

// word is text for a line: quoted where it has to be.
func word(s string) string {
	if plain(s) {
		return s
	}
	return strconv.Quote(s)
}

// data is what a key or value looks like: text if it is, else hexadecimal.
func data(b []byte, size int) string {
	if b == nil {
		return "null"
	}
	var s string
	if printable(b) {
		s = strconv.Quote(string(b))
	} else {
		s = fmt.Sprintf("0x%x", b)
	}
	if len(b) < size {
		s += fmt.Sprintf("... (%d bytes)", size)
	}
	return s
}

// printable reports whether bytes are text; the last character may have been cut.
func printable(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			return !utf8.FullRune(b)
		}
		if !unicode.IsGraphic(r) && !unicode.IsSpace(r) {
			return false
		}
		b = b[n:]
	}
	return true
}

func bytesText(n int64) string {
	const k = 1 << 10
	switch {
	case n < 10*k:
		return fmt.Sprintf("%dB", n)
	case n < 10*k*k:
		return fmt.Sprintf("%.1fKiB", float64(n)/k)
	case n < 10*k*k*k:
		return fmt.Sprintf("%.1fMiB", float64(n)/(k*k))
	}
	return fmt.Sprintf("%.1fGiB", float64(n)/(k*k*k))
}

// durationText has milliseconds with three places: one unit, so that columns can be compared.
func durationText(d time.Duration) string {
	return fmt.Sprintf("%.3fms", float64(d)/float64(time.Millisecond))
}

// ranges writes partitions shortly: 0-3,7.
func ranges(partitions []int32) string {
	const most = 10
	var b strings.Builder
	n := 0
	for i := 0; i < len(partitions); {
		j := i
		for j+1 < len(partitions) && partitions[j+1] == partitions[j]+1 {
			j++
		}
		if n++; n > most {
			fmt.Fprintf(&b, ",+%d", len(partitions)-i)
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, partitions[i])
		if j > i {
			fmt.Fprintf(&b, "-%d", partitions[j])
		}
		i = j + 1
	}
	return b.String()
}
