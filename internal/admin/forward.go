package admin

import (
	"context"
	"slices"
	"sync"
	"time"

	"kmirror/internal/wait"
	"kmirror/protocol"
)

// PeerClientID is the client id under which processes pass requests on to each other. What comes under it is answered by the process
// that was asked, and never passed on again.
const PeerClientID = "kmirror-peer"

type forwarded struct{}

// Forwarded reports whether a request was passed on by another process.
func Forwarded(ctx context.Context) bool { return ctx.Value(forwarded{}) != nil }

// Process is where a kmirror process of the destination is asked.
type Process struct {
	Address string
	NodeIDs []int32
	Self    bool
}

// Forward answers for all processes of the destination, whichever is asked. Changes of a mirror are made by its metadata coordinator,
// so that no two processes change the same record at once; what each knows only of itself is put together.
type Forward struct {
	// Service is this process's own.
	Service
	// Processes returns those that are alive, this one included. Owner is the metadata coordinator of a mirror, false when nobody is
	// known to be: then this process does what it is asked.
	Processes func() []Process
	Owner     func(mirror string) (Process, bool)
	// Dial makes a client of one process, with PeerClientID.
	Dial func(address string) (Service, func(), error)
	// Idle is why this process can answer nobody, such as that its node ids are another's; nil, or one that returns nil: it can.
	Idle func() error
}

// idle is Idle's error.
func (f *Forward) idle() error {
	if f.Idle == nil {
		return nil
	}
	return f.Idle()
}

// at runs f against a process.
func (f *Forward) at(ctx context.Context, p Process, call func(context.Context, Service) error) error {
	if p.Self {
		return call(ctx, f.Service)
	}
	s, closeIt, err := f.Dial(p.Address)
	if err != nil {
		return err
	}
	defer closeIt()
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	if !f.gone(p) { // an owner may not be listed yet
		watch.Go(func() {
			for !f.gone(p) {
				if !wait.For(ctx, goneAfter) {
					return
				}
			}
			cancel() // a process that was stopped (SIGSTOP) keeps its connections
		})
	}
	defer watch.Wait()
	defer cancel()
	return call(ctx, s)
}

// goneAfter is how often it is looked whether a process that was asked is still alive.
const goneAfter = 200 * time.Millisecond

// gone reports whether a process is held dead.
func (f *Forward) gone(p Process) bool {
	return !slices.ContainsFunc(f.Processes(), func(o Process) bool { return o.Address == p.Address })
}

// owned runs f at the metadata coordinator of a mirror. When that one is held dead before it has answered, another one takes over and is
// asked instead: every verb may be repeated.
func (f *Forward) owned(ctx context.Context, mirror string, call func(context.Context, Service) error) error {
	if err := f.idle(); err != nil {
		return err
	}
	for range len(f.Processes()) {
		p, ok := f.Owner(mirror)
		if !ok || Forwarded(ctx) {
			break
		}
		if err := f.at(ctx, p, call); err == nil || p.Self || ctx.Err() != nil || !f.gone(p) {
			return err
		}
	}
	return call(ctx, f.Service)
}

// CreateMirror is part of Service, as are the methods below.
func (f *Forward) CreateMirror(ctx context.Context, name string, config map[string]string) error {
	return f.owned(ctx, name, func(ctx context.Context, s Service) error { return s.CreateMirror(ctx, name, config) })
}

func (f *Forward) DeleteMirror(ctx context.Context, req DeleteRequest) error {
	return f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { return s.DeleteMirror(ctx, req) })
}

func (f *Forward) StartTopics(ctx context.Context, req StartRequest) (out []TopicResult, err error) {
	err = f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { out, err = s.StartTopics(ctx, req); return err })
	return out, err
}

func (f *Forward) StopTopics(ctx context.Context, req StopRequest) (out []TopicResult, err error) {
	err = f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { out, err = s.StopTopics(ctx, req); return err })
	return out, err
}

func (f *Forward) PauseTopics(ctx context.Context, req TopicsRequest) (out []TopicResult, err error) {
	err = f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { out, err = s.PauseTopics(ctx, req); return err })
	return out, err
}

func (f *Forward) ResumeTopics(ctx context.Context, req TopicsRequest) (out []TopicResult, err error) {
	err = f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { out, err = s.ResumeTopics(ctx, req); return err })
	return out, err
}

func (f *Forward) RecoverTopics(ctx context.Context, req TopicsRequest) (out []TopicResult, err error) {
	err = f.owned(ctx, req.Mirror, func(ctx context.Context, s Service) error { out, err = s.RecoverTopics(ctx, req); return err })
	return out, err
}

// Retire goes to the process that has the node ids.
func (f *Forward) Retire(ctx context.Context, req RetireRequest) (out RetireResult, err error) {
	if err := f.idle(); err != nil {
		return out, err
	}
	for _, p := range f.Processes() {
		if !p.Self && !Forwarded(ctx) && slices.ContainsFunc(req.NodeIDs, func(id int32) bool { return slices.Contains(p.NodeIDs, id) }) {
			err = f.at(ctx, p, func(ctx context.Context, s Service) error { out, err = s.Retire(ctx, req); return err })
			return out, err
		}
	}
	return f.Service.Retire(ctx, req)
}

// everywhere runs f against all live processes at once, against this one only when the request was passed on. A process that does not
// answer is left out unless it is the only one: it is held dead soon, and others take over what it had.
func (f *Forward) everywhere(ctx context.Context, call func(context.Context, Service) error) error {
	if err := f.idle(); err != nil {
		return err
	}
	procs := f.Processes()
	if Forwarded(ctx) || len(procs) < 2 {
		return call(ctx, f.Service)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(procs))
	for i, p := range procs {
		wg.Go(func() { errs[i] = f.at(ctx, p, call) })
	}
	wg.Wait()
	for i, p := range procs {
		if p.Self {
			return errs[i]
		}
	}
	return errs[0]
}

func (f *Forward) Describe(ctx context.Context, req DescribeRequest) ([]PartitionInfo, error) {
	type key struct {
		topic     string
		partition int32
	}
	var mu sync.Mutex
	best := map[key]PartitionInfo{}
	err := f.everywhere(ctx, func(ctx context.Context, s Service) error {
		infos, err := s.Describe(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		for _, p := range infos {
			k := key{p.Mirror + "/" + p.Topic, p.Partition}
			// Of two that know a partition, while it moves, the one that leads it knows more.
			if old, ok := best[k]; !ok || old.Process == nil && p.Process != nil {
				best[k] = p
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]PartitionInfo, 0, len(best))
	for _, p := range best {
		out = append(out, p)
	}
	slices.SortFunc(out, ComparePartitions)
	return out, nil
}

// BumpLeaderEpochs asks all processes: each raises what it leads. What nobody leads is refused.
func (f *Forward) BumpLeaderEpochs(ctx context.Context, minimum map[protocol.PartitionID]int32) (map[protocol.PartitionID]error, error) {
	var mu sync.Mutex
	asked, refused := 0, map[protocol.PartitionID][]error{}
	err := f.everywhere(ctx, func(ctx context.Context, s Service) error {
		errs, err := s.BumpLeaderEpochs(ctx, minimum)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			asked++
		}
		for id, e := range errs {
			if e != nil {
				refused[id] = append(refused[id], e)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	out := map[protocol.PartitionID]error{}
	for id, errs := range refused {
		if len(errs) < asked {
			continue // the one that leads it has raised it
		}
		out[id] = errs[0]
		for _, e := range errs {
			if asError(e).Code != notLeader {
				out[id] = e // of the one that leads it, and knows why not
			}
		}
	}
	return out, nil
}

// notLeader is Kafka's NOT_LEADER_OR_FOLLOWER.
const notLeader int16 = 6
