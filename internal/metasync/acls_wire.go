package metasync

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/internal/coordinator"
	"kmirror/internal/filters"
)

// aclBatch bounds the ACLs of one request; a controller takes at most 10 000 changes at once.
const aclBatch = 500

// errNoAuthorizer: the cluster has no ACLs at all.
var errNoAuthorizer = errors.New("no authorizer is configured")

// describeACLs returns all ACLs of a cluster, and how many there are besides that kmirror does not sync: CLUSTER_MIRROR's, and those with
// types and operations that it does not know. side names the cluster in errors.
func describeACLs(ctx context.Context, client *kgo.Client, side string) (acls []coordinator.ACL, unsynced int, err error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, 0, fmt.Errorf("ACLs of the %s: %w", side, err)
	}
	switch err := aclError(resp.ErrorCode, resp.ErrorMessage, "DESCRIBE", side); {
	case errors.Is(err, kerr.SecurityDisabled):
		return nil, 0, errNoAuthorizer
	case err != nil:
		return nil, 0, fmt.Errorf("ACLs of the %s: %w", side, err)
	}
	for _, r := range resp.Resources {
		for _, e := range r.ACLs {
			a := coordinator.ACL{
				ResourceType: word(filters.ResourceTypes, r.ResourceType), ResourceName: r.ResourceName,
				PatternType: word(filters.PatternTypes, r.ResourcePatternType), Principal: e.Principal, Host: e.Host,
				Operation: word(filters.Operations, e.Operation), Permission: word(filters.Permissions, e.PermissionType),
			}
			if a.ResourceType == "" || a.PatternType == "" || a.Operation == "" || a.Permission == "" {
				unsynced++
				continue
			}
			acls = append(acls, a)
		}
	}
	return acls, unsynced, nil
}

// createACLs returns an error or nil for each ACL. Those that are there already are no error.
func createACLs(ctx context.Context, client *kgo.Client, acls []coordinator.ACL) ([]error, error) {
	req := kmsg.NewPtrCreateACLsRequest()
	for _, a := range acls {
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName = code[kmsg.ACLResourceType](filters.ResourceTypes, a.ResourceType), a.ResourceName
		c.ResourcePatternType = code[kmsg.ACLResourcePatternType](filters.PatternTypes, a.PatternType)
		c.Principal, c.Host, c.Operation = a.Principal, a.Host, code[kmsg.ACLOperation](filters.Operations, a.Operation)
		c.PermissionType = code[kmsg.ACLPermissionType](filters.Permissions, a.Permission)
		req.Creations = append(req.Creations, c)
	}
	resp, err := req.RequestWith(ctx, client)
	if err == nil && len(resp.Results) != len(acls) {
		err = fmt.Errorf("%d results for %d ACLs", len(resp.Results), len(acls))
	}
	if err != nil {
		return nil, err
	}
	out := make([]error, len(acls))
	for i, r := range resp.Results {
		out[i] = aclError(r.ErrorCode, r.ErrorMessage, "ALTER", "destination")
	}
	return out, nil
}

// deletion is how the deletion of an ACL went; neither field is set where there was none.
type deletion struct {
	deleted bool
	err     error
}

// deleteACLs deletes exactly these ACLs: a filter with the pattern type MATCH or ANY would take others with them.
func deleteACLs(ctx context.Context, client *kgo.Client, acls []coordinator.ACL) ([]deletion, error) {
	req := kmsg.NewPtrDeleteACLsRequest()
	for _, a := range acls {
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName = code[kmsg.ACLResourceType](filters.ResourceTypes, a.ResourceType), &a.ResourceName
		f.ResourcePatternType = code[kmsg.ACLResourcePatternType](filters.PatternTypes, a.PatternType)
		f.Principal, f.Host, f.Operation = &a.Principal, &a.Host, code[kmsg.ACLOperation](filters.Operations, a.Operation)
		f.PermissionType = code[kmsg.ACLPermissionType](filters.Permissions, a.Permission)
		req.Filters = append(req.Filters, f)
	}
	resp, err := req.RequestWith(ctx, client)
	if err == nil && len(resp.Results) != len(acls) {
		err = fmt.Errorf("%d results for %d ACLs", len(resp.Results), len(acls))
	}
	if err != nil {
		return nil, err
	}
	out := make([]deletion, len(acls))
	for i, r := range resp.Results {
		out[i].err = aclError(r.ErrorCode, r.ErrorMessage, "ALTER", "destination")
		for _, m := range r.MatchingACLs {
			out[i].err = errors.Join(out[i].err, aclError(m.ErrorCode, m.ErrorMessage, "ALTER", "destination"))
		}
		out[i].deleted = out[i].err == nil && len(r.MatchingACLs) > 0
	}
	return out, nil
}

// aclError is the error behind a code, with the right that is missing where one is.
func aclError(code int16, message *string, right, side string) error {
	err := kerr.ErrorForCode(code)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("%w: grant %s on CLUSTER to kmirror's principal at the %s", err, right, side)
	case message != nil && *message != "":
		return fmt.Errorf("%w: %s", err, *message)
	}
	return err
}

// final reports whether a broker has refused a change, so that it was not made and is not to be expected any more.
func final(err error) bool {
	return !kerr.IsRetriable(err) && !errors.Is(err, kerr.UnknownServerError)
}

// word returns Kafka's name of a code, empty where it is not synced.
func word[T ~int8](words []string, code T) string {
	if code < 0 || int(code) >= len(words) {
		return ""
	}
	return words[code]
}

// code is the other direction, for words that came from word.
func code[T ~int8](words []string, word string) T {
	for i, w := range words {
		if w == word {
			return T(i)
		}
	}
	return 0
}
