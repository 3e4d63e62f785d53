// Package e2e holds tests of whole paths: the client over a backend over a network on which
// faults are injected on the way to a real server. It has no code of its own. Tests of the files in deploy are in
// nightly: they need programs that are built from source.
package e2e
