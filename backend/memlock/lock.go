package memlock

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// lock is a lock that is held or waited for, and lease an acquisition: see package lockstate, which has
// their rules.
type (
	lock  = lockstate.Lock[ofLock, ofLease]
	lease = lockstate.Lease[ofLock, ofLease]
)

// ofLock is what a Store keeps of a lock in addition.
type ofLock struct {
	token   fence.Token // the greatest so far
	changed bool        // it is in Store.changed
}

// ofLease is what a Store keeps of a lease in addition.
type ofLease struct {
	end deadline // of a timed lease that is held
	// session is the session that the place in the queue belongs to, and that a lease belongs
	// to unless it is timed. A timed lease that is held keeps it only to report its loss
	// there. Nil: none.
	session *session
	slot    int // in session.leases
	// left is closed when the lease leaves the queue, and is nil when it never was in the
	// queue.
	left chan struct{}
	err  error // why it ended
}

// take is the core of Acquire: afterwards the lease is held or queued, or an error is
// returned and nothing has changed.
func (s *Store) take(req *backend.AcquireRequest) (*lease, error) {
	key := leaseKey{req.Name, req.Lease}
	if l, ok := s.leases[key]; ok {
		return s.takeAgain(l, req)
	}
	if s.abandoned.has(key) {
		return nil, backend.ErrLost
	}
	sess, err := s.liveSession(req.Session)
	if err != nil {
		return nil, err
	}
	l := &lease{ID: req.Lease, Claim: req.Claim(), Note: req.Note, Timed: req.Timed, TTL: req.TTL}
	l.Own.session = sess
	s.leases[key] = l
	if sess != nil {
		sess.add(l)
	}
	if err := lockstate.Take(s.rules(), s.lock(req.Name), l, req.Wait); err != nil {
		delete(s.leases, key)
		if sess != nil {
			sess.remove(l)
		}
		return nil, err
	}
	return l, nil
}

// takeAgain answers a repeated request: C6.
func (s *Store) takeAgain(l *lease, req *backend.AcquireRequest) (*lease, error) {
	if l.State == lockstate.Held {
		return l, nil
	}
	if l.Own.session.id != req.Session {
		sess, err := s.liveSession(req.Session)
		if err != nil {
			return nil, err
		}
		if sess != nil {
			l.Own.session.remove(l)
			l.Own.session = sess
			sess.add(l)
		}
	}
	if !req.Wait {
		return nil, lockstate.HeldError(s.rules(), l)
	}
	return l, nil
}

// rules returns the Store as package lockstate needs it.
func (s *Store) rules() lockstate.Store[ofLock, ofLease] { return rows{s} }

// rows implements lockstate.Store.
type rows struct{ s *Store }

func (r rows) Now() time.Time { return r.s.wall() }

func (r rows) Token(*lock) fence.Token { return r.s.nextToken() }

func (r rows) Queued(l *lease) {
	l.Own.left = make(chan struct{})
	r.s.emit(backend.EventWaiting, l, "")
}

func (r rows) Granted(l *lease) {
	l.Lock.Own.token = l.Token
	if l.Timed {
		if l.Own.session != nil {
			l.Own.session.remove(l)
		}
		l.Own.end.ofLease = l
		r.s.schedule(&l.Own.end, r.s.now+instant(l.TTL))
	}
	if l.Waited {
		close(l.Own.left)
	}
	r.s.emit(backend.EventAcquired, l, "")
}

func (r rows) Ended(l *lease, was lockstate.State, event backend.EventKind, err error, reason string) {
	if was == lockstate.Waiting {
		close(l.Own.left)
	} else {
		r.s.unschedule(&l.Own.end)
	}
	l.Own.err = err
	if l.Own.session != nil && (was == lockstate.Waiting || !l.Timed) {
		l.Own.session.remove(l)
	}
	delete(r.s.leases, leaseKey{l.Lock.Name, l.ID})
	r.s.touch(l.Lock)
	r.s.emit(event, l, reason)
}

func (r rows) Session(l *lease) backend.SessionID { return l.Own.session.id }

func (r rows) Left(l *lease) time.Duration {
	if l.Timed {
		return time.Duration(l.Own.end.ends - r.s.now)
	}
	return time.Duration(l.Own.session.ends - r.s.now)
}

// end removes a lease everywhere, for good. The next settle hands over what it held.
func (s *Store) end(l *lease, err error, event backend.EventKind, reason string) {
	lockstate.End(s.rules(), l, event, err, reason)
}

// answer returns the result of an Acquire of the lease under that session, when the lease is
// not queued.
func (s *Store) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	switch {
	case l.State != lockstate.Held:
		return backend.Grant{}, l.Own.err
	case !l.Timed && l.Own.session.id != id:
		return backend.Grant{}, backend.ErrLost // it ends with the other session
	}
	g := backend.Grant{
		Token: l.Token, Asked: s.epoch.Add(time.Duration(s.now)), Since: l.Since,
		Waited: l.Waited, Joined: l.Joined,
	}
	if l.Timed {
		g.Left = time.Duration(l.Own.end.ends - s.now)
	}
	return g, nil
}
