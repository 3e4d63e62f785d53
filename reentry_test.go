package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// Limit(1) is a mutex, also together with Shared: a limit may come from a configuration.
func TestSemaphoreOfOne(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	mustAcquire(t, c, "n", holdfast.Shared(), holdfast.Limit(1))
	for name, opts := range map[string][]holdfast.Option{
		"both": {holdfast.Shared(), holdfast.Limit(1)}, "limit": {holdfast.Limit(1)}, "reader": {holdfast.Shared()},
	} {
		if _, err := c.TryAcquire(t.Context(), "n", opts...); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("%s, beside the one permit of one: %v", name, err)
		}
	}
}

// A resumed lease is shared if it was acquired shared: re-entry does not make it exclusive.
func TestReentryIntoResumed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts   []holdfast.Option
		denied error
	}{
		"exclusive": {nil, nil},
		"shared":    {[]holdfast.Option{holdfast.Shared()}, holdfast.ErrDeadlock},
		"permits":   {[]holdfast.Option{holdfast.Limit(3)}, holdfast.ErrDeadlock},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			lease, err := mustAcquire(t, c, "n", append(tc.opts, holdfast.NoRenew())...).Detach()
			if err != nil {
				t.Fatal(err)
			}
			if len(tc.opts) > 0 {
				mustAcquire(t, newClient(t, openStore(t, store), holdfast.Config{}), "n", tc.opts...)
			}
			lock, err := c.Resume(t.Context(), lease)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.TryAcquire(lock.Context(), "n", holdfast.Reentrant()); !errors.Is(err, tc.denied) || (err == nil) != (tc.denied == nil) {
				t.Errorf("exclusive: %v", err)
			}
			if lock.IsShared() != (tc.opts != nil) {
				t.Errorf("it is shared: %v", lock.IsShared())
			}
			again, err := c.TryAcquire(lock.Context(), "n", append(tc.opts, holdfast.Reentrant())...)
			if err != nil || again.Token() != lock.Token() {
				t.Errorf("as it was taken: %v", err)
			}
			if _, err := newClient(t, openStore(t, store), holdfast.Config{Owner: "operator"}).Break(t.Context(), "n", "test"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The mode of the resumed lease is unknown while the backend is unavailable, or when the lease is
// gone.
func TestReentryIntoUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		blind := &blind{Backend: f}
		c := newClient(t, blind, holdfast.Config{Timeout: 2 * time.Second})
		lease, err := mustAcquire(t, c, "n", holdfast.Shared(), holdfast.NoRenew()).Detach()
		if err != nil {
			t.Fatal(err)
		}
		lock, err := c.Resume(t.Context(), lease)
		if err != nil {
			t.Fatal(err)
		}
		blind.on.Store(true)
		if _, err := c.TryAcquire(lock.Context(), "n", holdfast.Reentrant()); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("with the backend away: %v", err)
		}
		blind.on.Store(false)
		if err := openStore(t, store).Release(t.Context(), backend.ReleaseRequest{Name: lease.Name, Lease: lease.ID}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryAcquire(lock.Context(), "n", holdfast.Reentrant()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("with the lease gone: %v", err)
		}
	})
}

// blind does not know the holders.
type blind struct {
	backend.Backend
	on atomic.Bool
}

func (b *blind) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if b.on.Load() {
		return backend.LockInfo{}, unavailable(false)
	}
	return b.Backend.Inspect(ctx, name)
}

// Re-entry grants no more than is held.
func TestReentryIntoPermits(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	lock := mustAcquire(t, c, "n", holdfast.Limit(5), holdfast.Permits(2))
	if _, err := c.TryAcquire(lock.Context(), "n", holdfast.Reentrant(), holdfast.Limit(5), holdfast.Permits(3)); !errors.Is(err, holdfast.ErrDeadlock) {
		t.Errorf("three permits where two are held: %v", err)
	}
	for _, opt := range []holdfast.Option{holdfast.Limit(3), holdfast.Shared()} {
		if _, err := c.TryAcquire(lock.Context(), "n", holdfast.Reentrant(), opt); !errors.Is(err, holdfast.ErrLimit) {
			t.Errorf("another limit: %v", err)
		}
	}
	for permits := 1; permits <= 2; permits++ {
		if _, err := c.TryAcquire(lock.Context(), "n", holdfast.Reentrant(), holdfast.Limit(5), holdfast.Permits(permits)); err != nil {
			t.Errorf("%d permits: %v", permits, err)
		}
	}
	if n := f.acquires.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// The context of several locks also belongs to the locks around them: a caller that acquires one of
// those with it does not wait for itself.
func TestReentryAroundSeveral(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	err := c.Do(t.Context(), "outer", func(ctx context.Context, outer *holdfast.Lock) error {
		locks, err := c.AcquireAll(ctx, []string{"a", "b"})
		if err != nil {
			return err
		}
		again, err := c.TryAcquire(locks.Context(), "outer", holdfast.Reentrant())
		if err == nil && again.Token() != outer.Token() {
			t.Error("another lease")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A caller that does not pass on the context of its lock waits for itself. The error says so; ErrDeadlock would be
// wrong, because another goroutine may release the lock.
func TestErrorOfAWaitForOneself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := newClient(t, openStore(t, store), holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
		for what, opts := range map[string][]holdfast.Option{"of the session": nil, "timed": {holdfast.TTL(time.Minute)}} {
			held := mustAcquire(t, c, "n", opts...)
			mine := "this client holds it with token " + held.Token().String()
			for how, wait := range map[string]func(*holdfast.Client) error{
				"Wait": func(c *holdfast.Client) error {
					_, err := c.Acquire(t.Context(), "n", holdfast.Wait(time.Second))
					return err
				},
				"context": func(c *holdfast.Client) error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, err := c.Acquire(ctx, "n")
					return err
				},
			} {
				if err := wait(c); err == nil || !strings.Contains(err.Error(), mine) || errors.Is(err, holdfast.ErrDeadlock) {
					t.Errorf("%s, %s: %v; want %q, and no ErrDeadlock", what, how, err, mine)
				}
				if err := wait(other); err == nil || strings.Contains(err.Error(), "this client") {
					t.Errorf("%s, %s, of another client: %v", what, how, err)
				}
			}
			got := make(chan error)
			go func() { // legal: another goroutine releases it
				lock, err := c.Acquire(t.Context(), "n")
				if err == nil {
					err = lock.Release(t.Context())
				}
				got <- err
			}()
			synctest.Wait()
			if err := errors.Join(held.Release(t.Context()), <-got); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call with the context of a lock never waits for that lock: what fits beside it is a lease of its own, and anything
// else is ErrDeadlock, without a request where this client knows it. A writer in the queue is in the way, too.
func TestAcquireInside(t *testing.T) {
	t.Parallel()
	shared, three, two := holdfast.Shared(), holdfast.Limit(3), holdfast.Permits(2)
	for name, tc := range map[string]struct {
		outer, inner []holdfast.Option
		writer, sent bool
		want         error
	}{
		"exclusive in exclusive":     {want: holdfast.ErrDeadlock},
		"shared in exclusive":        {inner: []holdfast.Option{shared}, want: holdfast.ErrDeadlock},
		"exclusive in shared":        {outer: []holdfast.Option{shared}, want: holdfast.ErrDeadlock},
		"shared in shared":           {outer: []holdfast.Option{shared}, inner: []holdfast.Option{shared}, sent: true},
		"shared, and a writer waits": {outer: []holdfast.Option{shared}, inner: []holdfast.Option{shared}, writer: true, sent: true, want: holdfast.ErrDeadlock},
		"a free permit":              {outer: []holdfast.Option{three}, inner: []holdfast.Option{three, two}, sent: true},
		"too many permits":           {outer: []holdfast.Option{three, two}, inner: []holdfast.Option{three, two}, want: holdfast.ErrDeadlock},
		"another limit":              {outer: []holdfast.Option{three}, inner: []holdfast.Option{holdfast.Limit(2)}, sent: true, want: holdfast.ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c, other := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
				outer := mustAcquire(t, c, "n", tc.outer...)
				queued, cancel := context.WithCancel(t.Context())
				var writer sync.WaitGroup
				if tc.writer {
					writer.Go(func() { _, _ = other.Acquire(queued, "n") })
					synctest.Wait()
				}
				for how, take := range map[string]func(context.Context, string, ...holdfast.Option) (*holdfast.Lock, error){"Acquire": c.Acquire, "TryAcquire": c.TryAcquire} {
					asked, began := f.acquires.Load(), time.Now()
					ctx, end := context.WithTimeout(outer.Context(), time.Hour)
					inner, err := take(ctx, "n", tc.inner...)
					end()
					if !errors.Is(err, tc.want) || time.Since(began) > time.Second || f.acquires.Load() > asked != tc.sent {
						t.Errorf("%s: %v after %s and %d requests", how, err, time.Since(began), f.acquires.Load()-asked)
					}
					if tc.writer && !errors.Is(err, holdfast.ErrHeld) {
						t.Errorf("%s: %v does not say who holds it", how, err)
					}
					if err != nil {
						continue
					}
					if inner.Token() <= outer.Token() {
						t.Errorf("%s: token %d inside %d", how, inner.Token(), outer.Token())
					}
					if err := inner.Release(t.Context()); err != nil || outer.Err() != nil {
						t.Errorf("%s: %v, outer %v", how, err, outer.Err())
					}
				}
				cancel()
				writer.Wait()
			})
		})
	}
}

// Two goroutines under one lock do not get into it both. Permits that the context has already count.
func TestGoroutinesInside(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	err := c.Do(t.Context(), "n", func(ctx context.Context, _ *holdfast.Lock) error {
		return c.Do(ctx, "n", func(ctx context.Context, _ *holdfast.Lock) error {
			if _, err := c.Acquire(ctx, "n", holdfast.Limit(3), holdfast.Permits(2)); !errors.Is(err, holdfast.ErrDeadlock) {
				t.Errorf("two permits, with two of three: %v", err)
			}
			return nil
		}, holdfast.Limit(3))
	}, holdfast.Limit(3))
	if err != nil {
		t.Error(err)
	}
}

// Once a lock is released, its context means nothing, also where context.WithoutCancel keeps it alive: the call acquires.
// Reentrant has nothing to join then, and is never an acquisition.
func TestContextOfAReleasedLock(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	lock := mustAcquire(t, c, "n")
	after := context.WithoutCancel(lock.Context())
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquire(after, "n", holdfast.Reentrant()); !errors.Is(err, holdfast.ErrReleased) {
		t.Errorf("Reentrant into what was released: %v", err)
	}
	if _, err := c.TryAcquire(t.Context(), "n", holdfast.Reentrant()); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("Reentrant without a lock: %v", err)
	}
	next, err := c.TryAcquire(after, "n")
	if err != nil || next.Token() <= lock.Token() {
		t.Fatalf("acquire: %v", err)
	}
	if _, err := c.TryAcquire(context.WithoutCancel(next.Context()), "n"); !errors.Is(err, holdfast.ErrDeadlock) {
		t.Errorf("with the context of the next: %v", err)
	}
}
