package leasetest

import "testing"

// Slow leaves a test to `make check`: `make test`, which is -short, runs without it.
func Slow(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("make check runs it")
	}
}

// Transport are the cases of a variant that changes how requests reach the store and how answers come back, of a store
// that runs all of them in another way: another client library, a proxy or pooler, TLS, a cluster, another version.
func Transport() []string {
	return []string{
		"C1/exclusive-excludes", "C1/names-never-collide", "C1/holders-are-told", "C1/list-is-sorted-and-paged",
		"C2/tokens-rise-along-the-queue", "C2/tokens-rise-after-a-restart",
		"C3/first-come-first-served", "C4/session-lease-runs-out", "C5/renewals-are-answered-one-by-one",
		"C6/acquire-twice-at-once", "C7/abandon-races-the-acquire", "C8/a-waiter-learns-of-its-session",
		"C10/the-victim-is-told", "C10/all-holders-are-broken", "C10/watch-tells-what-happens",
		"C11/bounds-are-inclusive", "C12/a-wait-ends-at-its-deadline", "C13/close-ends-the-calls",
	}
}
