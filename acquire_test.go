package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// The loss of a session is reported before the session is known to be open: the next one is opened,
// and no call waits for the end of the first.
func TestSessionLostWhileOpening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		f.Backend = &stillborn{Backend: f.Backend}
		c := newClient(t, f, holdfast.Config{TTL: time.Hour})
		begun := time.Now()
		lock := mustAcquire(t, c, "n")
		if took := time.Since(begun); took > 5*time.Second || lock.Err() != nil {
			t.Errorf("after %s: %v", took, lock.Err())
		}
		if n := c.Stats().Sessions; n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
}

// stillborn loses its first session before it answers.
type stillborn struct {
	backend.Backend
	opened atomic.Bool
}

func (b *stillborn) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	err := b.Backend.OpenSession(ctx, r)
	if b.opened.CompareAndSwap(false, true) {
		_ = b.EndSession(ctx, r.ID)
		r.Lost(backend.Loss{Session: r.ID, Cause: backend.CauseSession})
		simulate.Sleep(ctx, time.Second)
	}
	return err
}

// A wait whose session has ended on this side has no place in the queue any more: it is interrupted,
// although the backend does not answer it, and begins again in another session.
func TestWaitOutlivesItsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
		hang := func(ctx context.Context, _ func() (backend.Grant, error)) (backend.Grant, error) {
			f.acquire.Store(nil)
			f.hangRenew()
			<-ctx.Done()
			f.renew.Store(nil)
			return backend.Grant{}, context.Cause(ctx)
		}
		f.acquire.Store(&hang)
		begun := time.Now()
		lock := mustAcquire(t, c, "n")
		if took := time.Since(begun); took > 11*time.Second || lock.Err() != nil {
			t.Errorf("after %s: %v", took, lock.Err())
		}
		if n := c.Stats().Waiting; n != 0 {
			t.Errorf("%d attempts are in progress", n)
		}
	})
}

// C7: a wait for a timed lease is granted, its answer is lost, and its session ends on this side. The lease
// outlives the session, so it is released: otherwise it would keep the lock from every client, and from this
// one, until its TTL has elapsed.
func TestTimedGrantOutlivesItsSession(t *testing.T) {
	t.Parallel()
	cutShort := func(ctx context.Context) error { return context.Cause(ctx) }
	lost := func(context.Context) error { return backend.ErrSessionLost }
	for name, answer := range map[string]func(context.Context) error{
		"the cause": cutShort, "the session is lost": lost,
		"unavailable": func(ctx context.Context) error {
			return &backend.UnavailableError{Backend: "memory", Op: "acquire", MayHold: true, Err: cutShort(ctx)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, _ := newFaults(t)
				c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
				drop := func(ctx context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
					f.acquire.Store(nil)
					f.hangRenew()
					if _, err := call(); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					f.renew.Store(nil)
					return backend.Grant{}, answer(ctx)
				}
				f.acquire.Store(&drop)
				begun := time.Now()
				lock := mustAcquire(t, c, "n", holdfast.TTL(time.Hour))
				if took := time.Since(begun); took > 11*time.Second || lock.Err() != nil {
					t.Errorf("after %s: %v", took, lock.Err())
				}
			})
		})
	}
}

// C10, C7: an attempt is granted, its answer is lost, and the lease is broken before the next
// attempt, which is granted again. Renewals report the loss once more: the new grant must not stay
// with the session without a holder.
func TestLossOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
		operator := openStore(t, store)
		drop := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			f.acquire.Store(nil)
			if _, err := call(); err != nil {
				t.Error(err)
			}
			if _, err := operator.Break(t.Context(), backend.BreakRequest{Name: "n", Reason: "test"}); err != nil {
				t.Error(err)
			}
			synctest.Wait() // the renewer has received it
			return backend.Grant{}, unavailable(true)
		}
		f.acquire.Store(&drop)
		lock := mustAcquire(t, c, "n")
		time.Sleep(time.Minute)
		info, err := operator.Inspect(t.Context(), "n")
		if err != nil || (lock.Err() == nil) != (len(info.Holders) == 1) {
			t.Errorf("here: %v; on the backend: %+v, %v", lock.Err(), info.Holders, err)
		}
	})
}

// C12: a lease of an earlier attempt that is not known to be gone may be held.
func TestGivenUpMayBeHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: time.Hour})
		away := func(context.Context, func() error) error { return unavailable(false) }
		f.release.Store(&away)
		fate := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			switch f.acquires.Load() {
			case 1:
				_, _ = call()
				return backend.Grant{}, unavailable(true)
			case 2:
				return backend.Grant{}, backend.ErrLost
			}
			return backend.Grant{}, unavailable(false)
		}
		f.acquire.Store(&fate)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Acquire(ctx, "n")
		if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 1 {
			t.Fatalf("%+v", info)
		}
		mayHold(t, err)
		f.release.Store(nil)
	})
}

// C10, C14: a lease that is broken while its grant is on the way is not acquired.
func TestGrantThatWasBrokenOnTheWayIsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: time.Hour})
		operator := openStore(t, store)
		late := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			f.acquire.Store(nil)
			g, err := call()
			if _, err := operator.Break(t.Context(), backend.BreakRequest{Name: "n", Reason: "test"}); err != nil {
				t.Error(err)
			}
			synctest.Wait() // the renewer has received it
			return g, err
		}
		f.acquire.Store(&late)
		lock := mustAcquire(t, c, "n")
		info, err := operator.Inspect(t.Context(), "n")
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Token != lock.Token() || lock.Err() != nil {
			t.Errorf("held here with token %d, %v; on the backend: %+v, %v", lock.Token(), lock.Err(), info.Holders, err)
		}
	})
}

// C13: a grant that arrives while the client is being closed is released.
func TestGrantThatComesAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		closed := make(chan error, 1)
		late := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			g, err := call()
			go func() { closed <- c.Close(context.WithoutCancel(t.Context())) }()
			synctest.Wait() // it waits for this call
			return g, err
		}
		f.acquire.Store(&late)
		if lock, err := c.Acquire(t.Context(), "n", holdfast.TTL(time.Hour)); !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("%v, %v", lock, err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if info, err := openStore(t, store).Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 0 {
			t.Errorf("left: %+v, %v", info.Holders, err)
		}
	})
}

// Wait bounds AcquireAll also where it is used up between two locks and the backend then answers
// nothing, and what was acquired is released in the background.
func TestAcquireAllKeepsItsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = time.Second
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		slow := func(ctx context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			if f.acquires.Load() == 1 {
				defer time.Sleep(wait + time.Millisecond)
				return call()
			}
			<-ctx.Done()
			return backend.Grant{}, ctx.Err()
		}
		hangs := func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}
		f.acquire.Store(&slow)
		f.release.Store(&hangs)
		begun := time.Now()
		_, err := c.AcquireAll(t.Context(), []string{"a", "b"}, holdfast.Wait(wait))
		if took := time.Since(begun); err == nil || f.acquires.Load() < 2 || took > 3*wait {
			t.Errorf("%v after %s and %d requests", err, took, f.acquires.Load())
		}
		f.release.Store(nil)
	})
}

// A wait that its deadline has ended is ErrHeld only because of holders that are in the way after that. It is not
// ErrUnavailable because of an earlier failure.
func TestDeadlineOfAWait(t *testing.T) {
	t.Parallel()
	reader := []holdfast.Option{holdfast.Shared()}
	for name, tc := range map[string]struct {
		opts    []holdfast.Option
		release time.Duration // when the writer releases; 0: never
		away    bool          // the first request fails
		held    bool
	}{
		"nobody": {nil, time.Hour + time.Millisecond, false, false}, "another reader": {reader, time.Hour + time.Millisecond, false, false},
		"a writer before a reader": {reader, 0, false, true}, "away long ago": {nil, 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c, writer, other := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{})
				lock := mustAcquire(t, writer, "n")
				if tc.release > 0 {
					time.AfterFunc(tc.release, func() { _ = lock.Release(t.Context()) })
				}
				first := true
				answer := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
					if first && tc.away {
						first = false
						return backend.Grant{}, unavailable(false)
					}
					return call()
				}
				f.acquire.Store(&answer)
				slow := func(_ context.Context, call func() error) error { time.Sleep(10 * time.Millisecond); return call() }
				f.release.Store(&slow)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if len(tc.opts) > 0 { // it is granted together with the caller, or stays behind the writer
					go func() { _, _ = other.Acquire(t.Context(), "n", tc.opts...) }()
				}
				_, err := c.Acquire(ctx, "n", tc.opts...)
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, holdfast.ErrHeld) != tc.held || errors.Is(err, holdfast.ErrUnavailable) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// C7: when a call returns, its place in the queue is gone, and so is what an AcquireAll had acquired. A store that
// does not answer delays the call for a moment only.
func TestNoPlaceIsLeft(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ answer, late time.Duration }{
		"the store answers": {100 * time.Millisecond, 200 * time.Millisecond}, "it does not": {time.Second, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c, other, look := newClient(t, f, holdfast.Config{}), newClient(t, openStore(t, store), holdfast.Config{}), openStore(t, store)
				held := mustAcquire(t, other, "n")
				slow := func(ctx context.Context, call func() error) error {
					select {
					case <-time.After(tc.answer):
						return call()
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				f.release.Store(&slow)
				for what, wait := range map[string]func(context.Context) error{
					"Acquire":    func(ctx context.Context) error { _, err := c.Acquire(ctx, "n"); return err },
					"AcquireAll": func(ctx context.Context) error { _, err := c.AcquireAll(ctx, []string{"a", "n"}); return err },
				} {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					began := time.Now()
					err := wait(ctx)
					cancel()
					if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Second+tc.late {
						t.Errorf("%s: %v after %s", what, err, took)
					}
					by, named := errors.AsType[*holdfast.HeldError](err)
					if named != (tc.answer < tc.late) || named && (by.Name != "n" || len(by.Holders) != 1 || by.Holders[0].Token != held.Token()) {
						t.Errorf("%s: the lock is held with token %d; the error says %v", what, held.Token(), err)
					}
					for _, lock := range []string{"a", "n"} {
						info, err := look.Inspect(t.Context(), lock)
						left := len(info.Waiters)
						if lock == "a" {
							left = len(info.Holders)
						}
						if err != nil || tc.answer < tc.late && left > 0 {
							t.Errorf("%s: %d are left at %q: %+v, %v", what, left, lock, info, err)
						}
					}
					time.Sleep(2 * tc.answer)
				}
				if err := held.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A store that never answered is waited for as long as Wait says, and without it no longer than Config.Timeout, whatever the
// context; one that answered once is waited for.
func TestStoreThatNeverAnswered(t *testing.T) {
	t.Parallel()
	const timeout = 5 * time.Second
	for name, away := range map[string]func(context.Context, func() error) error{
		"closed": func(context.Context, func() error) error { return unavailable(false) },
		"silent": func(ctx context.Context, _ func() error) error { <-ctx.Done(); return context.Cause(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c := newClient(t, f, holdfast.Config{Timeout: timeout})
				f.open.Store(&away)
				const long = time.Hour
				for least, wait := range map[time.Duration]holdfast.Option{0: holdfast.Wait(0), long: holdfast.Wait(long), timeout: holdfast.Owner("me")} {
					began := time.Now()
					_, err := c.Acquire(t.Context(), "n", wait)
					if took := time.Since(began); !errors.Is(err, holdfast.ErrUnavailable) || took < least || took > least+2*timeout {
						t.Errorf("%v after %s, not %s", err, took, least)
					}
				}
				f.open.Store(nil)
				mustRelease(t, mustAcquire(t, c, "n"))
				lost := openStore(t, store)
				if err := lost.EndSession(t.Context(), f.lastAsked.Load().Session); err != nil {
					t.Fatal(err)
				}
				f.open.Store(&away)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a store that answered once: %v", err)
				}
				f.open.Store(nil)
			})
		})
	}
}

// A store without sessions answers a call that waits only when the wait is over. It was there if the call waited for longer
// than Config.Timeout, and is waited for when it goes away.
func TestStoreThatKeptACallWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 5 * time.Second
		f, _ := newFaults(t)
		f.caps = func(c *backend.Capabilities) { c.Sessions = false }
		c := newClient(t, f, holdfast.Config{Timeout: timeout})
		began := time.Now()
		waits := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
			switch at := time.Since(began); {
			case at < timeout:
				time.Sleep(2 * timeout)
				return backend.Grant{}, unavailable(true)
			case at < 4*timeout:
				return backend.Grant{}, unavailable(false)
			}
			free := *f.lastAsked.Load()
			free.Wait = false
			return f.Backend.Acquire(t.Context(), free)
		}
		f.acquire.Store(&waits)
		mustRelease(t, mustAcquire(t, c, "n"))
	})
}

// C6: with a lease ID made by the caller, another client may retry the same acquisition. A lease
// whose outcome the first client does not know may be held by the second: the first never releases
// it without the second's knowledge.
func TestGivenLeaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	for name, first := range map[string]func(*testing.T, *faults, *holdfast.Client, func(...holdfast.Option) []holdfast.Option) func(){
		"lost reply": func(t *testing.T, f *faults, c *holdfast.Client, opts func(...holdfast.Option) []holdfast.Option) func() {
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
		"wait that has elapsed": func(t *testing.T, _ *faults, c *holdfast.Client, opts func(...holdfast.Option) []holdfast.Option) func() {
			t.Helper()
			holder := mustAcquire(t, c, "n")
			_, err := c.Acquire(t.Context(), "n", opts(holdfast.Wait(time.Second))...)
			mayHold(t, err)
			if !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("after the wait: %v", err)
			}
			return func() { mustRelease(t, holder) }
		},
		"wait that is called off": func(t *testing.T, _ *faults, c *holdfast.Client, opts func(...holdfast.Option) []holdfast.Option) func() {
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
				opts := func(more ...holdfast.Option) []holdfast.Option {
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
