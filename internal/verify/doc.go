// Package verify compares a mirrored partition at its source with every in-sync replica at the destination, batch by batch,
// as an ordinary consumer of both: it trusts neither kmirror's own state nor the destination's leader. Each replica is read
// directly, which followers allow consumers from Fetch version 11 on (KIP-392).
//
// The work is cut into steps of a few seconds that a cursor joins, so that an operator sees progress and nothing is kept
// in this process between steps. Only phase one of convergence keeps equal epochs of different histories apart; what shows
// that it did is this package.
package verify
