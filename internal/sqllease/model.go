package sqllease

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// lock is a lock as one transaction sees it, and lease a row of the table of leases: see package
// lockstate, which has their rules.
type (
	lock  = lockstate.Lock[ofLock, ofLease]
	lease = lockstate.Lease[ofLock, ofLease]
)

// ofLock is what is kept of a lock in addition.
type ofLock struct {
	last int64 // the last number issued
	mine int64 // the last number that this transaction may issue without writing the row
	// front is the place behind which only some of the waiters were read: see lockstate.Lock.Rest.
	front int64
}

// ofLease is what is kept of a lease in addition.
type ofLease struct {
	// session is the one that the place in the queue lives under, and also the lease unless it is
	// timed. A held timed lease has it only to know which client to notify of its loss. Nil:
	// none.
	session *session
	addr    string    // of the backend values that wait for it, with blanks between them
	place   int64     // in the queue or among the holders; a greater one is later
	ends    time.Time // of a timed lease that is held

	saved bool // it has a row
	thin  bool // it has none, because it is in the row of its lock
	dirty bool // the row has to be written
	cut   bool // the row has a later end, see txn.cut
}

// next issues the next number of the lock.
func next(l *lock) int64 {
	l.Own.last++
	return l.Own.last
}

func sessionOf(l *lease) backend.SessionID {
	if l.Own.session == nil {
		return ""
	}
	return l.Own.session.id
}

// expired reports whether the lease has expired at that time.
func expired(l *lease, now time.Time) bool {
	if l.State == lockstate.Held && l.Timed {
		return !l.Own.ends.After(now)
	}
	return !l.Own.session.alive(now)
}

// leftOf returns how long the lease lives if it is not renewed.
func leftOf(l *lease, now time.Time) time.Duration {
	if l.State == lockstate.Held && l.Timed {
		return l.Own.ends.Sub(now)
	}
	return l.Own.session.ends.Sub(now)
}

// boundOf returns how long this lease leaves the lock as it is: it does not end earlier, neither
// now nor after a grant in the next moment. It is 0 for what a transaction has to end, or to cut.
func boundOf(l *lease, now time.Time) time.Duration {
	switch s := l.Own.session; {
	case expired(l, now), l.Own.cut, s != nil && s.cut:
		return 0
	case l.State == lockstate.Waiting && l.Timed:
		return min(leftOf(l, now), l.TTL)
	}
	return leftOf(l, now)
}

// session is a row of the table of sessions: the liveness of a client.
type session struct {
	id    backend.SessionID
	ttl   time.Duration
	ends  time.Time
	cause string // why it ended; empty: it has not ended
	addr  string // the channel that is notified of its losses
	known bool   // it has a row
	dirty bool   // cause has to be written
	cut   bool   // the row has a later end, see txn.cut
}

// alive reports whether the session lives at that time.
func (s *session) alive(now time.Time) bool {
	return s != nil && !s.over() && s.ends.After(now)
}

// over reports whether the session has ended for good.
func (s *session) over() bool { return !s.known || s.cause != "" }

// overdue reports whether the session is past its end, and not yet ended by a transaction.
func (s *session) overdue(now time.Time) bool {
	return !s.over() && !s.ends.After(now)
}

// leaseOf returns the lease of a row. Its session is that of the transaction.
func (t *txn) leaseOf(r *LeaseRow) *lease {
	l := &lease{
		Lock: t.lock(r.Name), ID: r.Lease, Claim: r.Claim, Owner: r.Owner, Note: r.Note, Timed: r.Timed, TTL: r.TTL,
		Asked: r.Asked, Waited: r.Waited, Token: token(r.Token), Since: r.Since,
		Own: ofLease{addr: r.Addr, place: r.Place, ends: r.Ends, saved: !r.Thin, thin: r.Thin},
	}
	if r.Held {
		l.State = lockstate.Held
		if l.Timed {
			l.Own.ends, l.Own.cut = t.cut(l.Own.ends, l.TTL)
		}
	}
	if r.Session != "" {
		l.Own.session = t.session(r.Session)
	}
	return l
}

// rowOf returns the row of the lease.
func rowOf(l *lease) LeaseRow {
	return LeaseRow{
		Name: l.Lock.Name, Lease: l.ID, Session: sessionOf(l), Addr: l.Own.addr, Held: l.State == lockstate.Held, Place: l.Own.place,
		Claim: l.Claim, Owner: l.Owner, Note: l.Note, Timed: l.Timed, TTL: l.TTL, Token: int64(l.Token), Asked: l.Asked, Since: l.Since, Ends: l.Own.ends, //nolint:gosec // it counts up from 0
		Waited: l.Waited,
	}
}
