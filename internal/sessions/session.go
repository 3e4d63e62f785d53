package sessions

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Session is a session of the contract. Its methods are safe for concurrent use.
type Session struct {
	ID  backend.SessionID
	TTL time.Duration
	// Life ends when the session has ended.
	Life context.Context //nolint:containedctx // it is the session's
	stop context.CancelFunc

	lost   func(backend.Loss) // may be nil
	lag    time.Duration      // how late the store may end it
	onEnd  func()             // tells the Sessions that it has ended
	bury   func()             // ends it in the store, in the background
	opened chan struct{}      // closed when it was opened, or could not be
	err    error              // why it could not be opened; read after opened is closed

	renewed chan struct{} // capacity 1, never closed: the deadline moved

	mu       sync.Mutex // guards the fields below
	deadline time.Time  // when it ends unless it is renewed; by the local clock
	ended    time.Time  // when it has ended; zero: it lives
	losses   lockstate.Reports
	final    lockstate.Losses // whose loss was reported
}

func (s *Session) isOpen() bool {
	select {
	case <-s.opened:
		return s.err == nil && s.Life.Err() == nil
	default:
		return false
	}
}

// Extend records that the session lives for its TTL from now on. ErrSessionLost: it has ended, or is past
// its deadline, and callers may have been told so.
func (s *Session) Extend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.ended.IsZero() || !s.deadline.IsZero() && !now.Before(s.deadline) {
		return backend.ErrSessionLost
	}
	s.deadline = now.Add(s.TTL)
	select {
	case s.renewed <- struct{}{}:
	default:
	}
	return nil
}

// Left returns for how long the session lives unless it is renewed: 0 or less if it has ended.
func (s *Session) Left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended.IsZero() {
		return 0
	}
	return time.Until(s.deadline)
}

// Keep ends the session when it was not renewed for its TTL, or over is closed because the store has
// ended it. It returns when the session has ended. over may be nil.
func (s *Session) Keep(over <-chan struct{}) {
	end := time.NewTimer(s.Left())
	defer end.Stop()
	for s.Life.Err() == nil {
		select {
		case <-s.Life.Done():
		case <-over:
			s.Expire(backend.CauseExpired)
		case <-s.renewed:
			end.Reset(s.Left())
		case <-end.C:
			left := s.Left()
			if left <= 0 {
				s.Expire(backend.CauseExpired)
			}
			end.Reset(left)
		}
	}
}

// Expire ends the session because its time has run out, or the store reports that it has ended, and
// reports its loss.
func (s *Session) Expire(cause backend.Cause) {
	if !s.finish() {
		return
	}
	s.bury()
	if s.lost != nil {
		s.lost(backend.Loss{Session: s.ID, Cause: cause})
	}
}

// finish ends the session here. It returns false if the session had ended before.
func (s *Session) finish() bool {
	if !s.markEnded() {
		return false
	}
	s.onEnd()
	return true
}

func (s *Session) markEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended.IsZero() {
		return false
	}
	s.ended = time.Now()
	s.stop()
	return true
}

// Expired reports whether the session has ended here so long ago that the store has ended it too,
// whatever became of the requests to do so.
func (s *Session) Expired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended.IsZero() && time.Since(s.ended) > 2*s.TTL+s.lag
}

// Report reports the loss of a lease of the session, once: to the callback, after forget has returned, and with the
// renewals. Lost is final: from before the call of forget on, IsLost returns true for the lease.
func (s *Session) Report(loss backend.Loss, forget func()) {
	loss.Session = s.ID
	s.mu.Lock()
	known := s.final.Has(s.ID, loss.Lease)
	if !known {
		s.final.Add(loss)
		s.losses.Add(loss, s.TTL)
	}
	s.mu.Unlock()
	if known {
		return
	}
	forget()
	if s.lost != nil {
		s.lost(loss)
	}
}

// IsLost reports whether the loss of the lease was reported. Such a lease is never granted again.
func (s *Session) IsLost(lease backend.LeaseID) bool { return s.final.Has(s.ID, lease) }

// reports returns the losses that a renewal reports.
func (s *Session) reports() []backend.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.losses.Losses()
}
