package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/elector"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// When a lock ends on this side, and why that is never too late.

// C9, B8: if no renewal is answered the context ends at sent + TTL - drift, not later, and before
// the lease ends on the backend.
func TestContextEndsAtDeadline(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]holdfast.Option{nil, {holdfast.TTL(7 * time.Second)}} {
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			var atRisk atomic.Int32
			c := newClient(t, f, holdfast.Config{TTL: 9 * time.Second, Hooks: &holdfast.Hooks{
				AtRisk: func(context.Context, holdfast.AtRiskEvent) { atRisk.Add(1) },
			}})
			begun := time.Now()
			lock := mustAcquire(t, c, "n", opts...)
			ttl := 9 * time.Second
			if opts != nil {
				ttl = 7 * time.Second
			}
			f.hangRenew()
			time.Sleep(ttl * 3 / 5)
			if s := lock.State(); s != holdfast.StateAtRisk || atRisk.Load() == 0 {
				t.Errorf("state %v after a failed renewal, %d events", s, atRisk.Load())
			}
			<-lock.Context().Done()
			took, want := time.Since(begun), ttl-clock.Drift(ttl)
			if took < want || took > want+50*time.Millisecond {
				t.Errorf("context ended after %s, want %s", took, want)
			}
			var lost *holdfast.LostError
			if !errors.As(context.Cause(lock.Context()), &lost) || lost.Cause != holdfast.CauseDeadline || lost.Err == nil || errors.Is(lost, holdfast.ErrUnavailable) {
				t.Errorf("cause %v", context.Cause(lock.Context()))
			}
			if info, err := openStore(t, store).Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 1 {
				t.Errorf("the lease ended on the backend first: %+v %v", info, err)
			}
			if err := lock.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("release after loss: %v", err)
			}
		})
	}
}

// B10, C9: a renewal counts from its departure, however long its answer takes, because the lease on
// the backend does.
func TestRenewalCountsFromItsRequest(t *testing.T) {
	t.Parallel()
	// Without a wait there is no session, whose renewals would come in between.
	for _, opts := range [][]holdfast.Option{nil, {holdfast.TTL(7 * time.Second), holdfast.Wait(0)}} {
		synctest.Test(t, func(t *testing.T) {
			f, _ := newFaults(t)
			c := newClient(t, f, holdfast.Config{TTL: 9 * time.Second})
			lock := mustAcquire(t, c, "n", opts...)
			ttl := 9 * time.Second
			if opts != nil {
				ttl = 7 * time.Second
			}
			var sent time.Time
			slow := func(ctx context.Context, call func() (backend.RenewResult, error)) (backend.RenewResult, error) {
				sent = time.Now()
				res, err := call()
				f.hangRenew() // all that come after this one
				simulate.Sleep(ctx, time.Second)
				return res, err
			}
			f.renew.Store(&slow)
			<-lock.Context().Done()
			if took, want := time.Since(sent), ttl-clock.Drift(ttl); took < want || took > want+50*time.Millisecond {
				t.Errorf("context ended %s after the last renewal left, want %s", took, want)
			}
		})
	}
}

// C14, K6: the answer is so late that the lease has expired: the lock is not held.
func TestGrantThatRanOutOnTheWayIsNotHeld(t *testing.T) {
	t.Parallel()
	// Also if the backend does not report losses: the clock alone must suffice.
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, _ := newFaults(t)
			if !told {
				f.Backend = mute{f.Backend}
			}
			c := newClient(t, f, holdfast.Config{TTL: 5 * time.Second})
			var slow atomic.Int32
			sleep := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
				g, err := call()
				if slow.Add(1) == 1 {
					time.Sleep(4 * time.Second)
				}
				return g, err
			}
			f.acquire.Store(&sleep)
			begun := time.Now()
			lock := mustAcquire(t, c, "n", holdfast.TTL(3*time.Second))
			if time.Since(begun) < 4*time.Second || slow.Load() < 2 || lock.Err() != nil {
				t.Fatalf("a grant that had run out was returned: %v", lock.Err())
			}
			if left := time.Until(lock.Deadline()); left < 2*time.Second {
				t.Fatalf("deadline in %s", left)
			}
		})
	}
}

// mute reports no losses.
type mute struct{ backend.Backend }

func (m mute) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	r.Lost = nil
	return m.Backend.OpenSession(ctx, r)
}

func (m mute) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	res, err := m.Backend.Renew(ctx, r)
	res.Lost = nil
	return res, err
}

// C6: a first attempt was granted but its answer was lost. The lease is lost, and not released yet,
// when another one is requested. No other client has the lock, so it is not reported as held.
func TestTryIsNotHeldByItsOwnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		asked := 0
		lost := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			if asked++; asked > 1 {
				f.acquire.Store(nil)
				return backend.Grant{}, backend.ErrLost // as when the session has ended in the meantime
			}
			if _, err := call(); err != nil {
				t.Error(err)
			}
			return backend.Grant{}, unavailable(true)
		}
		f.acquire.Store(&lost)
		slow := func(ctx context.Context, call func() error) error {
			simulate.Sleep(ctx, 500*time.Millisecond)
			return call()
		}
		f.release.Store(&slow)
		lock, err := c.TryAcquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		// A lock of another client is reported as held immediately.
		other := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		mustAcquire(t, other, "n")
		begun := time.Now()
		if _, err := c.TryAcquire(t.Context(), "n"); !errors.Is(err, holdfast.ErrHeld) || time.Since(begun) > 0 {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// C9: this process was stopped, and the first code to run when it resumes is the holder's, not a
// timer. Whichever context the holder was given, it must not find it alive.
func TestContextsLookAtTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		var asleep atomic.Int64
		c.SetAsleep(func() time.Duration { return time.Duration(asleep.Load()) })
		wakes := func(ctx context.Context) {
			t.Helper()
			if err := ctx.Err(); err != nil {
				t.Errorf("before: %v", err)
			}
			asleep.Add(int64(time.Hour))
			if ctx.Err() == nil {
				t.Error("an hour later the context is alive")
			}
			if cause := context.Cause(ctx); !errors.Is(cause, holdfast.ErrLost) {
				t.Errorf("cause: %v", cause)
			}
			select {
			case <-ctx.Done():
			default:
				t.Error("Err says that it has ended, and Done that it has not")
			}
		}
		wakes(mustAcquire(t, c, "own").Context())
		locks, err := c.AcquireAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		wakes(locks.Context())
		if err := c.Do(t.Context(), "do", func(ctx context.Context, _ *holdfast.Lock) error {
			wakes(ctx)
			return nil
		}); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Do: %v", err)
		}
		e, err := elector.New(c, "election", elector.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		over := errors.New("one term is enough")
		if err := e.Run(ctx, func(ctx context.Context, _ *elector.Term) error {
			wakes(ctx)
			stop(over)
			return nil
		}); !errors.Is(err, over) {
			t.Errorf("Run: %v", err)
		}
	})
}

// C9: two readings of the clock may differ slightly, and the later one may be the smaller.
func TestDeadlineWhereTheClockGoesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		f.Backend = mute{f.Backend}
		c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
		lock := mustAcquire(t, c, "n", holdfast.NoRenew(), holdfast.TTL(5*time.Second))
		done := lock.Context().Done()
		time.Sleep(4850 * time.Millisecond)
		var asked atomic.Bool
		c.SetAsleep(func() time.Duration { // the renewer's first reading is too late by a tenth of a second
			if asked.CompareAndSwap(false, true) {
				return 100 * time.Millisecond
			}
			return 0
		})
		select {
		case <-done:
		case <-time.After(time.Second):
			t.Error("the deadline is no longer checked")
		}
	})
}

// 100,000 leases cost one request per renewal, one goroutine, and under 1 KiB each on this side.
func TestManyLeasesOneRenewal(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 10_000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, _ := newFaults(t)
				c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
				locks := make([]*holdfast.Lock, n)
				for i := range locks {
					locks[i] = mustAcquire(t, c, fmt.Sprintf("lock-%d", i))
				}
				before := f.renewals.Load()
				time.Sleep(100 * time.Second)
				if got := f.renewals.Load() - before; got < 10 || got > 14 {
					t.Errorf("%d renewals in 100 s for %d leases, want 10 to 14", got, n)
				}
				for _, l := range locks {
					if l.Err() != nil {
						t.Fatal(l.Err())
					}
				}
			})
		})
	}
}

// Timed leases of one TTL share requests, in chunks if the backend bounds them.
func TestTimedLeasesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		f.caps = func(c *backend.Capabilities) { c.MaxRenew = 100 }
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		var locks []*holdfast.Lock
		for i := range 500 {
			locks = append(locks, mustAcquire(t, c, fmt.Sprintf("lock-%d", i), holdfast.TTL(12*time.Second)))
		}
		before := f.renewals.Load()
		time.Sleep(60 * time.Second)
		if got := f.renewals.Load() - before; got > 17*6+10 {
			t.Errorf("%d requests in 60 s for 500 timed leases", got)
		}
		for _, l := range locks {
			if l.Err() != nil {
				t.Fatal(l.Err())
			}
		}
	})
}

// answers are causes of contexts that look like answers of a backend: an errgroup has the error of its first
// goroutine, and a lock its loss.
func answers() map[string]error {
	return map[string]error{
		"held":         &backend.HeldError{Name: "other", Holders: []backend.Holder{{Token: 1}}, Count: 1},
		"lost":         &holdfast.LostError{Name: "other", Cause: holdfast.CauseBroken},
		"session lost": backend.ErrSessionLost,
		"invalid":      &backend.InvalidError{Field: "ttl"},
		"unsupported":  backend.ErrUnsupported,
		"quarantine":   backend.ErrQuarantine,
		"gave up":      errors.New("gave up"),
	}
}

// eachAnswer runs a test for each of them: on a backend that returns the cause as it is, and on one that
// wraps it.
func eachAnswer(t *testing.T, test func(t *testing.T, cause error, end func(context.Context) error)) {
	t.Helper()
	for name, cause := range answers() {
		for how, end := range map[string]func(context.Context) error{
			"as it is": context.Cause,
			"wrapped": func(ctx context.Context) error {
				return &backend.UnavailableError{Backend: "memory", Op: "call", MayHold: true, Err: context.Cause(ctx)}
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { test(t, cause, end) })
			})
		}
	}
}

// C7: a wait ends with its context, whose cause looks like an answer. Its place in the queue is given up: it
// would be granted later, and kept by the session for ever.
func TestCauseOfAWait(t *testing.T) {
	t.Parallel()
	eachAnswer(t, func(t *testing.T, cause error, end func(context.Context) error) {
		t.Helper()
		f, store := newFaults(t)
		holder := newClient(t, openStore(t, store), holdfast.Config{})
		held := mustAcquire(t, holder, "n")
		c := newClient(t, f, holdfast.Config{})
		own := mustAcquire(t, c, "own")
		cutShort := func(ctx context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			if g, err := call(); ctx.Err() == nil {
				return g, err
			}
			return backend.Grant{}, end(ctx)
		}
		f.acquire.Store(&cutShort)
		ctx, giveUp := context.WithCancelCause(t.Context())
		go func() { time.Sleep(time.Second); giveUp(cause) }()
		_, err := c.Acquire(ctx, "n")
		if !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
		mayHold(t, err)
		synctest.Wait()
		if err := own.Err(); err != nil {
			t.Errorf("another lock of the client: %v", err)
		}
		mustRelease(t, held)
		if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("the lock has no holder, and cannot be acquired: %+v", info)
		}
	})
}

// A release whose context ends, with a cause that looks like an answer, continues in the background.
func TestCauseOfARelease(t *testing.T) {
	t.Parallel()
	eachAnswer(t, func(t *testing.T, cause error, end func(context.Context) error) {
		t.Helper()
		for _, stays := range []time.Duration{0, time.Minute} {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			opts := []holdfast.Option{holdfast.TTL(time.Hour)}
			if stays > 0 {
				opts = append(opts, holdfast.AtLeast(stays))
			}
			lock := mustAcquire(t, c, "n", opts...)
			cutShort := func(ctx context.Context, call func() error) error {
				if ctx.Err() != nil {
					return end(ctx)
				}
				return call()
			}
			renew := func(ctx context.Context, call func() (backend.RenewResult, error)) (backend.RenewResult, error) {
				if ctx.Err() != nil {
					return backend.RenewResult{}, end(ctx)
				}
				return call()
			}
			f.release.Store(&cutShort)
			f.renew.Store(&renew)
			ctx, giveUp := context.WithCancelCause(t.Context())
			giveUp(cause)
			err := lock.Release(ctx)
			if errors.Is(err, holdfast.ErrLost) && !errors.Is(cause, holdfast.ErrLost) {
				t.Errorf("%v", err)
			}
			mayHold(t, err)
			time.Sleep(stays + time.Second)
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) > 0 {
				t.Errorf("AtLeast(%s): the lock has no holder, and cannot be acquired: %+v", stays, info)
			}
		}
	})
}

// faults is a backend with a fault before or after any call. The lock itself is the reference
// backend; the tests check how the client handles the faults.
type faults struct {
	backend.Backend
	caps      func(*backend.Capabilities)
	open      atomic.Pointer[func(context.Context, func() error) error]
	acquire   atomic.Pointer[func(context.Context, func() (backend.Grant, error)) (backend.Grant, error)]
	renew     atomic.Pointer[func(context.Context, func() (backend.RenewResult, error)) (backend.RenewResult, error)]
	release   atomic.Pointer[func(context.Context, func() error) error]
	acquires  atomic.Int64
	renewals  atomic.Int64
	releases  atomic.Int64
	lastAsked atomic.Pointer[backend.AcquireRequest]
}

func (f *faults) Capabilities() backend.Capabilities {
	c := f.Backend.Capabilities()
	if f.caps != nil {
		f.caps(&c)
	}
	return c
}

func (f *faults) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	call := func() error { return f.Backend.OpenSession(ctx, req) }
	if fault := f.open.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

func (f *faults) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	f.acquires.Add(1)
	f.lastAsked.Store(&req)
	call := func() (backend.Grant, error) { return f.Backend.Acquire(ctx, req) }
	if fault := f.acquire.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

func (f *faults) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	f.renewals.Add(1)
	call := func() (backend.RenewResult, error) { return f.Backend.Renew(ctx, req) }
	if fault := f.renew.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

func (f *faults) Release(ctx context.Context, req backend.ReleaseRequest) error {
	f.releases.Add(1)
	call := func() error { return f.Backend.Release(ctx, req) }
	if fault := f.release.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

var errWire = errors.New("the wire was cut")

func unavailable(mayHold bool) error {
	return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: mayHold, Err: errWire}
}

// hangRenew leaves every renewal without an answer.
func (f *faults) hangRenew() {
	hang := func(ctx context.Context, _ func() (backend.RenewResult, error)) (backend.RenewResult, error) {
		<-ctx.Done()
		return backend.RenewResult{}, unavailable(true)
	}
	f.renew.Store(&hang)
}

func newFaults(t *testing.T) (*faults, *memlock.Store) {
	t.Helper()
	store := memlock.NewStore()
	f := &faults{Backend: openStore(t, store)}
	return f, store
}

// openStore returns another backend value on the store, as another process would have.
func openStore(t *testing.T, store *memlock.Store) backend.Backend {
	t.Helper()
	b := store.Open()
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// newClient returns a client that is closed, with its backend, when the test ends.
func newClient(t *testing.T, b backend.Backend, cfg holdfast.Config) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("close: %v", err)
		}
	})
	return c
}
