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
	token fence.Token // the greatest so far
}

// ofLease is what a Store keeps of a lease in addition.
type ofLease struct {
	end end // of a timed lease that is held
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

// rules returns the Store as package lockstate needs it.
func (s *Store) rules() lockstate.Store[ofLock, ofLease] { return rows{s} }

// rows implements lockstate.Store.
type rows struct{ s *Store }

func (r rows) Now() time.Time { return r.s.wall() }

func (r rows) Token(l *lock) fence.Token {
	r.s.token++
	l.Own.token = r.s.token
	return r.s.token
}

func (r rows) Queued(l *lease) {
	l.Own.left = make(chan struct{})
	l.Own.session.add(l)
	r.s.emit(backend.EventWaiting, l, "")
}

func (r rows) Granted(l *lease) {
	if l.Timed && l.Waited { // the place in the queue was the session's
		l.Own.session.remove(l)
	} else if !l.Timed && !l.Waited {
		l.Own.session.add(l)
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
		r.s.due.Remove(&l.Own.end)
	}
	l.Own.err = err
	if l.Own.session != nil && (was == lockstate.Waiting || !l.Timed) {
		l.Own.session.remove(l)
	}
	r.s.changed.Add(l.Lock)
	r.s.emit(event, l, reason)
}

func (r rows) Extend(l *lease) {
	l.Own.end.Owner = l
	r.s.due.Put(&l.Own.end, r.s.now+instant(l.TTL))
}

// Lost notifies the session immediately, and with its renewals.
func (r rows) Lost(l *lease, cause backend.Cause, reason string) {
	x := l.Own.session
	if x == nil || r.s.sessions[x.id] != x {
		return
	}
	loss := backend.Loss{Session: x.id, Lease: l.ID, Cause: cause, Reason: reason}
	x.broken = append(x.broken, brokenLease{loss, r.s.now + instant(x.ttl)})
	r.s.tell(x, nil, loss)
}

func (r rows) Abandon(k lockstate.Key) { r.s.abandoned.Add(k) }

func (r rows) Abandoned(k lockstate.Key) bool { return r.s.abandoned.Has(k) }

func (r rows) Join(l *lease, id backend.SessionID) bool {
	x, ok := r.s.sessions[id]
	switch {
	case id == "":
		return true
	case !ok:
		return false
	case l.Own.session != nil: // it is in the queue
		l.Own.session.remove(l)
		x.add(l)
	}
	l.Own.session = x
	return true
}

func (r rows) Session(l *lease) backend.SessionID { return l.Own.session.id }

func (r rows) Left(l *lease) time.Duration {
	if l.Timed {
		return time.Duration(l.Own.end.At() - r.s.now)
	}
	return time.Duration(l.Own.session.end.At() - r.s.now)
}

// answer returns the result of an Acquire of the lease under that session, when the lease is
// not queued.
func (s *Store) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	if l.State != lockstate.Held {
		return backend.Grant{}, lockstate.EndedFor(s.rules(), l, id, l.Own.err)
	}
	return lockstate.Answer(s.rules(), l, id, s.epoch.Add(time.Duration(s.now)))
}
