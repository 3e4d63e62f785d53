// Package e2e holds tests of whole paths: the client over a backend over a network on which
// faults are injected on the way to a real server. It has no code of its own.
package e2e
