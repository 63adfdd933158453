// Package statemachine holds the life of a mirror partition as KIP-1279 has it, and the epoch rule. It is pure: Step takes
// what was asked or observed and returns what to do; there is no I/O, no clock, no goroutine and no randomness in it.
// Time comes in as events.
package statemachine
