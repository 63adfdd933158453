package metasync

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
)

const (
	// toldErrors is how many errors of a step are told in words; the others are counted.
	toldErrors = 5
	// longestError bounds the text of each, in bytes.
	longestError = 500
)

// bounded makes one error of several, nil of none. Its text goes into the log and into describe, and may be stored with a topic, so its
// length is bounded. It does not depend on the order of errs: a text that differs from the last one is logged again.
func bounded(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &manyErrors{slices.SortedFunc(slices.Values(errs), func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })}
}

// manyErrors are several errors, sorted by their text. All of them are found by errors.Is.
type manyErrors struct{ errs []error }

func (m *manyErrors) Error() string {
	var told []string
	for _, err := range m.errs[:min(len(m.errs), toldErrors)] {
		text := err.Error()
		if len(text) > longestError {
			text = strings.ToValidUTF8(text[:longestError], "") + "..."
		}
		told = append(told, text)
	}
	text := strings.Join(told, "; ")
	if n := len(m.errs) - len(told); n > 0 {
		text = fmt.Sprintf("%s (and %d more)", text, n)
	}
	return text
}

// Unwrap returns all of them.
func (m *manyErrors) Unwrap() []error { return m.errs }

// failures collects the errors of a round. One group's do not keep the others from being synced.
type failures struct {
	mu   sync.Mutex
	errs []error
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// err returns all errors as one, nil without any.
func (f *failures) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bounded(f.errs)
}
