package testkafka

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Ports are picked below the range from which the kernel takes those of outgoing connections: else a client's connection
// could sit on a node's port while the node is down.
const (
	lowestPort  = 12000
	portTries   = 2000
	defaultHigh = 32768
)

var ports = struct {
	sync.Mutex
	taken map[int]bool
}{taken: map[int]bool{}}

// FreePort returns a loopback TCP port that was free a moment ago and that this process has not been given before.
func FreePort() (int, error) { return FreePorts(1) }

// FreePorts is FreePort for n ports in a row, of which it returns the first.
func FreePorts(n int) (int, error) {
	ports.Lock()
	defer ports.Unlock()
	high := ephemeralLow() - n
tries:
	for range portTries {
		first := lowestPort + rand.IntN(high-lowestPort+1)
		for port := first; port < first+n; port++ {
			if ports.taken[port] || !free(port) {
				continue tries
			}
		}
		for port := first; port < first+n; port++ {
			ports.taken[port] = true
		}
		return first, nil
	}
	return 0, errors.New("testkafka: no free loopback ports found")
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func ephemeralLow() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return defaultHigh
	}
	var low, high int
	if _, err := fmt.Sscan(string(b), &low, &high); err != nil || low <= lowestPort+portTries {
		return defaultHigh
	}
	return low
}

// bindFailed reports whether a node's log says that one of its ports was taken by somebody else.
func bindFailed(log string) bool {
	return strings.Contains(log, "Address already in use") || strings.Contains(log, syscall.EADDRINUSE.Error())
}
