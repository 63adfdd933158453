// Package e2e holds the tests that show what kmirror claims: real clusters, real clients, the kmirror binary as a process of
// its own that can be killed, and segment files compared byte for byte. There is nothing in it but tests.
package e2e
