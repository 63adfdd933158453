package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/peers"
	"kmirror/internal/wait"
	"kmirror/protocol"
	"kmirror/protocol/kip1279"
)

// lastWords is how long is waited for what a server had to say before it closed; it is there or comes never.
const lastWords = 100 * time.Millisecond

// ClientConfig of a Client.
type ClientConfig struct {
	// Addresses are admin addresses (host:port) of kmirror processes; any of them answers for all.
	Addresses []string
	// TLS makes the configuration of one connection; the host of its address is the ServerName unless that is set. nil: connections are plain.
	TLS func() *tls.Config
	// DialTimeout bounds one attempt to connect, handshakes included (0: 5 s).
	DialTimeout time.Duration
	ClientID    string
	// Waiting runs beside a request that a process has not answered within two seconds, until its context ends, with the answer. nil: nothing
	// does.
	Waiting func(ctx context.Context, address string)
}

// patience is how long a request may take before Waiting runs.
const patience = 2 * time.Second

// Client asks a kmirror process. It keeps one connection, which calls share in turn. It implements Service, so that what
// an operator sees through it is what the Service said.
type Client struct {
	cfg ClientConfig

	mu          sync.Mutex
	conn        net.Conn
	address     string
	first       int // index of the address that is tried first: the last good one, or the one after it once it failed
	correlation int32
}

var _ Service = (*Client)(nil)

// NewClient validates c and connects nowhere.
func NewClient(c ClientConfig) (*Client, error) {
	if len(c.Addresses) == 0 {
		return nil, usage("no admin address given",
			"give --bootstrap-server HOST:PORT (admin in kmirror.yaml) or set KMIRROR_BOOTSTRAP_SERVER")
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.ClientID == "" {
		c.ClientID = "kmirror"
	}
	return &Client{cfg: c}, nil
}

// Close closes the connection.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnect()
}

// Address returns the address that answered last, empty before the first call.
func (c *Client) Address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.address
}

func (c *Client) disconnect() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// CreateMirror implements Service.
func (c *Client) CreateMirror(ctx context.Context, name string, config map[string]string) error {
	req := &kip1279.CreateClusterMirrorRequest{MirrorName: name, Options: mustJSON(createOptions{Repeatable: true})}
	for _, key := range sortedKeys(config) {
		value := config[key]
		req.Config = append(req.Config, kip1279.ConfigEntry{Name: key, Value: &value})
	}
	resp := &kip1279.CreateClusterMirrorResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return err
	}
	return statusError(&resp.Status, resp.Extra)
}

// StartTopics implements Service.
func (c *Client) StartTopics(ctx context.Context, start StartRequest) ([]TopicResult, error) {
	req := &kip1279.StartMirrorTopicsRequest{MirrorName: start.Mirror, StateValidationOffset: -1}
	names, patterns := splitPatterns(start.Topics)
	for _, n := range names {
		req.Topics = append(req.Topics, kip1279.StartTopic{TopicName: n, TopicID: start.TopicIDs[n]})
	}
	req.IncludePatterns = patterns
	names, req.ExcludePatterns = splitPatterns(start.Exclude)
	req.Options = mustJSON(startOptions{Overwrite: start.Overwrite, DryRun: start.DryRun, Exclude: names})
	resp := &kip1279.StartMirrorTopicsResponse{}
	if err := c.call(ctx, req, resp); err != nil {
		return nil, err
	}
	return topicAnswer(resp.Topics, &resp.Status, resp.Extra)
}

// topicAnswer reads an answer that has an entry for each topic.
func topicAnswer(topics []kip1279.TopicOutcome, s *kip1279.Status, extra []byte) ([]TopicResult, error) {
	out, err := outcomesFrom(topics)
	if err != nil {
		return nil, err
	}
	return out, statusError(s, extra)
}

// splitPatterns separates literal names from patterns, which lose their slashes.
func splitPatterns(list []string) (names, patterns []string) {
	for _, e := range list {
		if p, ok := strings.CutPrefix(e, "/"); ok {
			patterns = append(patterns, strings.TrimSuffix(p, "/"))
		} else {
			names = append(names, e)
		}
	}
	return names, patterns
}

// ListMirrors implements Service.
func (c *Client) ListMirrors(ctx context.Context, withTopics bool) ([]MirrorInfo, error) {
	resp := &kip1279.ListClusterMirrorsResponse{}
	if err := c.call(ctx, &kip1279.ListClusterMirrorsRequest{IncludeTopicNames: withTopics}, resp); err != nil {
		return nil, err
	}
	var out []MirrorInfo
	for _, m := range resp.Mirrors {
		var x listedExtra
		if err := readExtra(m.Extra, &x); err != nil {
			return nil, err
		}
		out = append(out, MirrorInfo{Mirror: m.MirrorName, SourceBootstrap: m.SourceBootstrap,
			SourceClusterID: m.SourceClusterID, TopicCount: m.TopicCount, Topics: m.TopicNames, Properties: x.Properties})
	}
	return out, statusError(&resp.Status, resp.Extra)
}

// Describe implements Service.
func (c *Client) Describe(ctx context.Context, req DescribeRequest) ([]PartitionInfo, error) {
	m := &kip1279.DescribeClusterMirrorsRequest{MirrorNames: req.Mirrors}
	if len(req.Topics) > 0 {
		m.Options = mustJSON(describeOptions{Topics: req.Topics})
	}
	resp := &kip1279.DescribeClusterMirrorsResponse{}
	if err := c.call(ctx, m, resp); err != nil {
		return nil, err
	}
	var out []PartitionInfo
	for _, m := range resp.Mirrors {
		if refused, err := mirrorError(m); err != nil || refused != nil {
			return nil, cmp.Or(refused, err)
		}
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				info, err := partitionFrom(m.MirrorName, t.TopicName, p)
				if err != nil {
					return nil, err
				}
				out = append(out, info)
			}
		}
	}
	return out, statusError(&resp.Status, resp.Extra)
}

// Call implements Service.
func (c *Client) Call(ctx context.Context, verb string, payload json.RawMessage) (json.RawMessage, error) {
	resp := &kip1279.KmirrorCallResponse{}
	if err := c.call(ctx, &kip1279.KmirrorCallRequest{Verb: verb, Payload: payload}, resp); err != nil {
		return nil, err
	}
	return resp.Payload, statusError(&resp.Status, resp.Extra)
}

// call sends a request and reads the answer, on the connection there is or on a new one to the first address that answers.
// A request whose connection broke is sent once more, to another process where there is one: every verb may be repeated.
func (c *Client) call(ctx context.Context, req kip1279.Message, resp kip1279.Response) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range 2 {
		if c.conn == nil {
			if err := c.connect(ctx); err != nil {
				return err
			}
		}
		var body []byte
		h := header{key: req.Key()}
		c.beside(ctx, func() {
			body, err = c.roundTrip(ctx, h, func(dst []byte) []byte { return kip1279.Append(dst, req) })
		})
		if err == nil {
			if err = kip1279.Decode(body, resp); err != nil {
				return unreachable(fmt.Sprintf("%s answers in a way that is not understood: %v", c.address, err),
					"use the kmirror command of the version that serves there")
			}
			return nil
		}
		c.disconnect()
		c.first = (c.first + 1) % len(c.cfg.Addresses) // it may hang: the next call asks another
		if ctx.Err() != nil {
			break
		}
	}
	if cause := ctx.Err(); cause != nil {
		return &Error{Code: kip1279.RequestTimedOut, Message: fmt.Sprintf("%s did not answer in time: %v", c.address, cause),
			Hint: "the same command again attaches to what is under way", Exit: ExitIncomplete}
	}
	return unreachable(fmt.Sprintf("connection to %s broke: %v", c.address, err),
		"see the log of kmirror serve; the same command again attaches to what is under way")
}

// beside runs f, and Waiting beside it when it takes long.
func (c *Client) beside(ctx context.Context, f func()) {
	if c.cfg.Waiting == nil {
		f()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	address := c.address
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if wait.For(ctx, patience) {
			c.cfg.Waiting(ctx, address)
		}
	})
	defer waiting.Wait()
	defer cancel()
	f()
}

// Standing asks a process how it is, itself and not others through it.
func (c *Client) Standing(ctx context.Context) (pong peers.Pong, err error) {
	answer, err := c.Call(ctx, VerbPing, []byte("{}"))
	if err == nil {
		err = json.Unmarshal(answer, &pong)
	}
	return pong, err
}

// connect tries each address.
func (c *Client) connect(ctx context.Context) error {
	var errs []string
	hint := "is kmirror serve running there, and is it the address of admin in kmirror.yaml?"
	n := len(c.cfg.Addresses)
	for i := range n {
		at := (c.first + i) % n
		err := c.dial(ctx, c.cfg.Addresses[at])
		if err == nil {
			c.first = at
			return nil
		}
		c.disconnect()
		errs = append(errs, err.Error())
		var e *Error
		if errors.As(err, &e) {
			hint = e.Hint
		}
	}
	return unreachable("no kmirror process answers: "+strings.Join(errs, "; "), hint)
}

// dial connects and makes sure that a kmirror answers. Kafka 4.4 takes key 94 for UnregisterController, so nothing else is
// sent before that is sure.
func (c *Client) dial(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	at := inPlain
	if c.cfg.TLS != nil {
		conf := c.cfg.TLS()
		if conf.ServerName == "" {
			conf.ServerName, _, _ = net.SplitHostPort(address)
		}
		secure := tls.Client(conn, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return firstWords(address, inHandshake, fmt.Errorf("TLS: %w", err))
		}
		conn, at = secure, afterHandshake
	}
	c.conn, c.address = conn, address
	req := kmsg.NewPtrApiVersionsRequest()
	body, err := c.roundTrip(ctx, header{key: keyApiVersions}, req.AppendTo)
	if err != nil {
		return firstWords(address, at, err)
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	if err := resp.ReadFrom(body); err != nil {
		return fmt.Errorf("%s: ApiVersions: %w", address, err)
	}
	isKmirror := slices.ContainsFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
		return k.ApiKey == kip1279.KeyKmirrorCall
	})
	if !isKmirror {
		return unreachable(address+" is a Kafka listener and not a kmirror admin listener",
			"give the address of admin in kmirror.yaml, not that of a broker")
	}
	return nil
}

// firstWords is why the first words with a server failed.
func firstWords(address string, at stage, err error) error {
	if e := tlsTrouble(address, at, err); e != nil {
		return e
	}
	return fmt.Errorf("%s: %w", address, err)
}

// roundTrip sends one request on the connection and returns the body of the answer. When ctx ends the connection can't be
// used any more.
func (c *Client) roundTrip(ctx context.Context, h header, body func(dst []byte) []byte) ([]byte, error) {
	conn := c.conn
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.correlation++
	h.correlation, h.clientID = c.correlation, c.cfg.ClientID
	_, failed := conn.Write(appendRequest(nil, h, body))
	if failed != nil {
		// Where the other side has closed, what it said before tells why.
		conn.SetReadDeadline(time.Now().Add(lastWords))
	}
	frame, err := protocol.ReadFrame(conn, protocol.DefaultMaxFrame, nil)
	if _, alerted := remoteAlert(err); failed != nil && !alerted {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	correlation, answer, err := parseResponse(h, frame)
	if err == nil && correlation != h.correlation {
		err = fmt.Errorf("answer to request %d where %d was asked", correlation, h.correlation)
	}
	return answer, err
}

func unreachable(message, hint string) *Error {
	return &Error{Code: kip1279.CoordinatorNotAvailable, Message: message, Hint: hint, Exit: ExitUnreachable}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
