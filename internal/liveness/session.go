package liveness

import (
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// Session is the client's session on the backend.
type Session struct {
	ID  backend.SessionID
	TTL time.Duration

	due      entry
	opened   bool
	phase    time.Duration // of its renewal times
	deadline clock.Instant
	renewAt  clock.Instant
	renewing bool
	failures int   // renewals that failed since the last success
	lastErr  error // of the last of them
	ended    bool
	leases   map[backend.LeaseID]*Lease // held or being acquired
	held     int                        // how many of them are held
	watched  map[*Lease]struct{}
}

// NewSession returns a session that is not open yet.
func NewSession(ttl time.Duration) *Session {
	return &Session{
		ID: backend.NewSessionID(), TTL: ttl,
		leases: make(map[backend.LeaseID]*Lease), watched: make(map[*Lease]struct{}),
	}
}

// Deadline is its end on this side.
func (s *Session) Deadline() clock.Instant { return s.deadline }

// Ended reports whether the session has ended.
func (s *Session) Ended() bool { return s.ended }

// Held returns how many leases of the session are held.
func (s *Session) Held() int { return s.held }

// Opened records that the backend confirmed the session. The request left at sent. Timed leases share
// requests with the first session that is open. Further ones are not renewed in step with it.
func (m *Machine) Opened(s *Session, sent clock.Instant) {
	s.opened, s.phase = true, m.phase
	if m.sessions++; m.sessions > 1 {
		s.phase = rand.N(s.TTL)
	}
	m.extendSession(s, sent)
	s.due.Owner = s
	m.put(&s.due, s.next())
}

// extendSession records that a request that left at sent was acknowledged.
func (m *Machine) extendSession(s *Session, sent clock.Instant) {
	s.deadline = max(s.deadline, sent+clock.Instant(s.TTL-clock.Drift(s.TTL)))
	s.renewAt = nextRenewal(sent, s.TTL, s.phase)
	s.failures, s.lastErr = 0, nil
	for l := range s.watched {
		l.Holder.Moved()
	}
}

// next returns when the session needs a step.
func (s *Session) next() clock.Instant {
	if s.renewing {
		return s.deadline
	}
	return min(s.deadline, s.renewAt)
}

// wake does what is due at now.
func (s *Session) wake(m *Machine, now clock.Instant, d *Due) {
	if s.ended {
		return
	}
	if now >= s.deadline {
		m.Expire(s)
		return
	}
	if !s.renewing && now >= s.renewAt {
		s.renewing = true
		d.Sessions = append(d.Sessions, s)
	}
	m.put(&s.due, s.next())
}

// SessionConfirmed applies the answer to a renewal of the session. The request left at sent.
func (m *Machine) SessionConfirmed(s *Session, sent, now clock.Instant, res backend.RenewResult, err error) {
	if s.ended {
		return
	}
	left := time.Duration(s.deadline - now)
	m.observer.Renewed(s.held, left, time.Duration(now-sent), err)
	switch {
	case err != nil:
		s.failures++
		s.lastErr = err
		s.renewAt = now + retryIn(s.TTL, s.deadline-now, s.failures)
		if s.failures == 1 && s.held > 0 {
			m.observer.AtRisk(s.held, left, err)
		}
	case res.SessionLost:
		m.EndSession(s, backend.CauseSession, nil)
		return
	case now >= s.deadline:
		// Too late: a caller that checked in the meantime was told that it is lost.
		m.Expire(s)
		return
	default:
		m.extendSession(s, sent)
		for _, loss := range res.Lost {
			m.Report(s, loss)
		}
	}
	m.put(&s.due, s.next())
}

// Expire ends a session whose deadline has passed.
func (m *Machine) Expire(s *Session) { m.EndSession(s, backend.CauseDeadline, s.lastErr) }

// EndSession ends the session on this side, with every lease of it.
func (m *Machine) EndSession(s *Session, cause backend.Cause, err error) {
	if s.ended {
		return
	}
	s.ended = true
	if s.opened {
		m.sessions--
	}
	m.due.Remove(&s.due)
	m.observer.Ended(s)
	for _, l := range s.leases {
		if !l.Timed { // only its place in the queue belonged to the session
			m.Lose(l, cause, "", err)
		}
	}
}

// forget removes l from the leases of the session. Another acquisition of the same lease ID may have
// replaced it there.
func (s *Session) forget(l *Lease) {
	if s.leases[l.ID] == l {
		delete(s.leases, l.ID)
	}
}
