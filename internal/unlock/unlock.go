package unlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol/kip1279"
)

// Config of an Unlocker.
type Config struct {
	// Opts make a client of the destination.
	Opts []kgo.Opt
	// Bootstrap is how the destination is named in commands that are printed.
	Bootstrap string
	// ClusterID pins the destination; empty: any.
	ClusterID string
	// NodeIDs are all ids of kmirror that are known. Ids of other processes are recognised while those are alive; a dead one that
	// is not given here is taken for a dead broker, which is never put into a replica list.
	NodeIDs []int32
	// Topics are names and /re/ (admin.NewMatcher).
	Topics []string
	// Force goes on although a kmirror leads; with DryRun nothing is changed and that does no harm either.
	Force, DryRun bool
	// Note is told what goes on, a sentence a time; nil for none.
	Note func(format string, args ...any)
}

// Bounds of waiting.
const (
	// sessionLimit covers the controller's sessions of a kmirror that was killed a moment ago: 9 s by default, and then it fences
	// about one broker a second.
	sessionLimit = 30 * time.Second
	// retryLimit bounds one request, over all brokers that are tried for it.
	retryLimit = 15 * time.Second
	// dialLimit bounds the look whether a kmirror listens.
	dialLimit = 2 * time.Second
	// stateLimit bounds the reading of __mirror_state.
	stateLimit = 20 * time.Second
	// stepLimit bounds the waiting of one step over all topics.
	stepLimit = 60 * time.Second
)

// Unlocker gives topics back. It is used once: New, Look, Do, Close.
type Unlocker struct {
	cfg     Config
	match   *admin.Matcher
	client  *kgo.Client
	adm     *kadm.Client
	cluster cluster
	work    []*task
}

// task is one topic that is given back.
type task struct {
	plan *TopicPlan
	// wanted real replicas each partition, 0 when nobody remembers.
	wanted int
	// before are the real replicas of each partition as they were found.
	before [][]int32
	// borrowed is, by partition, a broker that was added only to make the controller look at the partition; -1: none.
	borrowed []int32
	// size and minISR are to be written, trueSize and trueMinISR then, "" for none.
	size, minISR         bool
	trueSize, trueMinISR string
	// waiting says what is not there yet; a topic with an error takes no part in further steps.
	waiting []string
	err     error
}

// New makes an Unlocker; it connects when it is first used.
func New(c Config) (*Unlocker, error) {
	match, err := admin.NewMatcher(c.Topics)
	if err != nil {
		return nil, err
	}
	if c.Note == nil {
		c.Note = func(string, ...any) {}
	}
	u := &Unlocker{cfg: c, match: match, cluster: cluster{guests: map[int32]bool{}, load: map[int32]int{}}}
	for _, id := range c.NodeIDs {
		u.cluster.guests[id] = true
	}
	u.client, err = kgo.NewClient(append(slices.Clone(c.Opts), kgo.RetryTimeout(retryLimit),
		kgo.MetadataMinAge(100*time.Millisecond))...)
	if err != nil {
		return nil, err
	}
	u.adm = kadm.NewClient(u.client)
	return u, nil
}

// Close ends the connections.
func (u *Unlocker) Close() { u.client.Close() }

// Look finds the topics that carry the lock, or a piece of it, and what has to be done. It changes nothing. Errors are
// *admin.Error: unreachable, a topic that is not there, or a kmirror that leads still.
func (u *Unlocker) Look(ctx context.Context) ([]*TopicPlan, error) {
	if err := u.brokers(ctx); err != nil {
		return nil, err
	}
	if u.cfg.ClusterID != "" && u.cfg.ClusterID != u.cluster.id {
		return nil, refused(fmt.Sprintf("the destination is cluster %s, cluster_id pins %s", u.cluster.id, u.cfg.ClusterID),
			"correct one of the two; nothing was changed")
	}
	if err := u.findGuests(ctx); err != nil {
		return nil, err
	}
	names, err := u.resolve(ctx)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	seen, err := u.topics(ctx, names)
	if err != nil {
		return nil, err
	}
	known, unreadable := u.remembered(ctx)
	for _, name := range names {
		if t := seen[name]; t != nil {
			if k := u.task(name, t, known, unreadable); k != nil {
				u.work = append(u.work, k)
			}
		}
	}
	if err := u.guard(ctx, seen); err != nil {
		return nil, err
	}
	u.producers(ctx)
	var out []*TopicPlan
	for _, k := range u.work {
		out = append(out, k.plan)
	}
	return out, nil
}

// resolve returns the names of the topics that the list selects, and counts the replicas of all brokers.
func (u *Unlocker) resolve(ctx context.Context) ([]string, error) {
	all, err := u.adm.ListTopicsWithInternal(ctx)
	if err != nil {
		return nil, unreachable("the topics of the destination", err)
	}
	var names []string
	for name, d := range all {
		if u.match.Match(name) {
			names = append(names, name)
		}
		for _, p := range d.Partitions {
			for _, id := range p.Replicas {
				u.cluster.load[id]++
			}
		}
	}
	for _, name := range u.match.Literals() {
		if !slices.Contains(names, name) {
			return nil, &admin.Error{Code: kerr.UnknownTopicOrPartition.Code,
				Message: fmt.Sprintf("there is no topic %s at the destination", name),
				Hint:    "see kafka-topics.sh --list; the principal of destination.client needs DESCRIBE on it", Exit: admin.ExitUsage}
		}
	}
	slices.Sort(names)
	return names, nil
}

// remembered reads what __mirror_state says of topics. When it can't be read the reason is returned.
func (u *Unlocker) remembered(ctx context.Context) (map[string]coordinator.Topic, string) {
	ctx, cancel := context.WithTimeout(ctx, stateLimit)
	defer cancel()
	s, err := coordinator.ReadSnapshot(ctx, u.cfg.Opts, "")
	if err != nil {
		if errors.Is(err, coordinator.ErrNoState) {
			return nil, "the destination has no topic " + coordinator.DefaultTopic
		}
		return nil, err.Error()
	}
	out := map[string]coordinator.Topic{}
	for _, t := range s.Topics() {
		out[t.TopicID.String()] = t
	}
	return out, ""
}

// guard refuses while a kmirror is alive and leads. One that was killed is held alive by the controller for some seconds: where
// nobody listens at its address it is waited for.
func (u *Unlocker) guard(ctx context.Context, seen map[string]*topic) error {
	if u.cfg.Force || u.cfg.DryRun {
		if leader, name := u.leading(seen); leader >= 0 {
			u.cfg.Note("kmirror serve seems to run: its node %d leads partitions of %s. kmirror failover loses less; unlock is for when serve is lost, "+
				"and goes on only with --force while it runs", leader, name)
		}
		return nil
	}
	var names []string
	for _, k := range u.work {
		names = append(names, k.plan.Topic)
	}
	end := time.Now().Add(sessionLimit)
	for wait, said := newPause(), false; ; said = true {
		leader, name := u.leading(seen)
		if leader < 0 {
			return nil
		}
		if time.Now().After(end) || u.listens(ctx, leader) {
			return refused(fmt.Sprintf("kmirror serve is running: its node %d is alive and leads partitions of %s", leader, name),
				"use kmirror failover, which loses less; or stop serve; --force goes on in spite of it")
		}
		if !said {
			u.cfg.Note("kmirror's node %d does not answer; waiting up to %s for the controller to see that it is dead", leader,
				sessionLimit)
		}
		if err := wait.next(ctx); err != nil {
			return err
		}
		if err := u.brokers(ctx); err != nil {
			return err
		}
		var err error
		if seen, err = u.topics(ctx, names); err != nil {
			return err
		}
	}
}

// listens reports whether somebody accepts connections at the address of a live broker.
func (u *Unlocker) listens(ctx context.Context, id int32) bool {
	d := net.Dialer{Timeout: dialLimit}
	conn, err := d.DialContext(ctx, "tcp", u.cluster.addrs[id])
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// leading returns a live guest that leads a partition of ours, and the topic; -1 when there is none.
func (u *Unlocker) leading(seen map[string]*topic) (int32, string) {
	for _, k := range u.work {
		t := seen[k.plan.Topic]
		if t == nil {
			continue
		}
		for _, p := range t.parts {
			if u.cluster.guests[p.leader] && u.cluster.live[p.leader] {
				return p.leader, k.plan.Topic
			}
		}
	}
	return -1, ""
}

// unreachable is an error of talking to the destination.
func unreachable(what string, err error) error {
	var known *admin.Error
	if errors.As(err, &known) {
		return err
	}
	return &admin.Error{Code: -1, Message: fmt.Sprintf("%s: %v", what, strings.TrimSpace(err.Error())), Exit: admin.ExitUnreachable,
		Hint: "check destination.bootstrap_servers, the security settings and rights of destination.client (ALTER and DESCRIBE on the " +
			"cluster, ALTER_CONFIGS and DESCRIBE_CONFIGS on the topics); what was done stays done, run the command again"}
}

func refused(message, hint string) error {
	return &admin.Error{Code: kip1279.PolicyViolation, Message: message, Hint: hint, Exit: admin.ExitRefused}
}
