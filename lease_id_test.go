package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// C6: with a lease ID made by the caller, another client may retry the same acquisition. A lease
// whose outcome the first client does not know may be held by the second: the first never releases
// it without the second's knowledge.
func TestGivenLeaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	for name, first := range map[string]func(*testing.T, *faults, *holdfast.Client, func(...holdfast.AcquireOption) []holdfast.AcquireOption) func(){
		"lost reply": func(t *testing.T, f *faults, c *holdfast.Client, opts func(...holdfast.AcquireOption) []holdfast.AcquireOption) func() {
			t.Helper()
			drop := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
				_, _ = call()
				return backend.Grant{}, unavailable(true)
			}
			f.acquire.Store(&drop)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.TryAcquire(ctx, "n", opts()...)
			mayHold(t, err)
			return func() {}
		},
		"wait that has elapsed": func(t *testing.T, _ *faults, c *holdfast.Client, opts func(...holdfast.AcquireOption) []holdfast.AcquireOption) func() {
			t.Helper()
			holder := mustAcquire(t, c, "n")
			_, err := c.Acquire(t.Context(), "n", opts(holdfast.Wait(time.Second))...)
			mayHold(t, err)
			if !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("after the wait: %v", err)
			}
			return func() { mustRelease(t, holder) }
		},
		"wait that is called off": func(t *testing.T, _ *faults, c *holdfast.Client, opts func(...holdfast.AcquireOption) []holdfast.AcquireOption) func() {
			t.Helper()
			holder := mustAcquire(t, c, "n")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "n", opts()...)
			mayHold(t, err)
			return func() { mustRelease(t, holder) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				one, two := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
				three := newClient(t, openStore(t, store), holdfast.Config{})
				id := holdfast.NewLeaseID()
				opts := func(more ...holdfast.AcquireOption) []holdfast.AcquireOption {
					return append(more, holdfast.WithLease(id), holdfast.NoRenew(), holdfast.TTL(ttl))
				}
				free := first(t, f, one, opts)
				had := make(chan *holdfast.Lock, 1)
				go func() {
					defer close(had)
					had <- mustAcquire(t, two, "n", opts(holdfast.Wait(time.Hour))...)
				}()
				synctest.Wait()
				free()
				lock, ok := <-had
				if !ok {
					return
				}
				time.Sleep(ttl / 2)
				if _, err := three.TryAcquire(t.Context(), "n"); !errors.Is(err, holdfast.ErrHeld) || lock.Err() != nil {
					t.Errorf("the lock is held, and was given to another: %v; the holder: %v", err, lock.Err())
				}
				if n := f.releases.Load(); n > 1 {
					t.Errorf("the first client has released %d leases", n)
				}
				mustRelease(t, lock)
			})
		})
	}
}

func mayHold(t *testing.T, err error) {
	t.Helper()
	if op, ok := errors.AsType[*holdfast.OpError](err); !ok || !op.MayHold {
		t.Errorf("%v does not say that the lease may be out", err)
	}
}

func mustRelease(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// C8: the session ends while two calls of one client wait under one lease ID, and one has left.
func TestGivenLeaseIsWaitedForTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
		mustAcquire(t, c, "warm")
		hang := func(ctx context.Context, _ func() (backend.Grant, error)) (backend.Grant, error) {
			<-ctx.Done()
			return backend.Grant{}, context.Cause(ctx)
		}
		f.acquire.Store(&hang)
		id := holdfast.NewLeaseID()
		wait := func(ctx context.Context) error {
			_, err := c.Acquire(ctx, "n", holdfast.NoRenew(), holdfast.WithLease(id), holdfast.TTL(time.Hour))
			return err
		}
		long, end := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { got <- wait(long) }()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = wait(soon)
		before := f.acquires.Load()
		f.hangRenew()
		time.Sleep(30 * time.Second)
		if f.acquires.Load() == before {
			t.Error("the session has ended, and who waited was not told")
		}
		f.renew.Store(nil)
		end()
		mayHold(t, <-got)
	})
}

// C10: a caller that acquired twice with one lease ID has two locks of one lease, and both end with
// it.
func TestGivenLeaseIsBrokenForBoth(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	c, operator := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
	id := holdfast.NewLeaseID()
	var locks []*holdfast.Lock
	for range 4 {
		locks = append(locks, mustAcquire(t, c, "n", holdfast.NoRenew(), holdfast.WithLease(id)))
	}
	if _, err := operator.Break(t.Context(), "n", "test"); err != nil {
		t.Fatal(err)
	}
	for _, l := range locks {
		select {
		case <-l.Context().Done():
		case <-time.After(10 * time.Second):
			t.Error("it was broken, and one of those who have it was not told")
		}
	}
}
