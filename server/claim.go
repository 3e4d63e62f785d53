package server

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// claim is the lease of an acquire request. The server does not keep it: once it is granted it is the
// client's, who renews it.
type claim struct {
	s      *Server
	live   liveness.Lease
	shared bool
	lost   error // set before the grant was accepted; guarded by the agent's mutex

	grant backend.Grant
	since clock.Instant // of the grant
	ends  time.Time     // of the lease on the backend
}

// Lease implements acquire.Candidate.
func (c *claim) Lease() *liveness.Lease { return &c.live }

// Lost implements liveness.Holder.
func (c *claim) Lost(cause backend.Cause, reason string, err error) {
	c.lost = &holdfast.LostError{Name: c.live.Name, Cause: cause, Reason: reason, Err: err}
}

// Moved implements liveness.Holder.
func (c *claim) Moved() {}

// Abandon implements liveness.Holder. A claim is never held, so no earlier attempt can be held beside it.
func (c *claim) Abandon() {}

// Accept implements acquire.Candidate.
func (c *claim) Accept(_ context.Context, g backend.Grant, sent clock.Instant) error {
	a := c.s.agent
	c.since = a.Clock.Now()
	inTime := a.Live.Granted(&c.live, sent, c.since, g.Left, 0)
	switch {
	case c.lost != nil:
		return c.lost
	case !inTime:
		return &holdfast.LostError{Name: c.live.Name, Token: g.Token, Cause: holdfast.CauseExpired}
	}
	a.Live.Drop(&c.live)
	c.grant, c.ends = g, a.Clock.Time(c.live.Deadline())
	if !g.Asked.IsZero() {
		c.ends = g.Asked.Add(g.Left)
	}
	return nil
}

// request returns what is asked of the backend.
func (a ask) request() backend.AcquireRequest {
	req := backend.AcquireRequest{
		Name: a.name, Owner: a.Owner, Note: a.Note, Timed: true, TTL: time.Duration(a.TTL), Wait: a.Wait > 0,
	}
	if a.Shared || a.Limit > 1 {
		req.Mode, req.Permits = backend.Shared, 1
	}
	if a.Limit > 1 { // 1 is the default: a shared acquire with it is a reader's
		req.Limit, req.Permits = a.Limit, a.Permits
	}
	return req
}

// try takes the lock if it is free, without a session.
func (s *Server) try(ctx context.Context, a ask) (*claim, error) {
	a.Wait = 0
	return s.take(ctx, a, nil)
}

// take takes the lock. A wait has its place in the session.
//
// Errors: an *OpError around those of acquire.Agent.Acquire, and ErrInvalid and ErrUnsupported before
// anything is sent.
func (s *Server) take(ctx context.Context, a ask, session *acquire.Session) (*claim, error) {
	begun := s.agent.Clock.Now()
	req := a.request()
	shared := req.Mode == backend.Shared
	s.hooks.Waiting(ctx, 1)
	defer s.hooks.Waiting(ctx, -1)
	err := acquire.Validate(req, s.caps)
	var got acquire.Candidate
	if err == nil {
		got, err = s.agent.Acquire(ctx, &acquire.Request{
			AcquireRequest: req, Patience: time.Duration(a.Wait), Session: session, Fixed: a.stored, Mark: a.mark, Candidates: claims{s, shared},
		})
	}
	if err != nil {
		err = &holdfast.OpError{Op: "acquire", Name: a.name, Backend: s.caps.Name, MayHold: acquire.MayHold(err), Err: err}
		s.hooks.Failed(ctx, holdfast.FailedEvent{
			Name: a.name, Shared: shared, Waited: time.Duration(s.agent.Clock.Now() - begun),
			Result: holdfast.Result(acquire.Outcome(ctx, err)), Err: err,
		})
		return nil, err
	}
	c := got.(*claim)
	s.hooks.Acquired(ctx, holdfast.AcquiredEvent{
		Lock: holdfast.Lease{Name: c.live.Name, ID: c.live.ID}, Token: c.grant.Token, Shared: shared,
		Waited: time.Duration(c.since - begun), InQueue: c.grant.Waited, ByTimer: c.grant.ByTimer,
	})
	return c, nil
}

// claims makes the claims of one request.
type claims struct {
	s      *Server
	shared bool
}

// Candidate implements acquire.Maker.
func (m claims) Candidate() acquire.Candidate {
	c := &claim{s: m.s, shared: m.shared}
	c.live.Holder = c
	return c
}

// observer counts what the agent reports.
type observer struct{ *holdfast.Hooks }

// Renewed implements acquire.Observer.
func (o observer) Renewed(leases int, margin, took time.Duration, err error) {
	o.Hooks.Renewed(context.Background(), holdfast.RenewedEvent{Leases: leases, Margin: margin, Took: took, Err: err})
}

// AtRisk implements acquire.Observer. Nothing that is held depends on a session here.
func (o observer) AtRisk(int, time.Duration, error) {}

// Ambiguous implements acquire.Observer.
func (o observer) Ambiguous(ctx context.Context, op string) { o.Hooks.Ambiguous(ctx, op) }
