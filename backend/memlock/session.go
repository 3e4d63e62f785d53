package memlock

import (
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// session is the liveness of a client.
type session struct {
	end       end
	id        backend.SessionID
	ttl       time.Duration
	leases    []*lease // held, except the timed ones, and queued; in no order
	listeners map[*Backend]func(backend.Loss)
	broken    []brokenLease
}

// notice is a loss on its way to a listener.
type notice struct {
	tell func(backend.Loss)
	loss backend.Loss
}

// brokenLease is a loss that renewals report up to until. That is one TTL, so that a client
// that lost the reply to one renewal gets it from the next one, or has lost the session by
// then.
type brokenLease struct {
	loss  backend.Loss
	until instant
}

func (x *session) add(l *lease) {
	l.Own.slot = len(x.leases)
	x.leases = append(x.leases, l)
}

func (x *session) remove(l *lease) {
	last := len(x.leases) - 1
	x.leases[l.Own.slot] = x.leases[last]
	x.leases[l.Own.slot].Own.slot = l.Own.slot
	x.leases[last] = nil
	x.leases = x.leases[:last]
}

// openSession creates the session or confirms it. It never revives one.
func (s *Store) openSession(via *Backend, req *backend.SessionRequest) error {
	if s.ended.Has(req.ID) {
		return backend.ErrSessionLost
	}
	x, ok := s.sessions[req.ID]
	if !ok {
		x = &session{id: req.ID, listeners: make(map[*Backend]func(backend.Loss))}
		x.end.Owner = x
		s.sessions[req.ID] = x
	}
	x.ttl = req.TTL
	s.due.Put(&x.end, s.now+instant(req.TTL))
	if req.Lost != nil {
		x.listeners[via] = req.Lost
	}
	return nil
}

// endSession ends everything that lives with the session. Listeners are notified, except
// those of the Backend that called it.
func (s *Store) endSession(x *session, by *Backend, event backend.EventKind, cause backend.Cause) {
	delete(s.sessions, x.id)
	s.due.Remove(&x.end)
	s.ended.Add(x.id)
	for len(x.leases) > 0 {
		lockstate.End(s.rules(), x.leases[len(x.leases)-1], event, backend.ErrSessionLost, "")
	}
	s.tell(x, by, backend.Loss{Session: x.id, Cause: cause})
}

// renewSession extends the session and returns the losses to report to it, or false when
// there is no such session.
func (s *Store) renewSession(id backend.SessionID) ([]backend.Loss, bool) {
	x, ok := s.sessions[id]
	if !ok {
		return nil, false
	}
	s.due.Put(&x.end, s.now+instant(x.ttl))
	x.broken = slices.DeleteFunc(x.broken, func(b brokenLease) bool { return b.until <= s.now })
	var lost []backend.Loss
	for _, b := range x.broken {
		lost = append(lost, b.loss)
	}
	return lost, true
}

func (s *Store) tell(x *session, by *Backend, loss backend.Loss) {
	for via, tell := range x.listeners {
		if via != by && !via.closed {
			s.told = append(s.told, notice{tell, loss})
		}
	}
}
