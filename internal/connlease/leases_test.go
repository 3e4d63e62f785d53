package connlease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// newLeases returns leases on the server, whose waiters poll after the pause.
func newLeases(t *testing.T, s *server, poll time.Duration) *connlease.Leases {
	t.Helper()
	b := connlease.New(connlease.Config{
		Store: s, Rest: retry.Rest{Least: poll, Longest: poll},
		Caps: backend.Capabilities{Name: "server", Sessions: true, Shared: true, Push: !s.mute, MinTTL: time.Second, MaxTTL: 24 * time.Hour},
	})
	t.Cleanup(b.Close)
	return b
}

// start starts an Acquire, and returns a channel with its error.
func (p *process) start(req backend.AcquireRequest) <-chan error {
	got := make(chan error, 1)
	go func() {
		_, err := p.b.Acquire(p.t.Context(), req)
		got <- err
	}()
	return got
}

// C12: a call ends although the database neither answers nor reports an error, and the caller has set no time limit. The
// error says whether something may have been done.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	open := func(ctx context.Context, b *connlease.Leases) error {
		return b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Hour})
	}
	inspect := func(ctx context.Context, b *connlease.Leases) error {
		_, err := b.Inspect(ctx, "n")
		return err
	}
	list := func(ctx context.Context, b *connlease.Leases) error {
		_, err := b.List(ctx, backend.ListRequest{})
		return err
	}
	breaks := func(ctx context.Context, b *connlease.Leases) error {
		_, err := b.Break(ctx, backend.BreakRequest{Name: "n"})
		return err
	}
	const one = 10*time.Second + 100*time.Millisecond // one call
	for _, x := range []struct {
		silent  string
		call    func(context.Context, *connlease.Leases) error
		most    time.Duration
		mayHold bool
	}{
		{"setup", inspect, time.Minute, false},
		{"setup", open, time.Minute, false},
		{"setup", breaks, time.Minute, false},
		{"connect", open, one, true},
		{"look", inspect, one, false},
		{"names", list, one, false},
		{"mark", breaks, one, true},
		{"terminate", breaks, one + 6*time.Second, true}, // after the five seconds that a holder has
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			if x.silent == "terminate" { // the holder is asked to release the lock, and does not
				p := openProcess(t, s, time.Hour, nil, false)
				if err := <-p.start(leasetest.Ask("n", p.id)); err != nil {
					t.Fatal(err)
				}
			}
			s.set(func() { s.silent = []string{x.silent, "work"} })
			begun := time.Now()
			err := x.call(context.WithoutCancel(t.Context()), newLeases(t, s, time.Hour))
			if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold != x.mayHold {
				t.Errorf("%s: %v, want an unavailable database, and that the lease may be held: %v", x.silent, err, x.mayHold)
			}
			if took := time.Since(begun); took > x.most {
				t.Errorf("%s: after %s, at most %s", x.silent, took, x.most)
			}
		})
	}
}

// C9, C12: the connection of a session is silent. A renewal does not succeed before the database has answered, calls end with
// their contexts, and Close does not wait for it.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		p := openProcess(t, s, time.Hour, nil, false)
		held := leasetest.Ask("held", p.id)
		if err := <-p.start(held); err != nil {
			t.Fatal(err)
		}
		s.set(func() { s.taken = true })
		waits := p.start(leasetest.Ask("n", p.id))
		time.Sleep(time.Second)
		s.set(func() { s.silent = []string{"work"} })
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error {
				_, err := p.b.Renew(ctx, backend.RenewRequest{Session: p.id})
				return err
			},
			func(ctx context.Context) error { _, err := p.b.Acquire(ctx, leasetest.Ask("m", p.id)); return err },
			func(ctx context.Context) error {
				return p.b.Release(ctx, backend.ReleaseRequest{Name: held.Name, Lease: held.Lease, Session: p.id})
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := call(ctx)
			if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want an unknown outcome, because the context has ended", err)
			}
		}
		begun := time.Now()
		p.b.Close()
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("Close took %s", took)
		}
		if err := <-waits; !errors.Is(err, backend.ErrClosed) {
			t.Errorf("the waiter: %v", err)
		}
	})
}

// C5, C6, C7: the lock was acquired, and the reply is lost with the connection. The session is lost, nothing is held, and
// another client is granted the lock.
func TestLostGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		p, other := openProcess(t, s, time.Hour, nil, false), openProcess(t, s, time.Second, nil, false)
		s.loses = true
		req := leasetest.Ask("n", p.id)
		for _, what := range []string{"the acquire", "once more"} {
			if err := <-p.start(req); !errors.Is(err, backend.ErrSessionLost) {
				t.Errorf("%s: %v", what, err)
			}
			s.loses = false
		}
		if err := p.b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: p.id}); !errors.Is(err, backend.ErrLost) {
			t.Errorf("its release: %v", err)
		}
		if err := <-other.start(leasetest.Ask("n", other.id)); err != nil || !p.isLost() || len(s.rows) != 2 {
			t.Errorf("the other: %v; the session is lost: %v; %d leases were granted", err, p.isLost(), len(s.rows))
		}
	})
}

// C12: a refusal that cannot be read says that the lease may be held if another call waits for it.
func TestRefusalOfALeaseInQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.taken, s.silent = true, []string{"look"}
		p := openProcess(t, s, time.Hour, nil, false)
		req := leasetest.Ask("n", p.id)
		waits := p.start(req)
		time.Sleep(time.Second)
		req.Wait = false
		err := <-p.start(req)
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
			t.Errorf("%v, want an unknown outcome", err)
		}
		p.b.Close()
		if err := <-waits; !errors.Is(err, backend.ErrClosed) {
			t.Errorf("the waiter: %v", err)
		}
	})
}

// C1: a request that does not wait is refused because another client holds the lock, and not
// because a request of the same session waits that does not know yet that the lock is free.
func TestRefusalIsTrue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.taken = true
		p := openProcess(t, s, time.Hour, nil, false)
		waits := p.start(leasetest.Ask("n", p.id))
		time.Sleep(time.Second)
		s.set(func() { s.taken = false })
		req := leasetest.Ask("n", p.id)
		req.Wait = false
		refused := func(what string, asks bool) {
			t.Helper()
			before := s.tries
			if err := <-p.start(req); !errors.Is(err, backend.ErrHeld) || (s.tries > before) != asks {
				t.Errorf("%s: %v, after %d tries", what, err, s.tries-before)
			}
		}
		refused("behind a waiter", true)
		if err := <-waits; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		refused("what the session has itself", false)
	})
}

// C8: a session whose store wakes no client wakes its own waiters: when it releases the lock, and when the first of them has gone.
func TestSessionWakesItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.taken, s.mute = true, true
		p := openProcess(t, s, time.Hour, nil, false)
		var asked []backend.AcquireRequest
		var got []<-chan error
		for range 3 {
			asked = append(asked, leasetest.Ask("n", p.id))
			got = append(got, p.start(asked[len(got)]))
			time.Sleep(time.Second)
		}
		s.set(func() { s.taken = false })
		begun := time.Now()
		give := func(i int) {
			err := p.b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: asked[i].Lease, Session: p.id, Abandon: true})
			if err != nil {
				t.Error(err)
			}
		}
		give(0)
		gone, second := <-got[0], <-got[1]
		give(1)
		if third := <-got[2]; !errors.Is(gone, backend.ErrLost) || second != nil || third != nil {
			t.Errorf("the one that gave up: %v; the others: %v, %v", gone, second, third)
		}
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("they were woken after %s", took)
		}
	})
}

// C10: a loss that no answered renewal has reported is reported by the next one that is answered, however many were not.
func TestLossAfterLostAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := &holders{all: make(map[string]map[backend.LeaseID]backend.Mode)}
		p := openProcess(t, newServer(), time.Hour, inside, false)
		req := leasetest.Ask("n", p.id)
		if _, err := p.b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if _, err := p.b.Break(t.Context(), backend.BreakRequest{Name: "n"}); err != nil {
			t.Fatal(err)
		}
		renew := func(patience time.Duration) (backend.RenewResult, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return p.b.Renew(ctx, backend.RenewRequest{Session: p.id})
		}
		for range 3 {
			if _, err := renew(time.Nanosecond); err == nil {
				t.Fatal("the answer was not lost")
			}
			time.Sleep(time.Second)
		}
		res, err := renew(time.Minute)
		if err != nil || len(res.Lost) != 1 || res.Lost[0].Lease != req.Lease {
			t.Errorf("%+v, %v; want the loss of the lease", res, err)
		}
	})
}
