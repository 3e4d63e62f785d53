package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// steady makes a call again that was left without an answer because the machine stood still, as every
// client does: its disk had other things to write, its server got no processor. A store that soon says
// that it is unavailable gets no second chance, unless it stood still before.
type steady struct {
	backend.Backend
	e *env
}

const (
	// standstill is how long a call takes that failed for such a reason.
	standstill = 3 * time.Second
	// afterwards is for how long the store may then need to be there again.
	afterwards = 30 * time.Second
	soonAgain  = 50 * time.Millisecond
)

// insist repeats the call, and reports whether it did. After a standstill the store may need a moment
// until it is there again, and calls that began late in it fail sooner. The context bounds all attempts
// together.
func (s steady) insist(ctx context.Context, call func() error) (bool, error) {
	for again := false; ; again = true {
		from := time.Now()
		err := call()
		took := time.Since(from)
		if !errors.Is(err, backend.ErrUnavailable) || !s.e.stood(took) || ctx.Err() != nil {
			return again, err
		}
		s.e.Logf("no answer for %s: %v", took, err)
		retry.Pause(ctx, soonAgain)
	}
}

// stood reports whether a call that failed after that time met a standstill of the machine, or the end of
// one that another call of the case has met.
func (e *env) stood(took time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if took >= standstill {
		e.still = time.Now()
	}
	return time.Since(e.still) < afterwards
}

// repeated is insist for a call with a result.
func repeated[T any](ctx context.Context, s steady, call func() (T, error)) (T, error) {
	var v T
	_, err := s.insist(ctx, func() error {
		var err error
		v, err = call()
		return err
	})
	return v, err
}

// OpenSession opens a session, or confirms it.
func (s steady) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	_, err := s.insist(ctx, func() error { return s.Backend.OpenSession(ctx, req) })
	return err
}

// EndSession ends a session; one that has ended stays so. A store may say soon that the end is not
// confirmed. The call is repeated until it is.
func (s steady) EndSession(ctx context.Context, id backend.SessionID) error {
	for {
		err := s.Backend.EndSession(ctx, id)
		if !errors.Is(err, backend.ErrUnavailable) || !retry.Pause(ctx, soonAgain) {
			return err
		}
	}
}

// Acquire asks under the same lease ID, so that the answer is the first grant, unless a break took
// that one.
func (s steady) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	return repeated(ctx, s, func() (backend.Grant, error) {
		g, err := s.Backend.Acquire(ctx, req)
		if errors.Is(err, backend.ErrUnavailable) {
			s.e.unanswered.Store(req.Lease, true)
		}
		return g, err
	})
}

// grantedAgain reports whether the Acquire of the lease was repeated, and granted a second time, after a
// break took a grant whose answer was lost.
func (e *env) grantedAgain(l lease, broken backend.Holder) bool {
	_, lost := e.unanswered.Load(l.Lease)
	return lost && l.Token > broken.Token
}

// Renew renews, again also where one of the leases had no answer.
func (s steady) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	var res backend.RenewResult
	var err error
	_, _ = s.insist(ctx, func() error {
		res, err = s.Backend.Renew(ctx, req)
		for _, l := range res.Leases {
			if err == nil && errors.Is(l.Err, backend.ErrUnavailable) {
				return l.Err
			}
		}
		return err
	})
	return res, err
}

// Release releases a lease. If it is gone the second time, the first release may have worked.
func (s steady) Release(ctx context.Context, req backend.ReleaseRequest) error {
	again, err := s.insist(ctx, func() error { return s.Backend.Release(ctx, req) })
	if again && errors.Is(err, backend.ErrLost) {
		s.e.perhapsReleased.Store(req.Lease, true)
	}
	return err
}

// mayBeReleased reports whether a release of the lease had no answer, and the lease was gone afterwards.
func (e *env) mayBeReleased(id backend.LeaseID) bool {
	_, unknown := e.perhapsReleased.Load(id)
	return unknown
}

// List reads.
func (s steady) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	return repeated(ctx, s, func() (backend.ListPage, error) { return s.Backend.List(ctx, req) })
}

// Inspect reads.
func (s steady) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return repeated(ctx, s, func() (backend.LockInfo, error) { return s.Backend.Inspect(ctx, name) })
}
