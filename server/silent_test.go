package server_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// silent is a real backend that executes calls without answering: a free lock is granted, a
// session is not opened, and a lease that does not exist is made unusable. Every call blocks
// until the caller's context ends.
type silent struct{ backend.Backend }

func answersNothing() *faulty { return &faulty{Backend: &silent{memlock.NewStore().Open()}} }

func (s *silent) none(ctx context.Context, op string) error {
	<-ctx.Done()
	return &backend.UnavailableError{Backend: "memory", Op: op, MayHold: op == "acquire", Err: errAway}
}

func (s *silent) OpenSession(ctx context.Context, _ backend.SessionRequest) error {
	return s.none(ctx, "open session")
}

func (s *silent) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if _, err := s.Backend.Acquire(context.WithoutCancel(ctx), r); err != nil {
		return backend.Grant{}, err
	}
	return backend.Grant{}, s.none(ctx, "acquire")
}

func (s *silent) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if err := s.Backend.Release(context.WithoutCancel(ctx), r); err != nil || !r.Abandon {
		return err
	}
	return s.none(ctx, "release")
}

// A wait that ends before the backend has answered may have worked, whatever was sent after the
// call that counted: a client that is told otherwise would leave the lease held.
func TestWaitWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	virtual(t, answersNothing, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		p := want[wire.Problem](a, 503, "POST", lockPath("x"), `{"lease":"my-own-lease-0001","wait":"3s"}`)
		held := a.inspect("x").Holders
		if len(held) != 1 || held[0].Lease != "my-own-lease-0001" {
			t.Fatalf("the holders are %+v", held)
		}
		if p.MayHold == nil || !*p.MayHold {
			t.Errorf("the client has the lock, and is told %+v", p)
		}
	})
}

// A release waits for the backend no longer than its time-out.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	virtual(t, answersNothing, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		p := want[wire.Problem](a, 503, "DELETE", lockPath("x")+"/leases/my-own-lease-0001", "")
		if p.Type != wire.TypeUnavailable {
			t.Errorf("%+v", p)
		}
	})
}

// late is a real backend that grants to a waiter without an answer, and then is unavailable.
type late struct {
	backend.Backend
	granted atomic.Bool
}

func (l *late) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	switch {
	case l.granted.Load():
		return backend.Grant{}, &backend.UnavailableError{Backend: "memory", Op: "acquire", Err: errAway}
	case !r.Wait:
		return backend.Grant{}, &backend.HeldError{Name: r.Name}
	}
	if _, err := l.Backend.Acquire(ctx, r); err != nil {
		return backend.Grant{}, err
	}
	l.granted.Store(true)
	<-ctx.Done()
	return backend.Grant{}, context.Cause(ctx)
}

// A lease that is seen to be granted when the wait ends may be held, even if the backend can no
// longer be asked.
func TestSeenAndNotAnswered(t *testing.T) {
	t.Parallel()
	open := func() *faulty { return &faulty{Backend: &late{Backend: memlock.NewStore().Open()}} }
	virtual(t, open, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		p := want[wire.Problem](a, 503, "POST", lockPath("x"), `{"lease":"my-own-lease-0001","wait":"3s"}`)
		if held := a.inspect("x").Holders; len(held) != 1 || p.MayHold == nil || !*p.MayHold {
			t.Errorf("the holders are %+v, and the client is told %+v", held, p)
		}
	})
}
