package memlock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// process is a session on a Backend, and the losses reported to it.
type process struct {
	*memlock.Backend
	id backend.SessionID

	mu     sync.Mutex
	losses []backend.Loss
}

func start(t *testing.T, s *memlock.Store, ttl time.Duration) *process {
	t.Helper()
	p := &process{Backend: s.Open(), id: backend.NewSessionID()}
	t.Cleanup(func() { _ = p.Close() })
	if err := p.OpenSession(t.Context(), backend.SessionRequest{ID: p.id, TTL: ttl, Lost: p.lost}); err != nil {
		t.Fatal(err)
	}
	return p
}

// lost calls the backend, which is allowed: it is called with nothing locked.
func (p *process) lost(l backend.Loss) {
	_ = p.Capabilities()
	if _, err := p.Inspect(context.Background(), "any"); err != nil && !errors.Is(err, backend.ErrClosed) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses, l)
}

// told returns the losses reported since the last call.
func (p *process) told() []backend.Loss {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	losses := p.losses
	p.losses = nil
	return losses
}

func (p *process) take(t *testing.T, r backend.AcquireRequest) backend.AcquireRequest {
	t.Helper()
	r.Lease, r.Session = backend.NewLeaseID(), p.id
	if _, err := p.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLossesArePushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memlock.NewStore()
		a, b, c := start(t, s, time.Hour), start(t, s, time.Minute), start(t, s, time.Hour)
		tells := func(what string, p *process, want ...backend.Loss) {
			t.Helper()
			if got := p.told(); !slices.Equal(got, want) {
				t.Errorf("%s; told was %+v", what, got)
			}
		}
		timed := a.take(t, backend.AcquireRequest{Name: "timed", Timed: true, TTL: time.Second})
		time.Sleep(time.Second)
		tells("a timed lease ran out", a, backend.Loss{Session: a.id, Lease: timed.Lease, Cause: backend.CauseExpired})
		time.Sleep(time.Minute)
		tells("a session ran out", b, backend.Loss{Session: b.id, Cause: backend.CauseExpired})
		tells("nothing was lost", a)
		// A session that another process ends is a loss; one that a process ends itself is not.
		for _, id := range []backend.SessionID{c.id, a.id} {
			if err := a.EndSession(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		tells("another process ended the session", c, backend.Loss{Session: c.id, Cause: backend.CauseSession})
		tells("the session ended itself", a)
	})
}

// TestBreakIsToldForOneTTL checks that a client that lost the reply to a renewal gets a break
// from the next one.
func TestBreakIsToldForOneTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memlock.NewStore()
		a := start(t, s, time.Minute)
		l := a.take(t, backend.AcquireRequest{Name: "a"})
		if _, err := a.Break(t.Context(), backend.BreakRequest{Name: "a", Reason: "why"}); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{1, 1, 0} {
			time.Sleep(20 * time.Second)
			res, err := a.Renew(t.Context(), backend.RenewRequest{Session: a.id})
			if err != nil || res.SessionLost || len(res.Lost) != want {
				t.Errorf("renewal %d tells %+v, %v; want %d losses", i, res, err, want)
			}
			if want > 0 && res.Lost[0] != (backend.Loss{Session: a.id, Lease: l.Lease, Cause: backend.CauseBroken, Reason: "why"}) {
				t.Errorf("renewal %d tells %+v", i, res.Lost)
			}
		}
	})
}

// TestNothingIsKept checks that a store forgets: immediately what has ended, and later what it must not grant again
// for ten minutes.
func TestNothingIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memlock.NewStore()
		keeper := s.Open()
		var session backend.SessionID
		var abandoned backend.AcquireRequest
		for range 100 {
			a := start(t, s, time.Minute)
			a.take(t, backend.AcquireRequest{Name: "a/" + string(a.id)})
			l := a.take(t, backend.AcquireRequest{Name: "b/" + string(a.id), Timed: true, TTL: time.Minute})
			if err := a.Release(t.Context(), backend.ReleaseRequest{Name: l.Name, Lease: l.Lease, Abandon: true}); err != nil {
				t.Fatal(err)
			}
			a.take(t, backend.AcquireRequest{Name: "c/" + string(a.id), Timed: true, TTL: time.Second})
			session, abandoned = a.id, backend.AcquireRequest{Name: l.Name, Lease: l.Lease, Timed: true, TTL: time.Minute}
		}
		if got, want := s.Kept(), [4]int{200, 200, 100, 200}; got != want {
			t.Errorf("kept %v, want %v", got, want)
		}
		time.Sleep(time.Minute)
		if got, want := s.Kept(), [4]int{}; got != want {
			t.Errorf("kept %v, want %v", got, want)
		}
		// again asks for what has ended.
		again := func() (error, error) {
			opened := keeper.OpenSession(t.Context(), backend.SessionRequest{ID: session, TTL: time.Minute})
			_, acquired := keeper.Acquire(t.Context(), abandoned)
			return opened, acquired
		}
		time.Sleep(10*time.Minute - time.Minute - time.Second)
		if opened, acquired := again(); !errors.Is(opened, backend.ErrSessionLost) || !errors.Is(acquired, backend.ErrLost) {
			t.Errorf("within ten minutes: %v, %v", opened, acquired)
		}
		time.Sleep(20 * time.Minute)
		a := start(t, s, time.Minute) // old entries go when new ones are added
		if err := a.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: backend.NewLeaseID(), Abandon: true}); err != nil {
			t.Error(err)
		}
		if err := a.EndSession(t.Context(), a.id); err != nil {
			t.Error(err)
		}
		if opened, acquired := again(); opened != nil || acquired != nil {
			t.Errorf("after half an hour: %v, %v", opened, acquired)
		}
		if err := keeper.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestTimerStopsWithTheLastValue checks that a store without open Backends does nothing, and
// that what expired in between has ended when a Backend is opened again.
func TestTimerStopsWithTheLastValue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memlock.NewStore()
		a := start(t, s, time.Minute)
		a.take(t, backend.AcquireRequest{Name: "a"})
		if !s.Armed() {
			t.Error("the timer is not set while a session can run out")
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if s.Armed() {
			t.Error("the timer is set while no value is open")
		}
		time.Sleep(time.Minute - 1)
		b := s.Open()
		if info, err := b.Inspect(t.Context(), "a"); err != nil || len(info.Holders) != 1 {
			t.Errorf("the lease has some time left; Inspect tells %+v, %v", info, err)
		}
		if !s.Armed() {
			t.Error("the timer is not set after a value was opened again")
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		c := start(t, s, time.Minute)
		c.take(t, backend.AcquireRequest{Name: "a"})
	})
}

// TestSlowWatcherIsToldThatEventsAreMissing blocks deliver until there are too many
// events.
func TestSlowWatcherIsToldThatEventsAreMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memlock.NewStore()
		a, w := start(t, s, time.Hour), s.Open()
		block := make(chan struct{})
		done := make(chan error, 1)
		n := 0
		go func() {
			done <- w.Watch(t.Context(), backend.WatchRequest{}, func(backend.Event) { n++; <-block })
		}()
		synctest.Wait()
		for range waiters.MaxBehind/2 + 1 {
			l := a.take(t, backend.AcquireRequest{Name: "a"})
			if err := a.Release(t.Context(), backend.ReleaseRequest{Name: "a", Lease: l.Lease}); err != nil {
				t.Fatal(err)
			}
		}
		close(block)
		if err := <-done; !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("Watch returned %v after it fell behind; want ErrUnavailable", err)
		}
		if n != waiters.MaxBehind+1 {
			t.Errorf("%d events were delivered, want %d", n, waiters.MaxBehind+1)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestAllocations keeps the cost of the common path in view.
func TestAllocations(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	b := memlock.New()
	defer func() { _ = b.Close() }()
	session := backend.NewSessionID()
	ctx := t.Context()
	if err := b.OpenSession(ctx, backend.SessionRequest{ID: session, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	r := backend.AcquireRequest{Name: "a", Lease: backend.NewLeaseID(), Session: session}
	const most = 1 // the lease
	if n := testing.AllocsPerRun(1000, func() {
		_, err := b.Acquire(ctx, r)
		if err == nil {
			err = b.Release(ctx, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Session: r.Session})
		}
		if err != nil {
			t.Error(err)
		}
	}); n > most {
		t.Errorf("Acquire and Release allocate %v times, want %d at most", n, most)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := b.Renew(ctx, backend.RenewRequest{Session: session}); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("Renew allocates %v times", n)
	}
}
