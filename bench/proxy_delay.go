package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"kmirror/protocol"
)

const (
	// askers send one record at a time each, on a connection by each way.
	askers = 4
	// saturated is for how long they send as fast as they can, measured is how long each run takes.
	saturated = time.Second
	measured  = 10 * time.Second
	small     = "small"
)

// delay measures what a proxy adds to the time that a produce of one record takes, acks=1, at a fifth of the rate that the gateway
// can be made to pass. Every asker goes one way right after the other, so that load from elsewhere meets all of them.
func (r *road) delay(ctx context.Context) error {
	return r.withTopic(ctx, small, func() error {
		if err := r.ahead(); err != nil {
			return err
		}
		most, err := r.ask(ctx, r.ways[1:2], 0, saturated)
		if err != nil {
			return err
		}
		rate := float64(len(most[0])) / saturated.Seconds() / 5
		fmt.Printf("Produce of one record of 100 bytes at %.0f a second, a fifth of what goes through kmirror; µs (p50/p99/samples):\n", rate)
		added := make([][][2]float64, len(r.ways))
		for i := range r.runs + 1 {
			took, err := r.ask(ctx, r.ways, rate, measured)
			if err != nil {
				return err
			}
			line := ""
			for at, w := range r.ways {
				line += fmt.Sprintf("  %s %.0f/%.0f/%d", w.name, took[at].q(0.5), took[at].q(0.99), len(took[at]))
				if at > 0 && i > 0 {
					added[at] = append(added[at], [2]float64{(took[at].q(0.5) - took[0].q(0.5)) / 1000, (took[at].q(0.99) - took[0].q(0.99)) / 1000})
				}
			}
			what := fmt.Sprintf("run %d", i)
			if i == 0 {
				what = "warm-up"
			}
			fmt.Printf("  %-8s%s\n", what, line)
		}
		for at, w := range r.ways {
			if at == 0 {
				continue
			}
			figure(w.name+" adds at p50, ms", median(added[at], func(a [2]float64) float64 { return a[0] }))
			p99 := median(added[at], func(a [2]float64) float64 { return a[1] })
			if at == 1 {
				bar(w.name+" adds at p99, ms", p99, "<", addedBar)
			} else {
				figure(w.name+" adds at p99, ms", p99)
			}
		}
		return nil
	})
}

// ahead puts the broker, the proxies and this process before all else that the machine does, if that is wanted: without it, p99 on a
// machine with other work tells how long that work has the cores. At a fifth of saturation others have most of them all the same.
func (r *road) ahead() error {
	if !r.realtime {
		return nil
	}
	pids := []int{os.Getpid(), r.c.Node(1).PID()}
	for _, w := range r.ways[1:] {
		pids = append(pids, w.pid)
	}
	for _, pid := range pids {
		if out, err := exec.Command("chrt", "--all-tasks", "--rr", "--pid", "5", strconv.Itoa(pid)).CombinedOutput(); err != nil {
			return fmt.Errorf("-realtime: %w\n%s", err, out)
		}
	}
	return nil
}

// ask has all askers send for some time, rate times a second altogether, 0: as fast as they can, and returns how long it took by each
// way, in µs, sorted.
func (r *road) ask(ctx context.Context, ways []way, rate float64, d time.Duration) ([]delays, error) {
	frame, err := r.smallProduce(ctx)
	if err != nil {
		return nil, err
	}
	var tickets atomic.Int64
	begin := time.Now()
	all := make([][]delays, askers)
	g, ctx := errgroup.WithContext(ctx)
	for i := range askers {
		all[i] = make([]delays, len(ways))
		g.Go(func() error { return asker(ctx, ways, all[i], frame, begin, d, rate, &tickets) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	sum := make([]delays, len(ways))
	for at := range ways {
		for i := range askers {
			sum[at] = append(sum[at], all[i][at]...)
		}
		if slices.Sort(sum[at]); len(sum[at]) < 100 {
			return nil, fmt.Errorf("only %d records in %s by %s", len(sum[at]), d, ways[at].name)
		}
	}
	return sum, nil
}

// asker takes a turn (one record by each way) at a time, when it is due.
func asker(ctx context.Context, ways []way, took []delays, frame []byte, begin time.Time, d time.Duration, rate float64,
	tickets *atomic.Int64) error {
	conns := make([]net.Conn, len(ways))
	readers := make([]*bufio.Reader, len(ways))
	for at, w := range ways {
		nc, err := net.Dial("tcp", w.addr)
		if err != nil {
			return err
		}
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(d + time.Minute)); err != nil {
			return err
		}
		conns[at], readers[at] = nc, bufio.NewReader(nc)
	}
	var reply []byte
	for ctx.Err() == nil {
		turn := tickets.Add(1) - 1
		due := begin
		if rate > 0 {
			due = begin.Add(time.Duration(float64(turn) * float64(len(ways)) / rate * float64(time.Second)))
		}
		if due.Sub(begin) > d || time.Since(begin) > d {
			return nil
		}
		time.Sleep(time.Until(due))
		for n := range ways {
			at := (n + int(turn)) % len(ways)
			start := time.Now()
			if _, err := conns[at].Write(frame); err != nil {
				return err
			}
			var err error
			if reply, err = protocol.ReadFrame(readers[at], 1<<20, reply); err != nil {
				return fmt.Errorf("%s: %w", ways[at].name, err)
			}
			took[at] = append(took[at], float64(time.Since(start).Nanoseconds())/1000)
		}
	}
	return ctx.Err()
}

// smallProduce is the frame of a Produce request with one record, which a client library is made to encode. It has been answered
// without an error once.
func (r *road) smallProduce(ctx context.Context) (frame []byte, err error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.c.Bootstrap("CLIENT")...))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, 1, 10_000
	t, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	t.Topic, p.Records = small, oneRecord(make([]byte, 100))
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	b := req.AppendTo(protocol.AppendRequestHeader(nil, protocol.RequestHeader{Key: 0, Version: 9, CorrelationID: 7}))
	nc, err := net.Dial("tcp", r.ways[0].addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	frame = append(kbin.AppendInt32(nil, int32(len(b))), b...)
	return frame, until(ctx, 10*time.Second, func() (bool, error) { // the partition needs its leader
		if _, err := nc.Write(frame); err != nil {
			return false, err
		}
		reply, err := protocol.ReadFrame(nc, 1<<20, nil)
		if err != nil {
			return false, err
		}
		_, body, err := protocol.ParseResponseHeader(0, 9, reply)
		if err != nil {
			return false, err
		}
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = 9
		if err := resp.ReadFrom(body); err != nil {
			return false, err
		}
		return resp.Topics[0].Partitions[0].ErrorCode == 0, nil
	})
}

// oneRecord is a batch of one record.
func oneRecord(value []byte) []byte {
	rec := kmsg.Record{Value: value}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // less the length itself, which is one byte for now
	records := rec.AppendTo(nil)
	b := kmsg.RecordBatch{Magic: 2, PartitionLeaderEpoch: -1, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: records}
	const beforeLength, beforeCRC = 12, 17
	whole := b.AppendTo(nil)
	binary.BigEndian.PutUint32(whole[beforeLength-4:], uint32(len(whole)-beforeLength))
	binary.BigEndian.PutUint32(whole[beforeCRC:], crc32.Checksum(whole[beforeCRC+4:], crc32.MakeTable(crc32.Castagnoli)))
	return whole
}
