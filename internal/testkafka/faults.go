package testkafka

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// faultLine matches what no node of a healthy cluster ever logs: fault handlers of controllers and brokers, the
// controller that resigns because of an internal error, its broken index of in-sync replicas, and a full heap.
var faultLine = regexp.MustCompile(`Encountered (\S+ )+fault: ` +
	`|existed in isrMembers, but not in the (topics|partitions) map` +
	`|treated as UnknownServerException` +
	`|java\.lang\.OutOfMemoryError`)

// A follower's fetcher logs failedLine when it gives a partition up until the next leader epoch. It does so in passing,
// too, when the leader knows of a new epoch before it does: then fencedLine comes first and, within moments, epochLine
// with a higher epoch, or deletedLine where the replica was dropped with that epoch. When its broker learns of the epoch at
// the same moment, epochLine may come before all of that, but the fetcher for the new epoch, addedFetcher, does not.
var (
	failedLine   = regexp.MustCompile(`Partition (\S+) marked as failed`)
	fencedLine   = regexp.MustCompile(`Partition (\S+) has an older epoch \((\d+)\) than the current leader`)
	epochLine    = regexp.MustCompile(`(?:Leader|Follower) (\S+) .*starts at leader epoch (\d+) `)
	deletedLine  = regexp.MustCompile(`Log for partition (\S+) is renamed to \S+-delete and is scheduled for deletion`)
	addedFetcher = regexp.MustCompile(`([^\s(]+) -> InitialFetchState\([^\]]*\],(\d+),`)
)

// telling are what one of the patterns above can match: most lines of a log have none of them, and need no more than this look.
var telling = []string{"fault: ", "isrMembers", "UnknownServerException", "OutOfMemoryError", "marked as failed", "has an older epoch",
	"starts at leader epoch", "scheduled for deletion", "InitialFetchState("}

// Faults returns the log lines of all nodes that tell of a fault, and the nodes that ended without being asked, each
// with the node it belongs to. Lines allowed by AllowFaults are left out.
func (c *Cluster) Faults() []string {
	var faults []string
	for _, n := range c.nodes {
		for _, line := range n.faults() {
			faults = append(faults, fmt.Sprintf("%v: %s", n, line))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(faults, func(line string) bool {
		return slices.ContainsFunc(c.allowed, func(a string) bool { return strings.Contains(line, a) })
	})
}

// AllowFaults makes Faults leave out lines that contain substr, for tests that provoke them.
func (c *Cluster) AllowFaults(substr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allowed = append(c.allowed, substr)
}

func (n *Node) faults() []string {
	n.mu.Lock()
	n.noteDeath()
	var faults []string
	for _, state := range n.died {
		faults = append(faults, "ended by itself: "+state)
	}
	n.mu.Unlock()
	f, err := os.Open(n.Log())
	if err != nil {
		return append(faults, err.Error())
	}
	defer f.Close()
	found, err := scanFaults(f)
	if err != nil {
		faults = append(faults, fmt.Sprintf("%s: %v", n.Log(), err))
	}
	return append(faults, found...)
}

// scanFaults returns the fault lines of a node's log in order.
func scanFaults(log io.Reader) ([]string, error) {
	var faults []string
	fenced := map[string]int{}    // partition -> epoch it was fenced at, until marked as failed
	waiting := map[string]fault{} // partitions given up because of an epoch that is yet to come
	r := bufio.NewReader(log)
	for {
		line, err := r.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if !slices.ContainsFunc(telling, func(s string) bool { return strings.Contains(line, s) }) {
			line = ""
		}
		if m := fencedLine.FindStringSubmatch(line); m != nil {
			fenced[m[1]], _ = strconv.Atoi(m[2])
		} else if m := failedLine.FindStringSubmatch(line); m != nil {
			if epoch, ok := fenced[m[1]]; ok {
				waiting[m[1]] = fault{line, epoch}
				delete(fenced, m[1])
			} else {
				faults = append(faults, line)
			}
		} else if m := epochLine.FindStringSubmatch(line); m != nil {
			if epoch, _ := strconv.Atoi(m[2]); epoch > waiting[m[1]].epoch {
				delete(waiting, m[1])
			}
		} else if m := deletedLine.FindStringSubmatch(line); m != nil {
			delete(waiting, m[1])
		} else if faultLine.MatchString(line) {
			faults = append(faults, line)
		} else if len(waiting) > 0 {
			for _, m := range addedFetcher.FindAllStringSubmatch(line, -1) {
				if epoch, _ := strconv.Atoi(m[2]); epoch > waiting[m[1]].epoch {
					delete(waiting, m[1])
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return faults, err
		}
	}
	for _, f := range waiting {
		faults = append(faults, f.line)
	}
	return faults, nil
}

type fault struct {
	line  string
	epoch int
}
