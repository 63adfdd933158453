package metasync

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/coordinator"
)

// acls brings the source's ACLs to the destination: those that a rule of mirror.acls.include means (KIP-1279, MirrorMetadataManager).
//
// An ACL that the mirror creates is remembered before it is created, and only such are deleted again, once the source has them no more
// or no rule means them any more. Whatever else there is at the destination is somebody else's: it is neither remembered nor deleted,
// also where the source has the same. One of ours that an operator deletes at the destination comes back while the source has it.
// Nothing is deleted while the source shows no ACLs at all. With mirror.acls.prune=all everything at the destination goes that the
// source does not have (the KIP to the letter), kmirror's own rights among it, unless the rules leave nothing of the source's.
//
// Two mirrors into one destination touch only what each of them remembers. Of an ACL that both sources have the second mirror finds that
// it is there already; when the source of the first drops it, the first deletes it, and the second creates it again in its next round.
func (j *job) acls(ctx context.Context) error {
	source, unsynced, err := describeACLs(ctx, j.srcClient, "source")
	if err == nil && len(source) == 0 {
		j.skipped(ACLs, "empty_source", 1)
		return nil
	}
	var destination []coordinator.ACL
	if err == nil {
		j.skipped(ACLs, "unsupported", unsynced)
		destination, _, err = describeACLs(ctx, j.dstClient, "destination")
	}
	switch {
	case errors.Is(err, errNoAuthorizer):
		j.skipped(ACLs, "no_authorizer", 1)
		return nil
	case err != nil:
		return err
	}
	if err := j.stillSource(ctx); err != nil {
		return err
	}
	plan := planACLs(source, destination, j.s.cfg.Store.ACLs(j.def.Name), j.f.ACL, j.f.PruneAll)
	return errors.Join(j.createACLs(ctx, plan.create), j.deleteACLs(ctx, plan.drop, "the source has it no more"),
		j.deleteACLs(ctx, plan.prune, "the source does not have it, and mirror.acls.prune is all"))
}

// aclPlan is what a round is to do with the destination's ACLs; no ACL is in it twice.
type aclPlan struct {
	// create are those that the destination lacks.
	create []coordinator.ACL
	// drop are remembered ones that are not wanted any more. They are deleted whether the destination lists them or not: the broker that
	// was asked may lag behind.
	drop []coordinator.ACL
	// prune are those of others that are deleted with mirror.acls.prune=all.
	prune []coordinator.ACL
}

// planACLs compares what the source has with what the destination has and with what the mirror created there.
func planACLs(source, destination, remembered []coordinator.ACL, wanted func(coordinator.ACL) bool, pruneAll bool) aclPlan {
	var p aclPlan
	if len(source) == 0 {
		return p
	}
	want, there, ours := set(nil), set(destination), set(remembered)
	for _, a := range source {
		if wanted(a) {
			want[a] = true
		}
	}
	p.create = without(want, there)
	p.drop = without(ours, want)
	if pruneAll && len(want) > 0 {
		for a := range ours {
			delete(there, a)
		}
		p.prune = without(there, want)
	}
	return p
}

func set(list []coordinator.ACL) map[coordinator.ACL]bool {
	out := make(map[coordinator.ACL]bool, len(list))
	for _, a := range list {
		out[a] = true
	}
	return out
}

// without returns what is in one set and not in another, sorted.
func without(a, b map[coordinator.ACL]bool) []coordinator.ACL {
	var out []coordinator.ACL
	for acl := range a {
		if !b[acl] {
			out = append(out, acl)
		}
	}
	slices.SortFunc(out, coordinator.ACL.Compare)
	return out
}

// createACLs remembers ACLs as ours and creates them. What the destination refuses is forgotten again: whoever creates it later is
// somebody else.
func (j *job) createACLs(ctx context.Context, acls []coordinator.ACL) error {
	var errs []error
	for batch := range batches(acls) {
		if err := j.s.cfg.Store.PutACLs(ctx, j.def.Name, batch...); err != nil {
			return bounded(append(errs, fmt.Errorf("remember ACLs before they are created: %w", err)))
		}
		results, err := createACLs(ctx, j.dstClient, batch)
		if err != nil {
			errs = append(errs, fmt.Errorf("create ACLs: %w", err))
			continue
		}
		var refused []coordinator.ACL
		for i, acl := range batch {
			err := results[i]
			if err == nil {
				j.logACL("ACL created", acl)
				j.changed(ACLs, 1)
				continue
			}
			errs = append(errs, fmt.Errorf("create ACL %s: %w", acl, err))
			if final(err) {
				refused = append(refused, acl)
			}
		}
		if err := j.s.cfg.Store.DeleteACLs(ctx, j.def.Name, refused...); err != nil {
			errs = append(errs, fmt.Errorf("forget ACLs that were refused: %w", err))
		}
		if unauthorised(errs) {
			break
		}
	}
	return bounded(errs)
}

// deleteACLs deletes ACLs, then forgets those of them that were ours.
func (j *job) deleteACLs(ctx context.Context, acls []coordinator.ACL, why string) error {
	var errs []error
	for batch := range batches(acls) {
		results, err := deleteACLs(ctx, j.dstClient, batch)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete ACLs: %w", err))
			continue
		}
		var gone []coordinator.ACL
		for i, acl := range batch {
			if err := results[i].err; err != nil {
				errs = append(errs, fmt.Errorf("delete ACL %s: %w", acl, err))
				continue
			}
			gone = append(gone, acl)
			if results[i].deleted {
				j.logACL("ACL deleted", acl, "reason", why)
				j.changed(ACLs, 1)
			}
		}
		if err := j.s.cfg.Store.DeleteACLs(ctx, j.def.Name, gone...); err != nil {
			errs = append(errs, fmt.Errorf("forget ACLs that were deleted: %w", err))
		}
		if unauthorised(errs) {
			break
		}
	}
	return bounded(errs)
}

// batches cuts ACLs into requests. The first has one ACL: where kmirror lacks the right, no more is written than that one.
func batches(acls []coordinator.ACL) iter.Seq[[]coordinator.ACL] {
	return func(yield func([]coordinator.ACL) bool) {
		for size := 1; len(acls) > 0; size = aclBatch {
			n := min(size, len(acls))
			if !yield(acls[:n]) {
				return
			}
			acls = acls[n:]
		}
	}
}

// unauthorised reports whether the next batch would be refused as well.
func unauthorised(errs []error) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, kerr.ClusterAuthorizationFailed) })
}

// logACL is the line of the log about one change.
func (j *job) logACL(what string, a coordinator.ACL, more ...any) {
	j.log.Info(what, append([]any{"resource_type", a.ResourceType, "resource_name", a.ResourceName, "pattern_type", a.PatternType,
		"principal", a.Principal, "host", a.Host, "operation", a.Operation, "permission", a.Permission}, more...)...)
}
