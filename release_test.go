package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Work that is done is done: a caller that is told of its release would do it once more.
func TestDoWithoutAnAnswerToTheRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		away := func(context.Context, func() error) error { return unavailable(true) }
		f.release.Store(&away)
		if err := c.Do(t.Context(), "n", func(context.Context, *holdfast.Lock) error { return nil }); err != nil {
			t.Errorf("the work is done, and Do returned %v", err)
		}
		f.release.Store(nil)
	})
}

// Release keeps its promise whatever the network does.
func TestReleaseUnderFaults(t *testing.T) {
	t.Parallel()
	t.Run("lost reply", func(t *testing.T) {
		t.Parallel()
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		lock := mustAcquire(t, c, "n")
		var once sync.Once
		drop := func(_ context.Context, call func() error) error {
			err := call()
			once.Do(func() { err = unavailable(true) })
			return err
		}
		f.release.Store(&drop)
		if err := lock.Release(t.Context()); err != nil {
			t.Fatalf("released, but the first reply was lost: %v", err)
		}
	})
	t.Run("dead context", func(t *testing.T) { // B4
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			lock := mustAcquire(t, c, "n")
			cut := func(ctx context.Context, call func() error) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return call()
			}
			f.release.Store(&cut)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var op *holdfast.OpError
			if err := lock.Release(ctx); err != nil && (!errors.As(err, &op) || !op.MayHold) {
				t.Fatalf("release: %v", err)
			}
			synctest.Wait()
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("a dead context kept the lock")
			}
		})
	})
	t.Run("swallowed", func(t *testing.T) { // found by the simulation: the session kept the lease for ever
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{Timeout: 6 * time.Second})
			lock := mustAcquire(t, c, "n")
			var once atomic.Bool
			swallow := func(ctx context.Context, call func() error) error {
				if once.CompareAndSwap(false, true) {
					<-ctx.Done()
					return ctx.Err()
				}
				return call()
			}
			f.release.Store(&swallow)
			begun := time.Now()
			if err := lock.Release(context.WithoutCancel(t.Context())); err != nil || time.Since(begun) > 3*time.Second {
				t.Fatalf("after %s: %v", time.Since(begun), err)
			}
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("still held")
			}
		})
	})
	t.Run("backend away", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			lock := mustAcquire(t, c, "n")
			away := func(context.Context, func() error) error { return unavailable(false) }
			f.release.Store(&away)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			err := lock.Release(ctx)
			if took := time.Since(begun); took > 1010*time.Millisecond || !errors.Is(err, holdfast.ErrUnavailable) {
				t.Fatalf("after %s: %v", took, err)
			}
			f.release.Store(nil)
			time.Sleep(3 * time.Second)
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("not released in the background")
			}
		})
	})
	t.Run("backend away for long, but not for renewals", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{TTL: 5 * time.Second})
			lock := mustAcquire(t, c, "n")
			other := mustAcquire(t, c, "other") // of the same session
			away := func(context.Context, func() error) error { return unavailable(false) }
			f.release.Store(&away)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := lock.Release(ctx); !errors.Is(err, holdfast.ErrUnavailable) {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if err := other.Err(); err != nil {
				t.Fatalf("the session ended: %v", err)
			}
			f.release.Store(nil)
			time.Sleep(3 * time.Second)
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("the lock stays held without a holder for as long as the process lives")
			}
		})
	})
}

// Background work continues for as long as the lease lasts.
func TestReleaseGoesOn(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		opts   []holdfast.Option
		extend time.Duration // 0: not
		away   time.Duration
		until  time.Duration // from the grant on
	}{
		"a long lease that is not renewed": {[]holdfast.Option{holdfast.TTL(day), holdfast.NoRenew()}, 0, time.Hour, 0},
		"one that was made long":           {[]holdfast.Option{holdfast.TTL(time.Minute), holdfast.NoRenew()}, day, time.Hour, 0},
		"a dead context and AtLeast":       {[]holdfast.Option{holdfast.TTL(day), holdfast.AtLeast(time.Minute)}, 0, 0, time.Minute},
		"away for longer than AtLeast":     {[]holdfast.Option{holdfast.TTL(day), holdfast.AtLeast(time.Minute)}, 0, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
				other := openStore(t, store)
				lock := mustAcquire(t, c, "n", tc.opts...)
				begun := time.Now()
				if tc.extend > 0 {
					if err := lock.Extend(t.Context(), tc.extend); err != nil {
						t.Fatal(err)
					}
				}
				if tc.away > 0 {
					away := func(context.Context, func() error) error { return unavailable(false) }
					f.release.Store(&away)
					f.hangRenew()
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				mayHold(t, lock.Release(ctx))
				time.Sleep(tc.away)
				f.release.Store(nil)
				f.renew.Store(nil)
				if tc.until > 0 {
					time.Sleep(tc.until - time.Since(begun) - time.Second)
					if info, err := other.Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 1 {
						t.Errorf("gone before its time: %+v, %v", info, err)
					}
				}
				time.Sleep(10 * time.Second)
				if info, err := other.Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 0 {
					t.Errorf("still there: %+v, %v", info.Holders, err)
				}
			})
		})
	}
}

// A backend that is too busy to answer in time is not kept busy by what it did not answer: few
// settlements are repeated at a time, each for long enough, and all of them are done in the end.
func TestSettlementsDoNotCrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const locks, timeout, few = 200, 3 * time.Second, 2 * 16
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{Timeout: timeout})
		held := make([]*holdfast.Lock, locks)
		for i := range held {
			held[i] = mustAcquire(t, c, fmt.Sprint("n", i))
		}
		var calls atomic.Int64
		busy := func(ctx context.Context, call func() error) error {
			calls.Add(1)
			defer calls.Add(-1)
			select {
			case <-time.After(timeout / 2): // longer than a first attempt
				return call()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		f.release.Store(&busy)
		abandon(t, held)
		time.Sleep(timeout / 2) // the first attempts have ended
		for calls.Load() > 0 {
			if n := calls.Load(); n > few {
				t.Fatalf("%d settlements are repeated at a time", n)
			}
			time.Sleep(time.Millisecond)
		}
		left, err := openStore(t, store).List(t.Context(), backend.ListRequest{})
		if err != nil || len(left.Locks) > 0 {
			t.Errorf("%d locks are still held, %v", len(left.Locks), err)
		}
	})
}

// A backend that answers nothing does not collect settlements: each ends when its lease has ended by
// itself, even if it still waits for its turn.
func TestSettlementsEndWithTheirLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const locks, ttl, timeout = 1000, 10 * time.Second, 3 * time.Second
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: ttl, Timeout: timeout})
		held := make([]*holdfast.Lock, locks)
		for i := range held {
			held[i] = mustAcquire(t, c, fmt.Sprint("n", i), holdfast.NoRenew())
		}
		hangs := func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}
		f.release.Store(&hangs)
		abandon(t, held)
		time.Sleep(4*ttl + 2*timeout) // each is given twice its TTL, and as much until that is noticed
		f.release.Store(nil)
		before := f.releases.Load()
		time.Sleep(2 * timeout)
		if n := f.releases.Load() - before; n > 0 {
			t.Errorf("%d leases that ended long ago were released", n)
		}
	})
}

// stuck does not answer the releases of some locks.
type stuck struct{ *faults }

const stuckName = "stuck"

func (s stuck) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if strings.HasPrefix(req.Name, stuckName) {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.faults.Release(ctx, req)
}

// A release whose reply was lost is repeated soon, however many others get no answer at all.
func TestSettlementPassesThoseThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hanging, timeout = 100, 3 * time.Second
		f, store := newFaults(t)
		c := newClient(t, stuck{f}, holdfast.Config{Timeout: timeout})
		held := make([]*holdfast.Lock, hanging)
		for i := range held {
			held[i] = mustAcquire(t, c, fmt.Sprint(stuckName, i))
		}
		abandon(t, held)
		time.Sleep(10 * timeout) // all of them had their second attempt
		lock := mustAcquire(t, c, "n")
		var calls atomic.Int64
		fails := func(_ context.Context, call func() error) error {
			if calls.Add(1) <= 2 { // the release, and the first attempt of its settlement
				return unavailable(true)
			}
			return call()
		}
		f.release.Store(&fails)
		abandon(t, []*holdfast.Lock{lock})
		time.Sleep(timeout)
		info, err := openStore(t, store).Inspect(t.Context(), "n")
		if err != nil || len(info.Holders) > 0 {
			t.Errorf("the lock is held by %v, %v", info.Holders, err)
		}
	})
}

// abandon releases locks and does not wait for the outcome.
func abandon(t *testing.T, locks []*holdfast.Lock) {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, lock := range locks {
		_ = lock.Release(ended)
	}
}

func refused(mayHold bool) error {
	return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: mayHold, Err: connect.Lacks("memory", "to write", errWire)}
}

// What the store refuses until an operator changes something there is not retried: the caller, who
// would wait for hours, learns what is missing.
func TestRefused(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{Timeout: time.Hour})
	told := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, holdfast.ErrRefused) || !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
			t.Fatalf("%s: the kinds of %v", what, err)
		}
		for _, part := range []string{`"a" on memory`, "the user lacks the right to write", "docs/backends/memory.md", "refused by the store"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", what, err, part)
			}
		}
	}
	ctx := leasetest.Within(t)
	no := func(context.Context, func() error) error { return refused(false) }
	f.open.Store(&no)
	_, err := c.Acquire(ctx, "a")
	told("open session", err)
	f.open.Store(nil)
	for _, mayHold := range []bool{false, true} {
		f.acquires.Store(0)
		noGrant := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
			return backend.Grant{}, refused(mayHold)
		}
		f.acquire.Store(&noGrant)
		_, err = c.Acquire(ctx, "a")
		told("acquire", err)
		if op, ok := errors.AsType[*holdfast.OpError](err); !ok || op.MayHold != mayHold || f.acquires.Load() != 1 {
			t.Errorf("acquire: %+v after %d attempts", op, f.acquires.Load())
		}
	}
	f.acquire.Store(nil)
	lock, err := c.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	f.release.Store(&no)
	told("release", lock.Release(ctx))
	f.release.Store(nil) // the release continues in the background
	lock, err = c.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
}

// A value that the store refuses, such as a token, is not an invalid request for the metrics either.
func TestRefusedValue(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	var results []holdfast.Result
	c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{Failed: func(_ context.Context, e holdfast.FailedEvent) {
		results = append(results, e.Result)
	}}})
	no := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, &backend.RefusedError{Backend: "memory", Remedy: "give another", Err: &backend.InvalidError{Field: "credentials", Value: "as given", Bound: "allowed"}}
	}
	f.acquire.Store(&no)
	if _, err := c.Acquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrRefused) {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil { // it waits for the hooks
		t.Error(err)
	}
	if !slices.Equal(results, []holdfast.Result{holdfast.ResultUnavailable}) {
		t.Errorf("the results are %v", results)
	}
}

// A right that is taken away and given back costs no lock: renewals are retried until the lease ends.
func TestRefusedRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 2 * time.Second})
		lock, err := c.Acquire(leasetest.Within(t), "a")
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan struct{}, 1000)
		no := func(context.Context, func() (backend.RenewResult, error)) (backend.RenewResult, error) {
			asked <- struct{}{}
			return backend.RenewResult{}, refused(false)
		}
		f.renew.Store(&no)
		<-asked
		<-asked
		f.renew.Store(nil)
		before := f.renewals.Load()
		leasetest.Eventually(t, "it is renewed", func() bool { return f.renewals.Load() > before })
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
	})
}

// The first failure is logged, and the next one only after an answer.
func TestUnavailableIsLoggedOnce(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	log := &logged{}
	c := newClient(t, f, holdfast.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	for outage := 1; outage <= 2; outage++ {
		fails := 3
		away := func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
			if fails == 0 {
				return do()
			}
			fails--
			return backend.Grant{}, unavailable(false)
		}
		f.acquire.Store(&away)
		lock, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := log.lines("level=WARN"); n != outage {
			t.Errorf("%d warnings after %d outages", n, outage)
		}
	}
}

// So it is with renewals.
func TestUnavailableRenewalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		log := &logged{}
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))})
		lock, err := c.Acquire(leasetest.Within(t), "a")
		if err != nil {
			t.Fatal(err)
		}
		for outage := 1; outage <= 2; outage++ {
			asked := make(chan struct{}, 1000)
			away := func(context.Context, func() (backend.RenewResult, error)) (backend.RenewResult, error) {
				asked <- struct{}{}
				return backend.RenewResult{}, unavailable(false)
			}
			f.renew.Store(&away)
			for range 3 {
				<-asked
			}
			f.renew.Store(nil)
			before := f.renewals.Load()
			leasetest.Eventually(t, "it is renewed", func() bool { return f.renewals.Load() > before })
			synctest.Wait() // for what follows the answer
			if n := log.lines("level=WARN"); n != outage {
				t.Errorf("%d warnings after %d outages", n, outage)
			}
		}
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
	})
}
