package trace

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"kmirror/protocol"
)

// Filter says which events are shown. The zero value shows all.
type Filter struct {
	// APIs are the keys that are shown, nil for all.
	APIs map[int16]bool
	// ClientID, Principal and Topic match anywhere in the text. A response also counts as one that names a topic of its
	// request. Tokens and connections have no client id.
	ClientID, Principal, Topic *regexp.Regexp
	// Errors shows responses with an error code only, MinDuration those that took as long.
	Errors      bool
	MinDuration time.Duration
}

// ParseAPIs reads names or keys of APIs, separated by commas; upper and lower case are the same.
func ParseAPIs(list string) (map[int16]bool, error) {
	byName := make(map[string]int16)
	for _, api := range protocol.APIs() {
		byName[strings.ToLower(api.Name)] = api.Key
	}
	keys := make(map[int16]bool)
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		key, ok := byName[strings.ToLower(name)]
		if n, err := strconv.ParseInt(name, 10, 16); err == nil && n >= 0 {
			key, ok = int16(n), true
		}
		if !ok {
			return nil, fmt.Errorf("%q is no API of Kafka", name)
		}
		keys[key] = true
	}
	return keys, nil
}

// Match reports whether an event is to be shown. Notes always are: they tell what else is missing.
func (f *Filter) Match(e *Event) bool {
	topic := f.Topic == nil || f.topic(e)
	switch {
	case e.Kind == Note:
		return true
	case e.Kind == Opened || e.Kind == Closed:
		return f.APIs == nil && f.ClientID == nil && f.Topic == nil && !f.Errors && f.MinDuration <= 0 &&
			(f.Principal == nil || e.Kind == Closed && f.Principal.MatchString(e.Principal))
	case !topic,
		f.APIs != nil && (!f.APIs[e.Header.Key] || e.Token || e.Unmatched),
		f.ClientID != nil && (e.Header.ClientID == nil || !f.ClientID.MatchString(*e.Header.ClientID)),
		f.Principal != nil && !f.Principal.MatchString(e.Principal),
		f.Errors && e.ErrorCount == 0,
		f.MinDuration > 0 && (e.Kind != Response || e.Unmatched || e.Duration < f.MinDuration):
		return false
	}
	return true
}

func (f *Filter) topic(e *Event) bool {
	if e.exchange != nil && e.Kind == Response && e.exchange.topicMatch {
		return true
	}
	for _, t := range e.Topics {
		if f.Topic.MatchString(t.Name) {
			if e.exchange != nil {
				e.exchange.topicMatch = true
			}
			return true
		}
	}
	return false
}
