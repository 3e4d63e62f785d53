package holdfast_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func mustAcquire(t *testing.T, c *holdfast.Client, name string, opts ...holdfast.Option) *holdfast.Lock {
	t.Helper()
	lock, err := c.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("acquire %q: %v", name, err)
	}
	return lock
}

func TestTokensGrowAndHolderIsNamed(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	a := newClient(t, f, holdfast.Config{Owner: "a"})
	b := newClient(t, openStore(t, store), holdfast.Config{Owner: "b"})
	var last fence.Token
	for range 10 {
		lock := mustAcquire(t, a, "n")
		if lock.Token() <= last {
			t.Fatalf("token %d after %d", lock.Token(), last)
		}
		last = lock.Token()
		_, err := b.TryAcquire(t.Context(), "n")
		var held *holdfast.HeldError
		if !errors.As(err, &held) || !errors.Is(err, holdfast.ErrHeld) || held.Holders[0].Owner != "a" || held.Holders[0].Token != last {
			t.Fatalf("try while held: %v", err)
		}
		var op *holdfast.OpError
		if !errors.As(err, &op) || op.Name != "n" || op.Op != "acquire" || op.MayHold {
			t.Fatalf("not wrapped with what was done: %#v", err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrReleased) {
			t.Fatalf("second release: %v, want ErrReleased, which is ErrLost here", err)
		}
		if err := lock.Err(); !errors.Is(err, holdfast.ErrReleased) || lock.State() != holdfast.StateReleased {
			t.Fatalf("after release: %v %v", err, lock.State())
		}
	}
}

// Re-entry counts up, sends nothing, and releases with the last handle.
func TestReentry(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	other := newClient(t, openStore(t, store), holdfast.Config{})
	err := c.Do(t.Context(), "n", func(ctx context.Context, outer *holdfast.Lock) error {
		asked := f.acquires.Load()
		inner, err := c.Acquire(ctx, "n", holdfast.Reentrant())
		if err != nil {
			return err
		}
		again, err := c.TryAcquire(inner.Context(), "n", holdfast.Reentrant(), holdfast.Shared())
		if err != nil {
			return err
		}
		if inner.Token() != outer.Token() || f.acquires.Load() != asked {
			t.Errorf("re-entry asked the backend, or made a token")
		}
		if err := errors.Join(inner.Release(ctx), again.Release(ctx)); err != nil {
			return err
		}
		if inner.Context().Err() == nil || ctx.Err() != nil {
			t.Errorf("inner context %v, outer %v: want the inner one over", inner.Context().Err(), ctx.Err())
		}
		if _, err := other.TryAcquire(ctx, "n"); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("the inner release freed the lock: %v", err)
		}
		// Another client of the same program is a separate client (B24).
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lock := mustAcquire(t, other, "n"); lock.Release(t.Context()) != nil {
		t.Fatal("not free after the last handle")
	}
	err = c.Do(t.Context(), "r", func(ctx context.Context, _ *holdfast.Lock) error {
		_, err := c.Acquire(ctx, "r", holdfast.Reentrant())
		return err
	}, holdfast.Shared())
	if !errors.Is(err, holdfast.ErrDeadlock) {
		t.Fatalf("exclusive inside shared: %v, want ErrDeadlock", err)
	}
}

// B24: two goroutines of one client exclude each other.
func TestGoroutinesOfOneClientExclude(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	var inside, count int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				err := c.Do(t.Context(), "n", func(context.Context, *holdfast.Lock) error {
					if atomic.AddInt32(&inside, 1) != 1 {
						t.Error("two inside")
					}
					n := count
					runtime.Gosched() // whoever else can come in does so now
					count = n + 1
					atomic.AddInt32(&inside, -1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if count != 320 {
		t.Fatalf("count %d, want 320", count)
	}
}

// B9: a failed renewal is retried, and the lock becomes held again.
func TestRenewalRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
		lock := mustAcquire(t, c, "n")
		timed := mustAcquire(t, c, "m", holdfast.TTL(8*time.Second))
		f.hangRenew()
		time.Sleep(6 * time.Second)
		if lock.State() != holdfast.StateAtRisk || timed.State() != holdfast.StateAtRisk {
			t.Fatalf("states %v, %v", lock.State(), timed.State())
		}
		f.renew.Store(nil)
		select {
		case <-lock.Renewed():
		case <-lock.Context().Done():
			t.Fatalf("lost: %v", lock.Err())
		}
		time.Sleep(time.Minute)
		if lock.State() != holdfast.StateHeld || timed.State() != holdfast.StateHeld {
			t.Fatalf("states %v, %v: %v", lock.State(), timed.State(), timed.Err())
		}
	})
}

// B3, C6: the reply to an acquire is lost; the acquire is retried under the same lease ID.
func TestLostReplyOfAcquireIsOneGrant(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	var once sync.Once
	drop := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
		g, err := call()
		once.Do(func() { g, err = backend.Grant{}, unavailable(true) })
		return g, err
	}
	f.acquire.Store(&drop)
	lock := mustAcquire(t, c, "n")
	info, err := openStore(t, store).Inspect(t.Context(), "n")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != lock.Lease().ID || info.Holders[0].Token != lock.Token() {
		t.Fatalf("holders %+v, %v", info.Holders, err)
	}
	if f.acquires.Load() != 2 {
		t.Fatalf("%d requests, want 2", f.acquires.Load())
	}
}

// B3, B4, C7: the caller gives up while the request is on its way, and the request is granted
// later: the lease is released although the caller's context has ended.
func TestAcquireThatTimesOutIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: time.Hour})
		late := func(ctx context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			_, err := call() // it works, but its answer is lost
			if err != nil {
				return backend.Grant{}, err
			}
			<-ctx.Done()
			return backend.Grant{}, unavailable(true)
		}
		f.acquire.Store(&late)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Acquire(ctx, "n")
		var op *holdfast.OpError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &op) || !op.MayHold {
			t.Fatalf("%v, want the deadline, and that it may be held", err)
		}
		synctest.Wait()
		if info, err := openStore(t, store).Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 0 {
			t.Fatalf("ghost holder: %+v %v", info.Holders, err)
		}
	})
}

// C10: a broken lock ends immediately, with the operator's reason; B1: releasing it then does not
// affect the next holder.
func TestBreak(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	operator := newClient(t, openStore(t, store), holdfast.Config{Owner: "op"})
	lock := mustAcquire(t, c, "n")
	if res, err := operator.Break(t.Context(), "n", "not this one", holdfast.WithLease(holdfast.NewLeaseID())); err != nil || len(res.Broken) > 0 || lock.Err() != nil {
		t.Fatalf("a break of another lease: %+v, %v, %v", res, err, lock.Err())
	}
	if _, err := operator.Break(t.Context(), "n", "no one", holdfast.WithLease("")); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatalf("a break of no lease: %v", err)
	}
	res, err := operator.Break(t.Context(), "n", "stuck since noon", holdfast.WithLease(lock.Lease().ID))
	if err != nil || len(res.Broken) != 1 || res.Token <= lock.Token() {
		t.Fatalf("%+v, %v", res, err)
	}
	<-lock.Context().Done()
	if n := f.renewals.Load(); n > 0 {
		t.Errorf("a renewal reported the loss; it was not pushed")
	}
	var lost *holdfast.LostError
	if !errors.As(lock.Err(), &lost) || lost.Cause != holdfast.CauseBroken || !strings.Contains(lost.Reason, "stuck since noon") {
		t.Fatalf("lost as %v", lock.Err())
	}
	next := mustAcquire(t, operator, "n")
	if next.Token() <= res.Token-1 || next.Token() <= lock.Token() {
		t.Fatalf("token %d after a break that raised it to %d", next.Token(), res.Token)
	}
	if err := lock.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
		t.Fatalf("release of a broken lock: %v", err)
	}
	if next.Err() != nil {
		t.Fatalf("the next holder was harmed: %v", next.Err())
	}
}

// The session ends on the backend: everything is lost immediately, and the client continues with
// another session.
func TestSessionLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 6 * time.Second})
		one, two := mustAcquire(t, c, "1"), mustAcquire(t, c, "2")
		gone := func(_ context.Context, _ func() (backend.RenewResult, error)) (backend.RenewResult, error) {
			return backend.RenewResult{SessionLost: true}, nil
		}
		f.renew.Store(&gone)
		<-one.Context().Done()
		<-two.Context().Done()
		f.renew.Store(nil)
		var lost *holdfast.LostError
		if !errors.As(two.Err(), &lost) || lost.Cause != holdfast.CauseSession {
			t.Fatalf("lost as %v", two.Err())
		}
		lock := mustAcquire(t, c, "3")
		time.Sleep(time.Minute)
		if lock.Err() != nil {
			t.Fatalf("with the new session: %v", lock.Err())
		}
	})
}

func TestWaitIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		a := newClient(t, f, holdfast.Config{Owner: "a"})
		b := newClient(t, openStore(t, store), holdfast.Config{Owner: "b"})
		lock := mustAcquire(t, a, "n")
		begun := time.Now()
		_, err := b.Acquire(t.Context(), "n", holdfast.Wait(3*time.Second))
		var held *holdfast.HeldError
		if !errors.As(err, &held) || held.Holders[0].Owner != "a" || held.Ahead != 0 {
			t.Fatalf("%v", err)
		}
		if took := time.Since(begun); took < 3*time.Second || took > 3100*time.Millisecond {
			t.Fatalf("waited %s", took)
		}
		if info, _ := a.Inspect(t.Context(), "n"); len(info.Waiters) != 0 {
			t.Fatal("a waiter was left behind")
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// C12: the backend is unavailable: the call ends with its context, and retries until then.
func TestBackendAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{Timeout: 5 * time.Second})
		away := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
			return backend.Grant{}, unavailable(false)
		}
		f.acquire.Store(&away)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		_, err := c.Acquire(ctx, "n")
		var op *holdfast.OpError
		if took := time.Since(begun); took < time.Minute || took > 61*time.Second || !errors.Is(err, holdfast.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s: %v", took, err)
		}
		if errors.As(err, &op) && op.MayHold {
			t.Error("nothing was ever sent, yet it may be held")
		}
		if n := f.acquires.Load(); n < 20 || n > 80 {
			t.Errorf("%d attempts in a minute", n)
		}
		begun = time.Now()
		if _, err := c.TryAcquire(t.Context(), "n"); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(begun) > 6*time.Second {
			t.Errorf("try: after %s: %v", time.Since(begun), err)
		}
		go func() {
			time.Sleep(30 * time.Second)
			f.acquire.Store(nil)
		}()
		if _, err := c.Acquire(t.Context(), "n"); err != nil {
			t.Errorf("when it came back: %v", err)
		}
	})
}

// F25: the machine was suspended. The first check after it wakes reports lost, though no timer has
// fired, and the renewer ends the context soon after.
func TestSuspend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		var asleep atomic.Int64
		c.SetAsleep(func() time.Duration { return time.Duration(asleep.Load()) })
		one, two := mustAcquire(t, c, "1"), mustAcquire(t, c, "2", holdfast.TTL(20*time.Second))
		ctx := two.Context()
		asleep.Add(int64(time.Hour))
		if one.State() != holdfast.StateLost || ctx.Err() == nil {
			t.Fatalf("after an hour of suspension: %v, %v", one.State(), ctx.Err())
		}
		three := mustAcquire(t, c, "3")
		done := three.Context().Done()
		asleep.Add(int64(time.Hour))
		begun := time.Now()
		<-done
		if took := time.Since(begun); took > 300*time.Millisecond {
			t.Fatalf("the renewer noticed after %s", took)
		}
	})
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	cases := []struct {
		field string
		name  string
		opt   holdfast.Option
	}{
		{"name", "", nil},
		{"name", strings.Repeat("n", 513), nil},
		{"name", "a\x00b", nil},
		{"name", "a\xffb", nil},
		{"name", "a//b", nil},
		{"name", "../b", nil},
		{"ttl", "n", holdfast.TTL(0)},
		{"ttl", "n", holdfast.TTL(-time.Second)},
		{"ttl", "n", holdfast.TTL(1e6 * time.Hour)},
		{"wait", "n", holdfast.Wait(-1)},
		{"limit", "n", holdfast.Limit(0)},
		{"limit", "n", holdfast.Limit(1<<20 + 1)},
		{"permits", "n", holdfast.Permits(0)},
		{"permits", "n", holdfast.Permits(2)},
		{"owner", "n", holdfast.Owner(strings.Repeat("o", 257))},
		{"owner", "n", holdfast.Owner("a\nb")},
		{"note", "n", holdfast.Note(strings.Repeat("o", 1025))},
		{"at_least", "n", holdfast.AtLeast(0)},
		{"at_most", "n", holdfast.AtMost(-1)},
		{"lease", "n", holdfast.WithLease("short")},
		{"lease", "n", holdfast.WithLease(holdfast.NewLeaseID())},
	}
	for _, tc := range cases {
		var opts []holdfast.Option
		if tc.opt != nil {
			opts = append(opts, tc.opt)
		}
		_, err := c.Acquire(t.Context(), tc.name, opts...)
		var bad *holdfast.InvalidError
		if !errors.As(err, &bad) || bad.Field != tc.field || bad.Bound == "" || bad.Value == "" {
			t.Errorf("%s: got %v", tc.field, err)
		}
	}
	if f.acquires.Load() != 0 {
		t.Error("something was sent")
	}
	for _, cfg := range []holdfast.Config{{TTL: -1}, {TTL: 1e6 * time.Hour}, {Owner: "a\x01"}, {Timeout: -1}} {
		if _, err := holdfast.New(f, cfg); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("config %+v: %v", cfg, err)
		}
	}
	if _, err := holdfast.New(nil, holdfast.Config{}); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("nil backend: %v", err)
	}
}

// C7, K8: an attempt that was cut short reaches the backend after its lease was granted to a retry
// and released: it must not be granted again, without a holder.
func TestLateAcquireAfterReleaseIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: time.Hour})
		var once atomic.Bool
		hold := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			if once.CompareAndSwap(false, true) {
				return backend.Grant{}, unavailable(true) // it is on its way, slowly
			}
			return call()
		}
		f.acquire.Store(&hold)
		lock := mustAcquire(t, c, "n")
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Backend.Acquire(t.Context(), *f.lastAsked.Load()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the late attempt: %v, want ErrLost", err)
		}
		if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
			t.Error("the lock is held, although no caller was granted it")
		}
	})
}

// A backend without timed leases refuses what needs one, before anything is sent.
func TestNoTimedLeases(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	f.caps = func(c *backend.Capabilities) { c.Timed = false }
	c := newClient(t, f, holdfast.Config{TTL: time.Minute})
	for name, opt := range map[string]holdfast.Option{
		"no renewal": holdfast.NoRenew(), "another TTL": holdfast.TTL(time.Second), "at least": holdfast.AtLeast(time.Second),
	} {
		if _, err := c.TryAcquire(t.Context(), "n", opt); !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := f.acquires.Load(); n != 0 {
		t.Errorf("%d acquisitions were sent", n)
	}
	lock := mustAcquire(t, c, "n", holdfast.TTL(time.Minute), holdfast.AtMost(time.Hour))
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The backend refuses the lock as the context ends: the error has the cause of the context, and says who
// holds the lock.
func TestContextEndsWithTheRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		results := make(chan holdfast.Result, 1)
		c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{Failed: func(_ context.Context, e holdfast.FailedEvent) { results <- e.Result }}})
		mustAcquire(t, newClient(t, openStore(t, store), holdfast.Config{Owner: "a"}), "n")
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		refuse := func(_ context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			g, err := call()
			cancel(why)
			return g, err
		}
		f.acquire.Store(&refuse)
		_, err := c.TryAcquire(ctx, "n")
		held, ok := errors.AsType[*holdfast.HeldError](err)
		if !ok || held.Holders[0].Owner != "a" || !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
		if got := <-results; got != holdfast.ResultCanceled {
			t.Errorf("the result is %q", got)
		}
	})
}
