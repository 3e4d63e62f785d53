package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

func TestAtLeastAtMostNoRenew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		a := newClient(t, f, holdfast.Config{})
		b := newClient(t, openStore(t, store), holdfast.Config{})

		lock := mustAcquire(t, a, "least", holdfast.AtLeast(time.Minute))
		begun := time.Now()
		time.Sleep(10 * time.Second)
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, b, "least")
		if took := time.Since(begun); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("AtLeast(1m) held for %s", took)
		}

		lock = mustAcquire(t, a, "most", holdfast.AtMost(45*time.Second))
		begun = time.Now()
		<-lock.Context().Done()
		var lost *holdfast.LostError
		if took := time.Since(begun); took < 45*time.Second || took > 46*time.Second || !errors.As(lock.Err(), &lost) || lost.Cause != holdfast.CauseAtMost {
			t.Errorf("AtMost(45s): over after %s: %v", took, lock.Err())
		}
		synctest.Wait()
		if _, err := b.TryAcquire(t.Context(), "most"); err != nil {
			t.Errorf("not given up after AtMost: %v", err)
		}

		lock = mustAcquire(t, a, "timed", holdfast.NoRenew(), holdfast.TTL(20*time.Second))
		begun = time.Now()
		<-lock.Context().Done()
		if !errors.As(lock.Err(), &lost) || lost.Cause != holdfast.CauseEnded {
			t.Errorf("NoRenew ended as %v", lock.Err())
		}
		mustAcquire(t, b, "timed")
		if took := time.Since(begun); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("NoRenew fell after %s", took)
		}
	})
}

// A resumed lease keeps its own TTL, unless another is asked for: what was reserved for two hours does not
// fall after the 30 s of a client that takes it over.
func TestResumeKeepsTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		a, b := newClient(t, openStore(t, store), holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
		const ttl = 20 * time.Minute
		lease, err := mustAcquire(t, a, "n", holdfast.NoRenew(), holdfast.TTL(ttl)).Detach()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl / 2)
		left := func() time.Duration {
			info, err := a.Inspect(t.Context(), "n")
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("%+v, %v", info, err)
			}
			return info.Holders[0].Left
		}
		lock, err := b.Resume(t.Context(), lease)
		if err != nil || left() != ttl {
			t.Fatalf("resumed: %v, with %s left of %s", err, left(), ttl)
		}
		time.Sleep(3 * ttl)
		if err := lock.Err(); err != nil || left() < ttl/2 {
			t.Errorf("renewed for %s: %v, with %s left", ttl, err, left())
		}
	})
}

// A reservation outlives its client; another process takes it over.
func TestDetachAndResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		a, err := holdfast.New(f, holdfast.Config{Owner: "a"})
		if err != nil {
			t.Fatal(err)
		}
		lock := mustAcquire(t, a, "n", holdfast.NoRenew(), holdfast.TTL(time.Minute))
		token := lock.Token()
		lease, err := lock.Detach()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		b := newClient(t, openStore(t, store), holdfast.Config{Owner: "b"})
		resumed, err := b.Resume(t.Context(), lease)
		if err != nil || resumed.Token() != token {
			t.Fatalf("resume: %v", err)
		}
		time.Sleep(10 * time.Minute)
		if resumed.Err() != nil {
			t.Fatalf("not renewed: %v", resumed.Err())
		}
		if err := resumed.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Resume(t.Context(), lease); !errors.Is(err, holdfast.ErrLost) {
			t.Fatalf("resume after release: %v", err)
		}
		plain := mustAcquire(t, b, "p")
		if _, err := plain.Detach(); !errors.Is(err, holdfast.ErrInvalid) {
			t.Fatalf("detach of a lease that is renewed: %v", err)
		}
	})
}

func TestExtend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		lock := mustAcquire(t, c, "n", holdfast.NoRenew(), holdfast.TTL(10*time.Second))
		time.Sleep(8 * time.Second)
		if err := lock.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(55 * time.Second)
		if lock.Err() != nil {
			t.Fatal(lock.Err())
		}
		plain := mustAcquire(t, c, "p")
		before := plain.Deadline()
		time.Sleep(5 * time.Second)
		if err := plain.Extend(t.Context(), 30*time.Second); err != nil || !plain.Deadline().After(before) {
			t.Fatalf("%v, deadline %s", err, plain.Deadline().Sub(before))
		}
		var bad *holdfast.InvalidError
		if err := plain.Extend(t.Context(), time.Minute); !errors.As(err, &bad) || bad.Field != "ttl" {
			t.Fatalf("extend above the session's TTL: %v", err)
		}
		<-lock.Context().Done()
		if err := lock.Extend(t.Context(), time.Minute); !errors.Is(err, holdfast.ErrLost) {
			t.Fatalf("a lost lease was extended: %v", err)
		}
	})
}

func TestAcquireAll(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	a, b := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
	var wg sync.WaitGroup
	for i, c := range []*holdfast.Client{a, b, a, b} {
		names := []string{"x", "y", "z", "x"}
		if i%2 == 1 {
			names = []string{"z", "y", "x"}
		}
		wg.Go(func() {
			for range 50 {
				locks, err := c.AcquireAll(t.Context(), names)
				if err != nil {
					t.Error(err)
					return
				}
				ctx := locks.Context()
				if len(locks) != 3 || ctx.Err() != nil {
					t.Errorf("%d locks, %v", len(locks), ctx.Err())
				}
				if again, err := c.TryAcquire(ctx, "y", holdfast.Reentrant()); err != nil || again.Token() != locks[1].Token() {
					t.Errorf("re-entry with the context of several locks: %v", err)
				} else if err := again.Release(ctx); err != nil {
					t.Error(err)
				}
				if err := locks.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if <-ctx.Done(); !errors.Is(context.Cause(ctx), holdfast.ErrReleased) {
					t.Errorf("after release: %v", context.Cause(ctx))
				}
			}
		})
	}
	wg.Wait()
	hold := mustAcquire(t, b, "y")
	if _, err := a.AcquireAll(t.Context(), []string{"x", "y", "z"}, holdfast.Wait(10*time.Millisecond)); !errors.Is(err, holdfast.ErrHeld) {
		t.Fatalf("%v", err)
	}
	if lock, err := b.TryAcquire(t.Context(), "x"); err != nil {
		t.Fatalf("not all or nothing: %v", err)
	} else if err := errors.Join(lock.Release(t.Context()), hold.Release(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// Do reports a loss even if the function did not check for it, and releases only after the function
// has returned (B25).
func TestDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDo)
}

func testDo(t *testing.T) {
	f, store := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	other := newClient(t, openStore(t, store), holdfast.Config{})
	mine := errors.New("mine")
	err := c.Do(t.Context(), "n", func(ctx context.Context, _ *holdfast.Lock) error {
		if _, err := other.Break(t.Context(), "n", "test"); err != nil {
			return err
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), holdfast.ErrLost) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		return mine
	})
	if !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, mine) { // B26: neither hides the other
		t.Fatalf("%v", err)
	}
	if err := c.Do(t.Context(), "n", func(context.Context, *holdfast.Lock) error { return mine }); !errors.Is(err, mine) { // B26, and it is released
		t.Errorf("%v", err)
	}
	// What f returned of its context's end is not said twice.
	for what, end := range map[string]func(context.Context) error{"the error": context.Context.Err, "the cause": context.Cause} {
		err := c.Do(t.Context(), "n", func(ctx context.Context, _ *holdfast.Lock) error {
			if _, err := other.Break(t.Context(), "n", "test"); err != nil {
				return err
			}
			<-ctx.Done()
			return end(ctx)
		})
		if lost, ok := errors.AsType[*holdfast.OpError](err); !ok || !errors.Is(err, holdfast.ErrLost) || err.Error() != lost.Error() {
			t.Errorf("f returned %s of its context: %v", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.Do(ctx, "n", func(inner context.Context, _ *holdfast.Lock) error {
		cancel()
		<-inner.Done()
		synctest.Wait() // for whatever else the end of ctx causes
		if _, err := other.TryAcquire(t.Context(), "n"); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("released while the function ran: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lock, err := other.TryAcquire(t.Context(), "n"); err != nil {
		t.Fatalf("not released after a cancelled Do: %v", err)
	} else if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// C13: Close releases the held locks, ends all waits, and refuses later calls.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c, err := holdfast.New(f, holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		other := newClient(t, openStore(t, store), holdfast.Config{})
		lock := mustAcquire(t, c, "n")
		timed := mustAcquire(t, c, "t", holdfast.TTL(time.Minute))
		mustAcquire(t, other, "m")
		waiting := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context(), "m")
			waiting <- err
		}()
		synctest.Wait()
		if s := c.Stats(); s != (holdfast.Stats{Held: 2, Waiting: 1, Sessions: 1}) {
			t.Errorf("stats %+v", s)
		}
		go func() { _ = c.Close(t.Context()) }()
		if err := <-waiting; !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("who waited got %v", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*holdfast.Lock{lock, timed} {
			var lost *holdfast.LostError
			if !errors.As(context.Cause(l.Context()), &lost) || lost.Cause != holdfast.CauseClosed {
				t.Errorf("%s: %v", l.Name(), context.Cause(l.Context()))
			}
			if _, err := other.TryAcquire(t.Context(), l.Name()); err != nil {
				t.Errorf("the lock was not released: %v", err)
			}
		}
		if info, _ := other.Inspect(t.Context(), "m"); len(info.Waiters) != 0 {
			t.Error("a waiter was left behind")
		}
		afterClose(t, c)
	})
}

// afterClose makes every call of a closed client.
func afterClose(t *testing.T, c *holdfast.Client) {
	t.Helper()
	ctx := t.Context()
	second := func(_ any, err error) error { return err }
	last := func(calls iter.Seq2[holdfast.Event, error]) error {
		var err error
		for _, err = range calls { // the last one counts
		}
		return err
	}
	for name, err := range map[string]error{
		"Acquire": second(c.Acquire(ctx, "x")), "TryAcquire": second(c.TryAcquire(ctx, "x")), "AcquireAll": second(c.AcquireAll(ctx, []string{"x"})),
		"Do":      c.Do(ctx, "x", func(context.Context, *holdfast.Lock) error { return nil }),
		"DoAll":   c.DoAll(ctx, []string{"x"}, func(context.Context, holdfast.Locks) error { return nil }),
		"Resume":  second(c.Resume(ctx, holdfast.Lease{Name: "x", ID: backend.NewLeaseID()})),
		"Inspect": second(c.Inspect(ctx, "x")), "List": second(c.List(ctx, holdfast.ListOptions{})), "Break": second(c.Break(ctx, "x", "test")),
		"Watch": last(c.Watch(ctx, "")),
	} {
		var op *holdfast.OpError
		if !errors.Is(err, holdfast.ErrClosed) || !errors.As(err, &op) || op.MayHold {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// TestRenewalsThatPass: a renewal with a shorter TTL arrives after an extension with a longer one,
// and so shortens the lease. This side does not consider the lease longer than it is.
func TestRenewalsThatPass(t *testing.T) {
	t.Parallel()
	const short, long = 10 * time.Second, 2 * time.Minute
	for name, answered := range map[string]bool{"answered first": true, "given up before": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c := newClient(t, f, holdfast.Config{})
				lock := mustAcquire(t, c, "n", holdfast.TTL(short))
				// The first renewal, the renewer's, is in progress for a while.
				first := make(chan struct{})
				slow := func(_ context.Context, call func() (backend.RenewResult, error)) (backend.RenewResult, error) {
					f.renew.Store(nil)
					close(first)
					if answered {
						time.Sleep(time.Second)
						return call()
					}
					time.AfterFunc(time.Second, func() {
						_, _ = f.Backend.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{
							{Name: lock.Name(), Lease: lock.Lease().ID, TTL: short},
						}})
					})
					return backend.RenewResult{}, unavailable(true)
				}
				f.renew.Store(&slow)
				<-first
				// The extension overtakes it, but its answer arrives later.
				fast := func(_ context.Context, call func() (backend.RenewResult, error)) (backend.RenewResult, error) {
					f.hangRenew()
					r, err := call()
					time.Sleep(2 * time.Second)
					return r, err
				}
				f.renew.Store(&fast)
				if err := lock.Extend(t.Context(), long); err != nil {
					t.Fatal(err)
				}
				mustEndHereFirst(t, lock, store)
			})
		})
	}
}

// mustEndHereFirst checks that this side does not consider the lock alive for longer than it is.
func mustEndHereFirst(t *testing.T, lock *holdfast.Lock, store *memlock.Store) {
	t.Helper()
	info, err := openStore(t, store).Inspect(t.Context(), lock.Name())
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	if here, there := time.Until(lock.Deadline()), info.Holders[0].Left; here > there {
		t.Errorf("held for %s here, and for %s on the backend", here, there)
	}
}

// TestExtendWithoutAnswer: it may have shortened the lease.
func TestExtendWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]holdfast.Option{
		"renewed":     {holdfast.TTL(time.Minute)},
		"not renewed": {holdfast.TTL(time.Minute), holdfast.NoRenew()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				lock := mustAcquire(t, newClient(t, f, holdfast.Config{}), "n", opts...)
				deaf := func(ctx context.Context, call func() (backend.RenewResult, error)) (backend.RenewResult, error) {
					_, _ = call()
					<-ctx.Done()
					return backend.RenewResult{}, unavailable(true)
				}
				f.renew.Store(&deaf)
				soon, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := lock.Extend(soon, 5*time.Second); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("Extend without an answer: %v", err)
				}
				mustEndHereFirst(t, lock, store)
				f.renew.Store(nil)
				time.Sleep(10 * time.Second)
				if renewed := len(opts) == 1; renewed != (lock.Err() == nil) {
					t.Errorf("ten seconds later: %v", lock.Err())
				}
			})
		})
	}
}

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
