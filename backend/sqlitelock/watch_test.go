//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// watch begins a Watch, and returns its events after the first one, and its end.
func watch(ctx context.Context, t *testing.T, b *sqlitelock.Backend) (<-chan backend.EventKind, <-chan error) {
	t.Helper()
	seen, ended := begin(ctx, b)
	expectEvent(t, seen, ended, backend.EventWatching)
	return seen, ended
}

func begin(ctx context.Context, b *sqlitelock.Backend) (<-chan backend.EventKind, <-chan error) {
	seen, ended := make(chan backend.EventKind, 8), make(chan error, 1)
	go func() { ended <- b.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) { seen <- e.Kind }) }()
	return seen, ended
}

func expectEvent(t *testing.T, seen <-chan backend.EventKind, ended <-chan error, want backend.EventKind) {
	t.Helper()
	select {
	case got := <-seen:
		if got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	case err := <-ended:
		t.Fatalf("the Watch ended: %v", err)
	case <-time.After(slack):
		t.Fatalf("no event %s", want)
	}
}

// TestWatchAfterSleep has a process sleep for so long that events are missing, while a caller's function does
// not return: the next Watch is not affected by that.
func TestWatchAfterSleep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	start := time.Now()
	var slept atomic.Int64
	host := sqlitelock.WithHost(sqlitelock.Host{
		Boot: "one", Wall: time.Now, Now: func() time.Duration { return time.Hour + time.Since(start) + time.Duration(slept.Load()) },
	})
	b, other := mustOpen(t, path, host), mustOpen(t, path, host)
	acquire := func(b *sqlitelock.Backend) {
		t.Helper()
		req := leasetest.Ask("x", leasetest.Session(t, b, time.Hour, nil))
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	began, unblock, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- b.Watch(t.Context(), backend.WatchRequest{}, func(backend.Event) {
			close(began)
			<-unblock
		})
	}()
	<-began
	slept.Store(int64(time.Minute))
	seen, theirs := watch(t.Context(), t, other)
	acquire(other)
	expectEvent(t, seen, theirs, backend.EventAcquired)
	slept.Store(int64(3 * time.Minute)) // those events are not kept for so long
	seen, end := watch(t.Context(), t, b)
	acquire(b)
	expectEvent(t, seen, end, backend.EventAcquired)
	expectEvent(t, seen, end, backend.EventReleased)
	close(unblock)
	if err := <-ended; !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("the first Watch: %v; it has to be ErrUnavailable", err)
	}
}

// TestWatchEndsWithTheDisk has a sync fail during a Watch.
func TestWatchEndsWithTheDisk(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	b := mustOpen(t, filepath.Join(t.TempDir(), "locks.db"), sqlitelock.FailSync(func() error {
		if failing.Load() {
			return errors.New("the disk has failed")
		}
		return nil
	}))
	_, ended := watch(t.Context(), t, b)
	failing.Store(true)
	req := lasting("x")
	if err := acquireOf(t.Context(), b, req); !errors.Is(err, sqlitelock.ErrSync) {
		t.Errorf("Acquire: %v; it has to be ErrSync", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, sqlitelock.ErrSync) {
			t.Errorf("the Watch: %v; it has to be ErrSync", err)
		}
	case <-time.After(slack):
		t.Error("the Watch has not ended")
	}
}

// TestWatchFollowsAnother has a Watch begin, and the only other one end, in one transaction.
func TestWatchFollowsAnother(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	b := mustOpen(t, path)
	sess := leasetest.Session(t, b, time.Hour, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, first := watch(ctx, t, b)
	turn := taken(t, path)
	seen, second := begin(t.Context(), b)
	leasetest.Eventually(t, "the second in the queue", func() bool { return b.Queued() == 1 })
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := turn.Close(); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, b, leasetest.Ask("x", sess))
	expectEvent(t, seen, second, backend.EventWatching)
	expectEvent(t, seen, second, backend.EventAcquired)
}
