package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/internal/clientconf"
	"kmirror/internal/trace"
	"kmirror/internal/trace/pcap"
	"kmirror/internal/trace/relay"
	"kmirror/protocol/kip1279"
)

// traceFlags are the flags of trace.
type traceFlags struct {
	listen, upstream, upstreamConfig string
	pcap, ports                      string
	format                           string
	payload                          bool
	payloadLimit                     byteSize

	apis, clientID, principal, topic string
	errors                           bool
	minDuration                      time.Duration

	connections      int
	maxFrame, memory byteSize

	// key is how errors name a flag; nil: as it is given on the command line.
	key func(flag string) string
}

// named is how errors name a flag.
func (f *traceFlags) named(flag string) string {
	if f.key != nil {
		return f.key(flag)
	}
	return "--" + flag
}

func newTraceCommand(c *cli) *cobra.Command {
	f := traceFlags{payloadLimit: 1 << 20, maxFrame: trace.DefaultFrame, memory: 64 << 20}
	cmd := &cobra.Command{
		Use: "trace --listen ADDR --upstream ADDR | --pcap FILE", Short: "Show what Kafka clients and a broker say to each other",
		Long: `Show every request and response between Kafka clients and one broker, decoded, as a proxy in front of the broker or
from a capture (pcap, pcapng; - is stdin). Ends with a summary; Ctrl-C ends a proxy.

The proxy changes no byte. Addresses that brokers tell clients are not rewritten either: a client that learns the broker's own
address goes there and is not seen any more. Have the broker advertise the address of --listen (advertised.listeners), in a
cluster with one trace for each broker. The listening side is plain; TLS to the broker is set by --upstream-config.
A slow output never holds traffic up: messages are left out of the trace then, and counted.

A line is: time, #connection, > request or < response, API and version, correlation id, client id, principal as SASL told it,
size, duration, fields, topics[partitions], errors (!topic-partition:NAME), {record batches}.
Credentials are never shown: SASL tokens, SCRAM and delegation token secrets, values of configs whose name sounds like one.
--errors and --min-duration show responses only. The summary counts all that passed, whatever the filters.
Regular expressions (RE2) match anywhere in the text.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.output == "json" && !cmd.Flags().Changed("format") {
				f.format = c.output
			}
			return c.trace(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "", "address that clients connect to, host:port")
	flags.StringVar(&f.upstream, "upstream", "", "address of the broker, host:port")
	flags.StringVar(&f.upstreamConfig, "upstream-config", "",
		"client properties with the TLS settings for the broker; SASL is the client's own")
	flags.StringVar(&f.pcap, "pcap", "", "read a capture instead, - for stdin")
	flags.StringVar(&f.ports, "port", "", "with --pcap: ports of brokers, separated by commas (default: all connections)")
	flags.StringVar(&f.format, "format", string(trace.Line), "line, pretty (all values) or json (an object a line with everything)")
	flags.BoolVar(&f.payload, "payload", false, "show keys, values and headers of records")
	flags.Var(&f.payloadLimit, "payload-limit", "what the records of one message may take, decompressed")
	flags.StringVar(&f.apis, "api", "", "only these APIs: names or keys, separated by commas")
	flags.StringVar(&f.clientID, "client-id", "", "only client ids that match")
	flags.StringVar(&f.principal, "principal", "", "only principals that match, such as User:alice")
	flags.StringVar(&f.topic, "topic", "", "only messages with a topic that matches")
	flags.BoolVar(&f.errors, "errors", false, "only responses with an error code")
	flags.DurationVar(&f.minDuration, "min-duration", 0, "only responses that took as long, such as 100ms")
	flags.IntVar(&f.connections, "max-connections", 1000, "with --listen: further connections are closed")
	flags.Var(&f.maxFrame, "max-frame", "larger frames are passed on without being decoded")
	flags.Var(&f.memory, "memory", "with --listen: what may wait to be decoded and written")
	return cmd
}

func (c *cli) trace(ctx context.Context, f traceFlags) error {
	reporter, err := f.reporter(c.out)
	if err != nil {
		return err
	}
	live := f.listen != "" || f.upstream != "" || f.upstreamConfig != ""
	switch {
	case live == (f.pcap != ""):
		return usageError("trace needs --listen and --upstream, or --pcap", "see kmirror trace --help")
	case f.pcap != "":
		err = c.tracePcap(ctx, f, reporter)
	default:
		err = c.traceLive(ctx, f, reporter)
	}
	var usage *admin.Error
	if errors.As(err, &usage) {
		return err
	}
	if e := reporter.Stats.Write(c.out, reporter.Format, time.Now()); err == nil {
		err = e
	}
	return err
}

// reporter checks what both ways of tracing share.
func (f *traceFlags) reporter(out io.Writer) (*trace.Reporter, error) {
	r := &trace.Reporter{Stats: trace.NewStats(), Out: out}
	var err error
	if r.Format, err = trace.ParseFormat(f.format); err != nil {
		return nil, usageError(f.named("format")+": "+err.Error(), "use line, pretty or json")
	}
	for _, limit := range []struct {
		flag        string
		value, most int64
	}{
		{"max-frame", int64(f.maxFrame), 1 << 30}, {"memory", int64(f.memory), 1 << 40}, {"payload-limit", int64(f.payloadLimit), 1 << 30},
		{"max-connections", int64(f.connections), 1 << 30}, {"min-duration", int64(f.minDuration) + 1, math.MaxInt64},
	} {
		if limit.value <= 0 || limit.value > limit.most {
			return nil, usageError(f.named(limit.flag)+": a limit is negative, zero or too high", "see kmirror trace --help")
		}
	}
	r.Decoder = trace.NewDecoder(trace.DecoderConfig{Payload: f.payload, PayloadBytes: int(f.payloadLimit)})
	r.Filter = trace.Filter{Errors: f.errors, MinDuration: f.minDuration}
	if f.apis != "" {
		if r.Filter.APIs, err = trace.ParseAPIs(f.apis); err != nil {
			return nil, usageError(f.named("api")+": "+err.Error(), "use names such as Produce,Fetch")
		}
	}
	for _, re := range []struct {
		flag, text string
		to         **regexp.Regexp
	}{
		{"client-id", f.clientID, &r.Filter.ClientID}, {"principal", f.principal, &r.Filter.Principal},
		{"topic", f.topic, &r.Filter.Topic},
	} {
		if re.text == "" {
			continue
		}
		if *re.to, err = regexp.Compile(re.text); err != nil {
			return nil, usageError(f.named(re.flag)+": "+err.Error(), "write a regular expression of RE2")
		}
	}
	return r, nil
}

func (c *cli) traceLive(ctx context.Context, f traceFlags, reporter *trace.Reporter) error {
	if f.listen == "" || f.upstream == "" {
		return usageError("trace needs both --listen and --upstream", "see kmirror trace --help")
	}
	dial, err := f.dialer()
	if err != nil {
		return err
	}
	listen, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return usageError("--listen: "+err.Error(), "give a free address of this machine, host:port")
	}
	log := slog.New(slog.NewTextHandler(c.err, nil))
	reporter.Seen = newAround(f.listen, listen, log).look
	r, err := relay.New(relay.Config{Listen: listen, Dial: dial, Server: f.upstream, Reporter: reporter, Log: log,
		MaxConnections: f.connections, MaxFrame: int(f.maxFrame), Memory: int64(f.memory)})
	if err != nil {
		listen.Close()
		return err
	}
	c.note(fmt.Sprintf("trace: %s -> %s", listen.Addr(), f.upstream))
	return r.Run(ctx)
}

// dialer connects to the broker, by TLS if the properties say so.
func (f *traceFlags) dialer() (func(context.Context) (net.Conn, error), error) {
	const timeout = 10 * time.Second
	servers, err := clientconf.Servers(f.upstream)
	if err == nil && len(servers) != 1 {
		err = fmt.Errorf("%d addresses", len(servers))
	}
	if err != nil {
		return nil, usageError("--upstream: "+err.Error(), "give one host:port")
	}
	plain := &net.Dialer{Timeout: timeout}
	if f.upstreamConfig == "" {
		return func(ctx context.Context) (net.Conn, error) { return plain.DialContext(ctx, "tcp", f.upstream) }, nil
	}
	props, err := readProperties(f.upstreamConfig)
	if err != nil {
		return nil, err
	}
	conf, err := clientconf.ClientTLS(props, nil)
	if err != nil {
		return nil, usageError("--upstream-config: "+err.Error(), "correct "+f.upstreamConfig)
	}
	if conf == nil {
		return func(ctx context.Context) (net.Conn, error) { return plain.DialContext(ctx, "tcp", f.upstream) }, nil
	}
	dial := clientconf.Dialer(conf, timeout)
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, "tcp", f.upstream) }, nil
}

func (c *cli) tracePcap(ctx context.Context, f traceFlags, reporter *trace.Reporter) error {
	ports, err := parsePorts(f.ports)
	if err != nil {
		return err
	}
	var in io.Reader
	if f.pcap == "-" {
		var done func()
		in, done = untilDone(ctx, c.in)
		defer done()
	} else {
		file, err := os.Open(f.pcap)
		if err != nil {
			return usageError("--pcap: "+err.Error(), "give a file that tcpdump -w or Wireshark wrote")
		}
		defer file.Close()
		in = file
	}
	var written error
	var a *pcap.Assembler
	a = pcap.NewAssembler(pcap.Config{Ports: ports, MaxFrame: int(f.maxFrame), Emit: func(m *trace.Message) {
		reporter.Stats.Message(m)
		if written == nil {
			written = reporter.Report(m)
		}
		a.Budget().Give(m.Charge)
	}})
	r, err := pcap.NewReader(bufio.NewReader(in))
	for packets := 0; err == nil && ctx.Err() == nil && written == nil; packets++ {
		var p pcap.Packet
		if p, err = r.Next(); err == nil {
			a.Packet(p)
		}
	}
	a.Close()
	if a.Skipped > 0 {
		c.note(fmt.Sprintf("trace: %d packets are no TCP over IP that could be read", a.Skipped))
	}
	switch {
	case written != nil:
		return written
	case ctx.Err() != nil: // what was read is all that was wanted
	case errors.Is(err, io.ErrUnexpectedEOF):
		c.note("trace: the capture ends within a packet")
	case err != nil && !errors.Is(err, io.EOF):
		return &admin.Error{Code: kip1279.InvalidRequest, Message: "--pcap: " + err.Error(),
			Hint: "give a file that tcpdump -w or Wireshark wrote", Exit: admin.ExitUsage}
	}
	return nil
}

// untilDone is in until ctx ends, and its end from then on: reading a pipe or a terminal can't be cut short, and what waits for it then
// ends with the process. done is to be called when nothing is read any more.
func untilDone(ctx context.Context, in io.Reader) (out io.Reader, done func()) {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { w.Close() })
	return r, func() { stop(); r.Close() }
}

func parsePorts(list string) (ports []uint16, err error) {
	for field := range strings.SplitSeq(list, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		n, err := strconv.ParseUint(field, 10, 16)
		if err != nil || n == 0 {
			return nil, usageError(fmt.Sprintf("--port: %q is no port", field), "write 9092,9093")
		}
		if !slices.Contains(ports, uint16(n)) {
			ports = append(ports, uint16(n))
		}
	}
	return ports, nil
}
