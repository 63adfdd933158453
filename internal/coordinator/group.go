package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// groupPrefix and the state topic's name make the group id.
	groupPrefix = "kmirror-state-"
	// protocolName is that of our way to assign; a change of what members tell each other needs another.
	protocolName = "kmirror"
	// sessionTimeout is the least that brokers allow (group.min.session.timeout.ms).
	sessionTimeout = 6 * time.Second
	// rebalanceTimeout is how long the group waits for members that do not come back when it is formed anew.
	rebalanceTimeout = 3 * time.Second
	heartbeatEvery   = 500 * time.Millisecond
	heartbeatLimit   = 3 * time.Second
	// deafFor is how long the group may be out of reach before this process goes on without it.
	deafFor   = 10 * time.Second
	deafAfter = 4 // attempts
	// joinLimit bounds one attempt to join; a new group waits for more members first (group.initial.rebalance.delay.ms, 3 s).
	joinLimit  = 30 * time.Second
	leaveLimit = 2 * time.Second
	// deniedEvery is the pause between attempts that only an operator can make succeed.
	deniedEvery = 30 * time.Second
)

// memberJSON is what a member tells the others, as the user data of its subscription and of assignments. Members read it from
// versions of kmirror next to theirs.
type memberJSON struct {
	ProcessID  string  `json:"process_id"`
	Admin      string  `json:"admin"`
	NodeIDs    []int32 `json:"node_ids"`
	Partitions []int32 `json:"partitions,omitempty"`
}

// errRejoin: the group is formed anew. errExpelled: it does not know us any more. errUnregistered: the destination does not.
var (
	errRejoin       = errors.New("the group is formed anew")
	errExpelled     = errors.New("not a member of the group")
	errUnregistered = errors.New("not registered with the destination")
)

// membership keeps this process in the group until ctx ends. It speaks the group protocol itself: kgo's group client would read
// the topic once more, and tells only the group's leader who the members are.
func (c *cluster) membership(ctx context.Context) error {
	id := ""
	for back := retryFirst; ; back = min(2*back, retryMost) {
		if !c.awaitStanding(ctx) {
			break
		}
		err := c.session(ctx, &id)
		if ctx.Err() != nil {
			break
		}
		var k *kerr.Error
		switch {
		case errors.Is(err, errRejoin):
			back = retryFirst / 4
		case errors.Is(err, errUnregistered):
			back = retryFirst / 4
			c.log.Warn("this process leaves the others: none of its node ids is registered by it any more", "group", c.group)
			c.leave(ctx, id)
			id = ""
			c.agreed(nil)
		case errors.Is(err, errExpelled):
			back = retryFirst / 4
			if errors.Is(err, kerr.UnknownMemberID) {
				id = ""
			}
			c.log.Warn("this process is not a member of the group any more and joins it again", "group", c.group)
			c.agreed(nil)
		case errors.As(err, &k) && !k.Retriable:
			c.log.Warn("can't join the group of kmirror processes", "group", c.group, "err", err)
			c.missed()
			back = deniedEvery
		default:
			c.log.Debug("the group does not answer as needed, trying again", "group", c.group, "err", err)
			c.missed()
		}
		if !pause(ctx, back) {
			break
		}
	}
	c.leave(context.WithoutCancel(ctx), id)
	return nil
}

// awaitStanding waits until the process is registered; false when ctx ends before.
func (c *cluster) awaitStanding(ctx context.Context) bool {
	for {
		changed := c.stands.RegisteredChanged()
		if c.stands.Registered() {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// missed notes that the group did not answer. After a while this process goes on without it. It takes several times: a process
// that was stopped has lost only what it had asked before.
func (c *cluster) missed() {
	c.mu.Lock()
	c.misses++
	deaf := c.misses >= deafAfter && time.Since(c.beat) > deafFor
	c.mu.Unlock()
	if deaf {
		c.alone()
	}
}

// alone lets this process go on without the group: what others claimed and answer for stays theirs.
func (c *cluster) alone() {
	c.mu.Lock()
	had := c.view != nil || c.lost
	c.view, c.lost = nil, false
	c.signal()
	c.mu.Unlock()
	if had {
		c.log.Warn("the group of kmirror processes is out of reach; going on without it", "group", c.group)
		c.touch()
	}
}

// session joins and stays until the group is formed anew, expels us or is out of reach.
func (c *cluster) session(ctx context.Context, id *string) error {
	join, err := c.join(ctx, id)
	if err != nil {
		return err
	}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.Generation, sync.MemberID = c.group, join.Generation, *id
	protocolType, protocol := "consumer", protocolName
	sync.ProtocolType, sync.Protocol = &protocolType, &protocol
	if join.LeaderID == *id {
		sync.GroupAssignment = c.assign(join.Members)
	}
	limited, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	resp, err := sync.RequestWith(limited, c.client)
	if err == nil {
		err = groupError(resp.ErrorCode)
	}
	if errors.Is(err, kerr.IllegalGeneration) {
		return errRejoin // it went on since we joined
	}
	if err != nil {
		return fmt.Errorf("SyncGroup: %w", err)
	}
	v, err := c.parse(resp.MemberAssignment)
	if err != nil {
		return err
	}
	v.generation = join.Generation
	c.log.Info("group of kmirror processes", "group", c.group, "generation", v.generation, "members", len(v.members))
	c.agreed(v)
	return c.stay(ctx, *id, join.Generation)
}

func (c *cluster) join(ctx context.Context, id *string) (*kmsg.JoinGroupResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	me, err := json.Marshal(memberJSON{ProcessID: c.self.ProcessID, Admin: c.self.Admin, NodeIDs: c.self.NodeIDs})
	if err != nil {
		return nil, err
	}
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics, meta.UserData = []string{c.topic}, me
	for range 2 {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group, req.MemberID, req.ProtocolType = c.group, *id, "consumer"
		req.SessionTimeoutMillis = int32(sessionTimeout.Milliseconds())
		req.RebalanceTimeoutMillis = int32(rebalanceTimeout.Milliseconds())
		p := kmsg.NewJoinGroupRequestProtocol()
		p.Name, p.Metadata = protocolName, meta.AppendTo(nil)
		req.Protocols = append(req.Protocols, p)
		resp, err := req.RequestWith(ctx, c.client)
		if err != nil {
			return nil, fmt.Errorf("JoinGroup: %w", err)
		}
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			*id = resp.MemberID
			continue
		}
		if err := groupError(resp.ErrorCode); err != nil {
			return nil, fmt.Errorf("JoinGroup: %w", err)
		}
		*id = resp.MemberID
		return resp, nil
	}
	return nil, fmt.Errorf("JoinGroup: %w", kerr.MemberIDRequired)
}

// stay sends heartbeats.
func (c *cluster) stay(ctx context.Context, id string, generation int32) error {
	for misses := 0; misses < deafAfter; {
		if !pause(ctx, heartbeatEvery) {
			return ctx.Err()
		}
		if !c.stands.Registered() {
			return errUnregistered
		}
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.Generation, req.MemberID = c.group, generation, id
		limited, cancel := context.WithTimeout(ctx, heartbeatLimit)
		resp, err := req.RequestWith(limited, c.client)
		cancel()
		if err == nil {
			err = groupError(resp.ErrorCode)
		}
		switch {
		case err == nil:
			misses = 0
			c.belongs()
		case errors.Is(err, errRejoin):
			c.belongs()
			return err
		case errors.Is(err, errExpelled):
			return err
		default:
			misses++
			c.missed()
		}
	}
	return errors.New("heartbeats are not answered")
}

// groupError maps what membership decides by.
func groupError(code int16) error {
	err := kerr.ErrorForCode(code)
	switch {
	case errors.Is(err, kerr.RebalanceInProgress):
		return fmt.Errorf("%w: %w", errRejoin, err)
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.FencedInstanceID):
		return fmt.Errorf("%w: %w", errExpelled, err)
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("%w: grant READ on groups with the prefix %s to kmirror's principal", err, groupPrefix)
	}
	return err
}

// leave tells the group that the process goes, so that it need not wait for the session's end.
func (c *cluster) leave(ctx context.Context, id string) {
	if id == "" || c.vanish {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = c.group, id
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID = id
	req.Members = append(req.Members, m)
	if _, err := req.RequestWith(ctx, c.client); err != nil {
		c.log.Debug("could not leave the group", "group", c.group, "err", err)
	}
}

// assign is the group leader's part: it spreads the partitions and tells every member who has which.
func (c *cluster) assign(joined []kmsg.JoinGroupResponseMember) []kmsg.SyncGroupRequestGroupAssignment {
	var members []memberJSON
	ids := map[string]string{} // member id by process id
	for _, m := range joined {
		var meta kmsg.ConsumerMemberMetadata
		var j memberJSON
		if err := meta.ReadFrom(m.ProtocolMetadata); err != nil || json.Unmarshal(meta.UserData, &j) != nil || j.ProcessID == "" {
			c.log.Warn("a member of the group is not understood and gets nothing", "group", c.group, "member", m.MemberID)
			continue
		}
		if ids[j.ProcessID] == "" { // else it joined twice: the first answer was lost
			members = append(members, j)
		}
		ids[j.ProcessID] = m.MemberID
	}
	c.spread(members)
	data, err := json.Marshal(members)
	if err != nil {
		c.log.Error("assignment can't be encoded", "err", err)
	}
	var out []kmsg.SyncGroupRequestGroupAssignment
	for _, j := range members {
		var a kmsg.ConsumerMemberAssignment
		a.Topics = []kmsg.ConsumerMemberAssignmentTopic{{Topic: c.topic, Partitions: j.Partitions}}
		a.UserData = data
		g := kmsg.NewSyncGroupRequestGroupAssignment()
		g.MemberID, g.MemberAssignment = ids[j.ProcessID], a.AppendTo(nil)
		out = append(out, g)
	}
	return out
}

// spread gives every member the same number of partitions, give or take one, and leaves with their owners what may stay.
func (c *cluster) spread(members []memberJSON) {
	slices.SortFunc(members, func(a, b memberJSON) int { return strings.Compare(a.ProcessID, b.ProcessID) })
	index := map[string]int{}
	for i := range members {
		index[members[i].ProcessID], members[i].Partitions = i, nil
	}
	if len(members) == 0 {
		return
	}
	c.mu.Lock()
	claims := slices.Clone(c.claims)
	c.mu.Unlock()
	n := len(claims)
	least, more := n/len(members), n%len(members)
	room := func(i int) bool {
		have := len(members[i].Partitions)
		if have == least && more > 0 {
			more--
			return true
		}
		return have < least
	}
	var free []int32
	for p, cl := range claims {
		if i, ok := index[cl.owner.ProcessID]; ok && room(i) {
			members[i].Partitions = append(members[i].Partitions, int32(p))
		} else {
			free = append(free, int32(p))
		}
	}
	for i := range members {
		for len(free) > 0 && room(i) {
			members[i].Partitions, free = append(members[i].Partitions, free[0]), free[1:]
		}
	}
}

// parse reads our assignment; its user data holds those of all.
func (c *cluster) parse(assignment []byte) (*view, error) {
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(assignment); err != nil {
		return nil, fmt.Errorf("assignment of the group: %w", err)
	}
	var members []memberJSON
	if err := json.Unmarshal(a.UserData, &members); err != nil {
		return nil, fmt.Errorf("assignment of the group: %w", err)
	}
	v := &view{owner: map[int32]int{}}
	slices.SortFunc(members, func(a, b memberJSON) int { return strings.Compare(a.ProcessID, b.ProcessID) })
	for i, m := range members {
		if m.ProcessID == "" {
			return nil, errors.New("assignment of the group: a member without a process id")
		}
		v.members = append(v.members, Member{ProcessID: m.ProcessID, Admin: m.Admin, NodeIDs: m.NodeIDs,
			Self: m.ProcessID == c.self.ProcessID})
		for _, p := range m.Partitions {
			v.owner[p] = i
		}
	}
	if !slices.ContainsFunc(v.members, func(m Member) bool { return m.Self }) {
		return nil, errors.New("assignment of the group: it leaves this process out")
	}
	return v, nil
}
