package acquire

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Session is a session on the backend that is opened when it is first needed, and opened again after it
// was lost. The leases and the places in queues that belong to it end with it.
type Session struct {
	a *Agent
	// Guarded by Agent.Mu:
	live    *liveness.Session // may have ended; nil when none was opened yet
	opening *opening          // nil when it is not being opened
	ended   bool              // by End, Leave or Close
	waiting attempts          // that need live
}

// opening is a session that is being opened, shared by the calls that wait for it.
type opening struct {
	done chan struct{} // closed when sess and err are set
	sess *liveness.Session
	err  error
}

// NewSession returns a session that is not open. End it, or Leave it, or Close the agent with it.
func (a *Agent) NewSession() *Session { return &Session{a: a} }

// Current returns the session that is open, or nil. Agent.Mu is held.
func (s *Session) Current() *liveness.Session {
	if s.live == nil || s.live.Ended() {
		return nil
	}
	return s.live
}

// Open reports whether the session is open.
func (s *Session) Open() bool {
	s.a.Mu.Lock()
	defer s.a.Mu.Unlock()
	return s.Current() != nil
}

// Live returns the session, and opens it first if it is not open. Opening continues after ctx has
// ended, for the other callers.
func (s *Session) Live(ctx context.Context) (*liveness.Session, error) {
	now := s.a.Clock.Now()
	s.a.Mu.Lock()
	defer s.a.Mu.Unlock()
	return s.obtain(ctx, now)
}

// obtain is Live at that time. Agent.Mu is held, but not while the session is being opened.
func (s *Session) obtain(ctx context.Context, now clock.Instant) (*liveness.Session, error) {
	a := s.a
	if a.Closed() || s.ended {
		return nil, backend.ErrClosed
	}
	if live := s.Current(); live != nil && now < live.Deadline() {
		return live, nil
	}
	if s.opening == nil {
		op := &opening{done: make(chan struct{})}
		s.opening = op
		a.work.run(func() { s.open(op) })
	}
	op := s.opening
	a.Mu.Unlock()
	defer a.Mu.Lock()
	select {
	case <-op.done:
		return op.sess, op.err
	case <-a.closing.Done():
		return nil, backend.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Session) open(op *opening) {
	a := s.a
	live := liveness.NewSession(a.TTL)
	long := min(a.TTL, a.Timeout)
	ctx, cancel := backend.WithTimeout(a.background, long)
	defer cancel()
	sent := a.Clock.Now()
	err := a.Backend.OpenSession(ctx, backend.SessionRequest{ID: live.ID, TTL: live.TTL, Lost: func(l backend.Loss) { a.tellLoss(live, l) }})
	if err != nil && ctx.Err() != nil && !IsUnavailable(err) {
		err = &backend.UnavailableError{Backend: a.caps.Name, Op: "open session", Err: err}
	}
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok && away.MayHold {
		nothing := *away
		nothing.MayHold = false // not the lease that a caller opens it for: nothing was requested under it yet
		err = &nothing
	}
	if err == nil {
		a.back(true)
	}
	a.Mu.Lock()
	defer a.Mu.Unlock()
	s.opening = nil
	if err == nil && live.Ended() { // the loss was reported before the answer arrived
		err = backend.ErrSessionLost
	}
	if err == nil && s.ended {
		err = backend.ErrClosed
		op.sess = live // for End and Close
	}
	if err == nil {
		if before := s.Current(); before != nil {
			a.Live.Expire(before)
		}
		a.Live.Opened(live, sent)
		a.open[live] = s
		s.live, op.sess = live, live
	}
	op.err = err
	close(op.done)
}

// Leave ends the session on this side alone: its places in queues stay on the backend until its TTL has
// elapsed.
func (s *Session) Leave() {
	s.a.Mu.Lock()
	defer s.a.Mu.Unlock()
	s.end()
}

// End ends the session, here and on the backend, with all that belongs to it.
//
// Errors: ErrUnavailable; the cause of ctx. It then ends when its TTL has elapsed.
func (s *Session) End(ctx context.Context) error {
	s.a.Mu.Lock()
	last := s.end()
	s.a.Mu.Unlock()
	return s.a.tellEnd(ctx, last)
}

// ending is what of a session the backend does not know to have ended: one that is open, or that is
// being opened.
type ending struct {
	live    *liveness.Session
	opening *opening
}

// end ends the session on this side. Agent.Mu is held.
func (s *Session) end() ending {
	last := ending{s.Current(), s.opening}
	s.ended = true
	if last.live != nil {
		s.a.Live.EndSession(last.live, backend.CauseClosed, nil)
	}
	return last
}

// tellEnd ends a session on the backend.
func (a *Agent) tellEnd(ctx context.Context, last ending) error {
	if last.opening != nil {
		select {
		case <-last.opening.done:
			last.live = last.opening.sess
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if last.live == nil {
		return nil
	}
	return a.retryWith(ctx, retry.Pause, a.Timeout/3, func(ctx context.Context) error { return a.Backend.EndSession(ctx, last.live.ID) })
}

// lossNote is a loss that the backend reported.
type lossNote struct {
	session *liveness.Session
	loss    backend.Loss
}

// tellLoss records a loss. The backend may call it with its own locks held, so it must not call the
// backend or the observer.
func (a *Agent) tellLoss(s *liveness.Session, l backend.Loss) {
	a.Mu.Lock()
	a.losses = append(a.losses, lossNote{s, l})
	a.Mu.Unlock()
	a.Wake()
}

// actOnLosses applies the recorded losses. Mu is held.
func (a *Agent) actOnLosses() {
	losses := a.losses
	a.losses = nil
	for _, n := range losses {
		a.Live.Report(n.session, n.loss)
	}
}

// sessionIsLost records that the backend answered ErrSessionLost.
func (a *Agent) sessionIsLost(s *liveness.Session) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Live.EndSession(s, backend.CauseSession, nil)
}
