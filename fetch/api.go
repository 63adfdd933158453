package fetch

import (
	"context"

	"kmirror/internal/replica"
	"kmirror/protocol/kraft"
)

// What those who direct the data path share with it.
type (
	// Role says how a partition is served.
	Role = replica.Role
	// Divergence is what a follower is told to truncate to.
	Divergence = replica.Divergence
	// Assignment tells the Leader what a partition is.
	Assignment = replica.Assignment
	// FollowerStatus is what the Leader knows of a replica.
	FollowerStatus = replica.FollowerStatus
	// Status is a snapshot of one led partition.
	Status = replica.Status
)

// Roles.
const (
	RoleWait     = replica.RoleWait
	RoleStray    = replica.RoleStray
	RoleTruncate = replica.RoleTruncate
	RoleMirror   = replica.RoleMirror
	RoleFrozen   = replica.RoleFrozen
	RoleDrain    = replica.RoleDrain
	RoleTail     = replica.RoleTail
)

// Controller is how the Leader proposes ISRs. AlterISR blocks until the controller answered, ctx ended, or the request is
// known not to have an answer; outcomes stand in the order of the proposals. After an error the outcome is unknown: the
// Leader goes on counting with the maximal ISR until the image shows it.
type Controller interface {
	AlterISR(ctx context.Context, proposals []kraft.ISRProposal) ([]kraft.ISROutcome, error)
	// Owns reports whether a node id is one of this process.
	Owns(id int32) bool
	// Guest reports whether a node id is one of any process of kmirror, this one included: it holds no log, and may be dead.
	Guest(id int32) bool
}
