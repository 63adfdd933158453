// Package mirror runs mirrors: it holds one statemachine.Machine for every mirror partition, feeds it what the destination's
// metadata image and the data path show, and carries out the effects that come back. It also answers the operator
// (admin.Service). All is level triggered: one loop looks at how things stand and asks for what is missing, so a lost or
// half-done step is repeated, and a process that starts anew picks up where another one was.
package mirror
