package sqlitelock

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
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
	changed bool // it is in txn.changed
}

// ofLease is what is kept of a lease in addition.
type ofLease struct {
	// session is the one that the place in the queue lives under, and also the lease unless it is
	// timed. A held timed lease has it only to know which client to notify of its loss. Empty:
	// none.
	session backend.SessionID
	addr    string  // of the backend value that waits for it
	place   int64   // in the queue or among the holders; a greater one is later
	ends    instant // of a timed lease that is held

	saved bool // it has a row
	dirty bool // it is in txn.touched
}

// leaseKey identifies a lease: the same ID with another name is another lease.
type leaseKey struct {
	name string
	id   backend.LeaseID
}

func keyOf(l *lease) leaseKey { return leaseKey{l.Lock.Name, l.ID} }

// take is the heart of Acquire. Afterwards the lease is held, or in the queue, or there is an
// error and nothing has changed.
func (t *txn) take(req *backend.AcquireRequest) (*lease, error) {
	lk := t.lock(req.Name)
	if l := lk.Find(req.Lease); l != nil {
		return t.takeAgain(l, req)
	}
	if _, dead := t.tomb(string(req.Lease), req.Name); dead {
		return nil, backend.ErrLost
	}
	if req.Session != "" && t.session(req.Session) == nil {
		return nil, backend.ErrSessionLost
	}
	l := &lease{
		ID: req.Lease, Claim: req.Claim(), Note: req.Note, Timed: req.Timed, TTL: req.TTL,
		Own: ofLease{session: req.Session, addr: t.b.addr()},
	}
	if err := lockstate.Take(t.rules(), lk, l, req.Wait); err != nil {
		return nil, err
	}
	return l, nil
}

// takeAgain answers a repeated request: C6.
func (t *txn) takeAgain(l *lease, req *backend.AcquireRequest) (*lease, error) {
	if l.State == lockstate.Held {
		return l, nil
	}
	if req.Session != "" && l.Own.session != req.Session {
		if t.session(req.Session) == nil {
			return nil, backend.ErrSessionLost
		}
		l.Own.session = req.Session
		t.touch(l)
	}
	if !req.Wait {
		return nil, lockstate.HeldError(t.rules(), l)
	}
	if l.Own.addr != t.b.addr() {
		l.Own.addr = t.b.addr()
		t.touch(l)
	}
	return l, nil
}

// rules returns the transaction as package lockstate needs it.
func (t *txn) rules() lockstate.Store[ofLock, ofLease] { return rows{t} }

// rows implements lockstate.Store.
type rows struct{ t *txn }

func (r rows) Now() time.Time { return r.t.wall.Round(0) }

func (r rows) Token(*lock) fence.Token { return r.t.nextToken() }

func (r rows) Queued(l *lease) {
	l.Own.place = r.t.nextPlace()
	r.t.touch(l)
	r.t.emit(backend.EventWaiting, l, "")
}

func (r rows) Granted(l *lease) {
	t := r.t
	l.Own.place = t.nextPlace()
	if l.Timed {
		l.Own.ends = t.now.add(l.TTL)
		t.ends(l.Own.ends)
		t.dirty = true // the clocks are noted with every timed lease
	}
	t.touch(l)
	t.emit(backend.EventAcquired, l, "")
	if l.Waited {
		t.wake(l, nil)
	}
}

func (r rows) Ended(l *lease, was lockstate.State, event backend.EventKind, err error, reason string) {
	if was == lockstate.Waiting {
		r.t.wake(l, err)
	}
	r.t.touch(l)
	r.t.change(l.Lock)
	r.t.emit(event, l, reason)
}

func (r rows) Session(l *lease) backend.SessionID { return l.Own.session }

func (r rows) Left(l *lease) time.Duration {
	if l.Timed {
		return time.Duration(l.Own.ends - r.t.now)
	}
	if s := r.t.session(l.Own.session); s != nil {
		return time.Duration(s.ends - r.t.now)
	}
	return 0
}

// end removes a lease for good. The next settle hands over what it held. Its waiters get err.
func (t *txn) end(l *lease, err error, event backend.EventKind, reason string) {
	lockstate.End(t.rules(), l, event, err, reason)
}

// answer returns the answer to an Acquire, under that session, of a lease that is held.
func (t *txn) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	if !l.Timed && l.Own.session != id {
		return backend.Grant{}, backend.ErrLost // it will die with the other session
	}
	if l.Timed || t.telling(l.Token) {
		t.durable = true
	}
	g := backend.Grant{Token: l.Token, Asked: t.asked, Since: l.Since, Waited: l.Waited, Joined: l.Joined}
	if l.Timed {
		g.Left = time.Duration(l.Own.ends - t.now)
	}
	return g, nil
}

// wake notifies the waiters for the lease that it is held, or why it never will be.
func (t *txn) wake(l *lease, err error) {
	if l.Own.addr != t.b.addr() {
		t.write(l.Own.addr, letter{leases: map[leaseKey]struct{}{keyOf(l): {}}})
	}
	t.resolve(l, err, false) // a caller here may wait for it as well
}

// resolve answers the waiters of this backend value.
func (t *txn) resolve(l *lease, err error, byTimer bool) {
	outer := t.durable
	defer func() { t.durable = outer }()
	for _, w := range t.b.waitersOf(keyOf(l)) {
		t.durable = false
		a := answer{err: err}
		if err == nil {
			a.grant, a.err = t.answer(l, w.session)
			a.grant.ByTimer = byTimer
		}
		t.deliveries = append(t.deliveries, delivery{t.durable, func(failed error) {
			if failed != nil {
				a = answer{err: unavailable("acquire", true, failed)}
			}
			w.give(a)
		}})
	}
}
