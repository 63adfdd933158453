package testkafka

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"kmirror/protocol"
)

func partitionDir(n *Node, topic string, partition int32) string {
	return filepath.Join(n.LogDir(), protocol.TopicPartition{Topic: topic, Partition: partition}.String())
}

// SegmentFiles returns the paths of a partition's .log files on a node, oldest first; none if the node has no replica.
func SegmentFiles(n *Node, topic string, partition int32) []string {
	entries, err := os.ReadDir(partitionDir(n, topic, partition))
	if err != nil {
		return nil
	}
	var paths []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".log") {
			paths = append(paths, filepath.Join(partitionDir(n, topic, partition), e.Name()))
		}
	}
	slices.Sort(paths)
	return paths
}

// SegmentSums returns the SHA-256 of each .log file of a partition on a node by file name. No replica is an error.
func SegmentSums(n *Node, topic string, partition int32) (map[string]string, error) {
	paths := SegmentFiles(n, topic, partition)
	if len(paths) == 0 {
		return nil, fmt.Errorf("%v has no replica of %s-%d", n, topic, partition)
	}
	sums := make(map[string]string, len(paths))
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		sums[filepath.Base(path)] = hex.EncodeToString(h.Sum(nil))
	}
	return sums, nil
}

// LogBytes is the size of a partition's .log files on a node together, 0 if it has no replica.
func LogBytes(n *Node, topic string, partition int32) int64 {
	var total int64
	for _, path := range SegmentFiles(n, topic, partition) {
		if info, err := os.Stat(path); err == nil {
			total += info.Size()
		}
	}
	return total
}

// Checkpoints returns the high watermarks that a broker last wrote to its disk, which it does every five seconds
// (replica.high.watermark.checkpoint.interval.ms) and at a clean shutdown. A broker that has not yet is no error.
func Checkpoints(n *Node) (map[protocol.TopicPartition]int64, error) {
	rows, err := checkpoint(filepath.Join(n.LogDir(), "replication-offset-checkpoint"), 3)
	if err != nil {
		return nil, err
	}
	marks := make(map[protocol.TopicPartition]int64, len(rows))
	for _, r := range rows {
		partition, err := strconv.ParseInt(r[1], 10, 32)
		if err != nil {
			return nil, err
		}
		offset, err := strconv.ParseInt(r[2], 10, 64)
		if err != nil {
			return nil, err
		}
		marks[protocol.TopicPartition{Topic: r[0], Partition: int32(partition)}] = offset
	}
	return marks, nil
}

// EpochStart says at which offset a leader epoch begins.
type EpochStart struct {
	Epoch  int32
	Offset int64
}

// EpochCheckpoint returns a replica's leader epochs as its broker keeps them on disk, oldest first.
func EpochCheckpoint(n *Node, topic string, partition int32) ([]EpochStart, error) {
	rows, err := checkpoint(filepath.Join(partitionDir(n, topic, partition), "leader-epoch-checkpoint"), 2)
	if err != nil {
		return nil, err
	}
	epochs := make([]EpochStart, len(rows))
	for i, r := range rows {
		epoch, err := strconv.ParseInt(r[0], 10, 32)
		if err != nil {
			return nil, err
		}
		offset, err := strconv.ParseInt(r[1], 10, 64)
		if err != nil {
			return nil, err
		}
		epochs[i] = EpochStart{int32(epoch), offset}
	}
	return epochs, nil
}

// checkpoint reads the rows of a checkpoint file, after its two lines of version and row count. Brokers replace the file
// as a whole, so it is never seen half written. No file: no rows.
func checkpoint(path string, columns int) ([][]string, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(lines) < 2 || lines[0] != "0" || lines[1] != strconv.Itoa(len(lines)-2) {
		return nil, fmt.Errorf("%s is not a checkpoint file of version 0", path)
	}
	var rows [][]string
	for _, line := range lines[2:] {
		row := strings.Fields(line)
		if len(row) != columns {
			return nil, fmt.Errorf("%s: bad line %q", path, line)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// property returns the value of a key in the text of a properties file, "" if it is missing.
func property(text, key string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && k == key {
			return v
		}
	}
	return ""
}
