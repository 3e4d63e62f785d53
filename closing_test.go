package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// Close ends with its context, and after the time for which a call is retried, whatever is in
// progress.
func TestCloseWhileTheBackendIsAway(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, begin := range map[string]func(*testing.T, *holdfast.Client) func(){
		"many leases": func(t *testing.T, c *holdfast.Client) func() {
			t.Helper()
			for i := range 8 {
				mustAcquire(t, c, fmt.Sprint("n", i), holdfast.TTL(time.Hour))
			}
			return func() {}
		},
		"a release": func(t *testing.T, c *holdfast.Client) func() {
			t.Helper()
			lock := mustAcquire(t, c, "n", holdfast.TTL(day))
			done := make(chan error, 1)
			go func() { done <- lock.Release(context.WithoutCancel(t.Context())) }()
			return func() { mayHold(t, <-done) }
		},
		"a settlement": func(t *testing.T, c *holdfast.Client) func() {
			t.Helper()
			lock := mustAcquire(t, c, "n", holdfast.TTL(day))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			mayHold(t, lock.Release(ctx))
			return func() {}
		},
	} {
		for _, patience := range []time.Duration{time.Second, time.Hour} {
			t.Run(fmt.Sprint(name, " ", patience), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					f, _ := newFaults(t)
					const timeout = 9 * time.Second
					c := newClient(t, f, holdfast.Config{Timeout: timeout})
					away := func(context.Context, func() error) error { return unavailable(false) }
					f.release.Store(&away)
					end := begin(t, c)
					synctest.Wait()
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					begun := time.Now()
					if err := c.Close(ctx); err == nil {
						t.Error("closed, and what is out is not known")
					}
					if took := time.Since(begun); took > min(patience, timeout+2*time.Second)+timeout/3 {
						t.Errorf("after %s", took)
					}
					end()
				})
			})
		}
	}
}

// A second Close waits for the first, but no longer than its context.
func TestCloseAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		away := func(context.Context, func() error) error { return unavailable(false) }
		f.release.Store(&away)
		mustAcquire(t, c, "n", holdfast.TTL(time.Hour))
		first := make(chan error)
		go func() { first <- c.Close(context.WithoutCancel(t.Context())) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if err := <-first; !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("the first: %v", err)
		}
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// An AcquireAll that fails leaves nothing behind, and the clean-up does not delay it past its context.
func TestAcquireAllFails(t *testing.T) {
	t.Parallel()
	t.Run("at least", func(t *testing.T) {
		t.Parallel()
		f, store := newFaults(t)
		c, other := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
		mustAcquire(t, other, "b")
		_, err := c.AcquireAll(t.Context(), []string{"a", "b"}, holdfast.Wait(0), holdfast.AtLeast(time.Hour))
		if !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		if _, err := other.TryAcquire(t.Context(), "a"); err != nil {
			t.Errorf("AcquireAll failed, and the first lock stays held: %v", err)
		}
	})
	t.Run("inside a lock that stays", func(t *testing.T) {
		t.Parallel()
		f, store := newFaults(t)
		c, other := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
		outer := mustAcquire(t, c, "a", holdfast.AtLeast(time.Hour))
		_, err := c.AcquireAll(outer.Context(), []string{"a", "b"}, holdfast.Reentrant())
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Fatal(err)
		}
		mustRelease(t, outer)
		if _, err := other.TryAcquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("the lock around does not stay: %v", err)
		}
	})
	t.Run("backend away", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			away := func(context.Context, func() error) error { return unavailable(false) }
			f.release.Store(&away)
			const most = 10
			some := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
				if f.acquires.Load() > most {
					return backend.Grant{}, unavailable(false)
				}
				return call()
			}
			f.acquire.Store(&some)
			var names []string
			for i := range most + 1 {
				names = append(names, fmt.Sprint("n", i))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			if _, err := c.AcquireAll(ctx, names); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(begun) > time.Second {
				t.Errorf("after %s: %v", time.Since(begun), err)
			}
			f.release.Store(nil)
			time.Sleep(10 * time.Second)
			if page, err := openStore(t, store).List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) != 0 {
				t.Errorf("left: %+v, %v", page.Locks, err)
			}
		})
	})
}
