package main

import (
	"slices"
	"testing"
	"time"

	"kmirror/internal/coordinator"
	"kmirror/internal/mirror"
	"kmirror/internal/peers"
	"kmirror/protocol/kraft"
)

// TestWhoRelievesAFencedProcess: a process that has fenced itself goes on without a fence, for a stop, unless another one can lead. Of one
// that refuses it the destination tells: else two that have fenced themselves would wait for each other for ever.
func TestWhoRelievesAFencedProcess(t *testing.T) {
	img := kraft.Empty()
	img.Brokers = map[int32]*kraft.Broker{9001: {ID: 9001, Fenced: true}, 9002: {ID: 9002, Fenced: true}, 9003: {ID: 9003, Fenced: true},
		9004: {ID: 9004}, 9005: {ID: 9005, InControlledShutdown: true}}
	for name, c := range map[string]struct {
		pong peers.Pong
		ids  []int32
		want bool
	}{
		"answers, ready":                       {peers.Pong{Ready: true}, []int32{9003}, true},
		"answers, fenced":                      {peers.Pong{}, []int32{9003}, false},
		"answers, leaving":                     {peers.Pong{Ready: true, Leaving: true}, []int32{9004}, false},
		"refuses, fenced":                      {peers.Pong{Ready: true, Refused: true}, []int32{9002, 9003}, false},
		"refuses, one id serves":               {peers.Pong{Ready: true, Refused: true}, []int32{9003, 9004}, true},
		"refuses, was leaving when it did not": {peers.Pong{Leaving: true, Refused: true}, []int32{9004}, true},
		"refuses, leaving":                     {peers.Pong{Ready: true, Refused: true}, []int32{9005}, false},
		"refuses, not registered":              {peers.Pong{Ready: true, Refused: true}, []int32{9006}, false},
	} {
		procs := []mirror.Process{{NodeIDs: []int32{9001}, Self: true, Starting: true}, processOf(coordinator.Member{NodeIDs: c.ids}, c.pong, img)}
		if got := relieved(procs); got != c.want {
			t.Errorf("%s: relieved %v, want %v", name, got, c.want)
		}
	}
}

// TestUnseen: who does not answer is dead, but for one that is long a member of the group and of the destination all the same.
func TestUnseen(t *testing.T) {
	img := kraft.Empty()
	img.Brokers = map[int32]*kraft.Broker{9003: {ID: 9003, Fenced: true}, 9004: {ID: 9004}, 9005: {ID: 9005, InControlledShutdown: true}}
	last := peers.Pong{Ready: true, Unreachable: []string{"dc1"}}
	for name, c := range map[string]struct {
		ids    []int32
		silent time.Duration
		dead   bool
	}{
		"just fallen silent":            {[]int32{9003, 9004}, 3 * time.Second, true},
		"long silent, one id serves":    {[]int32{9003, 9004}, time.Minute, false},
		"long silent, fenced":           {[]int32{9003}, time.Minute, true},
		"long silent, leaving":          {[]int32{9005}, time.Minute, true},
		"long silent, never registered": {[]int32{9006}, time.Minute, true},
	} {
		p := unseen(coordinator.Member{NodeIDs: c.ids}, last, c.silent, img)
		if p.Dead != c.dead || p.Apart == c.dead || !c.dead && !slices.Equal(p.Blind, last.Unreachable) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
