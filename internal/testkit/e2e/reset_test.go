package e2e_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// F5: every connection is reset, again and again. A holder keeps its lock. A waiter continues
// to wait, and is granted the lock when it is released.
func TestConnectionsReset(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const ttl, resets = 20 * time.Second, 12
	sideBySide(t, networks(), func(t *testing.T, _ string, start func(*testing.T) reachable) { //nolint:thelper // it is the test
		n := start(t)
		proxy := chaos.Start(t, n.addr)
		holder := client(t, n.open(t, proxy.Addr()), holdfast.Config{TTL: ttl, Timeout: ttl, Owner: "holder"})
		next := client(t, n.open(t, proxy.Addr()), holdfast.Config{TTL: ttl, Timeout: ttl, Owner: "next"})
		lock, err := holder.Acquire(t.Context(), t.Name())
		if err != nil {
			t.Fatal(err)
		}
		got := waitFor(t, next, t.Name())
		awaitWaiters(t, holder, t.Name(), 1)
		for range resets {
			proxy.Reset()
			if _, err := holder.Inspect(t.Context(), t.Name()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
				t.Errorf("after a reset: %v", err)
			}
			select {
			case r := <-got:
				t.Fatalf("granted while held: %+v", r)
			default:
			}
		}
		if err := lock.Err(); err != nil {
			t.Fatalf("the holder has %v", err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if r.err != nil || r.lock.Token() <= lock.Token() {
			t.Fatalf("the next has %+v after token %d", r, lock.Token())
		}
		if err := r.lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
