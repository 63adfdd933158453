package mirror

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"kmirror/internal/admin"
	"kmirror/internal/coordinator"
	"kmirror/protocol/kip1279"
)

// unreachable is an error about one of the clusters: it does not answer, or it answers that we may not, or not now.
func unreachable(what string, err error) error {
	e := &admin.Error{Code: -1, Message: fmt.Sprintf("the %s does not answer: %v", what, err),
		Hint: "check bootstrap.servers, security settings and rights", Exit: admin.ExitUnreachable}
	if kerr.IsRetriable(err) {
		e.Message = fmt.Sprintf("the %s can't do it now: %v", what, err)
		e.Hint = "try again in a few seconds; if it stays so, see whether all partitions there have a leader"
		e.Exit = admin.ExitIncomplete
	}
	for _, denied := range []error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.GroupAuthorizationFailed} {
		if errors.Is(err, denied) {
			e.Message = fmt.Sprintf("kmirror lacks a right at the %s: %v", what, err)
			e.Hint = "grant what docs/operations.md lists under Rights; kmirror preflight says which one is missing"
		}
	}
	return e
}

// asError makes an operator's error of any.
func asError(err error) *admin.Error {
	if e, ok := err.(*admin.Error); ok {
		return e
	}
	if errors.Is(err, coordinator.ErrChanged) {
		return &admin.Error{Code: kip1279.InvalidClusterMirrorStates, Message: err.Error(), Hint: "see describe, then try again",
			Exit: admin.ExitRefused}
	}
	return &admin.Error{Code: -1, Message: err.Error(), Hint: "see the log of kmirror serve, then try again", Exit: admin.ExitFailed}
}
