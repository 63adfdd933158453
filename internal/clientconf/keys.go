package clientconf

import (
	"errors"
	"slices"
	"strings"
)

// unusedKeys are the KIP's properties of a mirror that have no effect here: it may well be given a file that was written for Kafka.
var unusedKeys = []string{"mirror.fetch.backoff.ms", "mirror.socket.timeout.ms", "mirror.socket.receive.buffer.bytes"}

// CheckKeys refuses properties that begin with "mirror." and are no properties of a mirror, neither here nor by KIP-1279: what was meant to
// be left out would be mirrored. Other keys may be any of Kafka's clients. The error names the property that was meant, where one is near.
func CheckKeys(props map[string]string) error {
	var wrong []string
	for key := range props {
		switch {
		case !strings.HasPrefix(key, "mirror."), strings.HasPrefix(key, RemoteAdminPrefix):
		case slices.Contains(mirrorKeys, key), slices.Contains(unusedKeys, key):
		default:
			text := key + " is no property of a mirror"
			if near := nearest(key, mirrorKeys); near != "" {
				text += "; is " + near + " meant?"
			}
			wrong = append(wrong, text)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return errors.New(strings.Join(wrong, "; "))
}

// nearest returns the name that a key differs least from, empty where that is more than a third of it.
func nearest(key string, names []string) string {
	best, least := "", len(key)/3+1
	if len(key) > 100 {
		return "" // no slip of the pen
	}
	for _, name := range names {
		if d := distance(key, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete or replace that make one text of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
