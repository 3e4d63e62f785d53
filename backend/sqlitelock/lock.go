package sqlitelock

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// lock is a lock as one transaction sees it, and lease a row of the table of leases: see package
// lockstate, which has their rules.
type (
	lock  = lockstate.Lock[struct{}, ofLease]
	lease = lockstate.Lease[struct{}, ofLease]
)

// ofLease is what is kept of a lease in addition.
type ofLease struct {
	// session is the one that the place in the queue lives under, and also the lease unless it is
	// timed. A held timed lease has it only to know which client to notify of its loss. Empty:
	// none.
	session backend.SessionID
	addr    string  // of the backend value that waits for it
	place   int64   // in the queue or among the holders; a greater one is later; 0: in neither yet
	ends    instant // of a timed lease that is held

	dirty bool // it is in txn.touched
}

// take returns the lease of the request, held or in the queue.
func (t *txn) take(req *backend.AcquireRequest) (*lease, error) {
	l, err := lockstate.Acquire(t, t.lock(req.Name), req)
	if err != nil {
		return nil, err
	}
	if l.State == lockstate.Waiting && l.Own.addr != t.b.addr {
		l.Own.addr = t.b.addr
		t.touch(l)
	}
	return l, nil
}

// A transaction is what the rules of package lockstate need.
var _ lockstate.Store[struct{}, ofLease] = (*txn)(nil)

// Now implements lockstate.Store.
func (t *txn) Now() time.Time { return t.wall.Round(0) }

// Queued implements lockstate.Store.
func (t *txn) Queued(l *lease) {
	l.Own.place = t.nextPlace()
	t.touch(l)
	t.emit(backend.EventWaiting, l, "")
}

// Granted implements lockstate.Store.
func (t *txn) Granted(l *lease) {
	l.Own.place = t.nextPlace()
	t.touch(l)
	t.emit(backend.EventAcquired, l, "")
	if l.Waited {
		t.wake(l, nil)
	}
}

// Ended implements lockstate.Store.
func (t *txn) Ended(l *lease, was lockstate.State, event backend.EventKind, err error, reason string) {
	if was == lockstate.Waiting {
		t.wake(l, err)
	} else if l.Timed {
		t.durable = true
	}
	t.touch(l)
	t.changed.Add(l.Lock)
	t.emit(event, l, reason)
}

// Extend implements lockstate.Store.
func (t *txn) Extend(l *lease) {
	l.Own.ends = t.now.add(l.TTL)
	t.ends(l.Own.ends)
	t.dirty = true // the clocks are noted with every timed lease
	t.touch(l)
}

// Lost notifies the session immediately, and with its renewals for one TTL. So a client that lost
// the reply to one renewal learns it from the next one, or has lost the session by then.
func (t *txn) Lost(l *lease, cause backend.Cause, reason string) {
	x := t.session(l.Own.session)
	if x == nil {
		return
	}
	until := t.now.add(x.ttl)
	t.ends(until)
	t.exec(`INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?, ?)`, string(x.id), string(l.ID), string(cause), reason, int64(until))
	t.tell(x, backend.Loss{Session: x.id, Lease: l.ID, Cause: cause, Reason: reason}, false)
}

// Abandon implements lockstate.Store.
func (t *txn) Abandon(k lockstate.Key) { t.bury(string(k.ID), k.Name, "") }

// Abandoned implements lockstate.Store.
func (t *txn) Abandoned(k lockstate.Key) bool {
	_, dead := t.tomb(string(k.ID), k.Name)
	return dead
}

// Join implements lockstate.Store.
func (t *txn) Join(l *lease, id backend.SessionID) bool {
	if id == "" {
		return true
	}
	if t.session(id) == nil {
		return false
	}
	l.Own.session = id
	if l.Own.place > 0 { // it is in the queue
		t.touch(l)
	}
	return true
}

// Session implements lockstate.Store.
func (t *txn) Session(l *lease) backend.SessionID { return l.Own.session }

// Left implements lockstate.Store.
func (t *txn) Left(l *lease) time.Duration {
	if l.Timed {
		return time.Duration(l.Own.ends - t.now)
	}
	if s := t.session(l.Own.session); s != nil {
		return time.Duration(s.ends - t.now)
	}
	return 0
}

// answer returns the answer to an Acquire, under that session, of a lease that is held.
func (t *txn) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	t.durable = t.durable || t.binds(l)
	return lockstate.Answer(t, l, id, t.asked)
}

// binds reports whether the grant of the lease must survive a power failure: the lease does, or its token is not
// yet reserved on the disk, and might be issued again.
func (t *txn) binds(l *lease) bool {
	return l.Timed || int64(l.Token) > t.meta.durable //nolint:gosec // it came from meta
}

// wake notifies the waiters for the lease that it is held, or why it never will be.
func (t *txn) wake(l *lease, err error) {
	t.notify(l.Own.addr, waiters.LeaseLine(l.Key()))
	t.resolve(l, err, false) // a caller here may wait for it as well
}

// resolve answers the waiters of this backend value.
func (t *txn) resolve(l *lease, err error, byTimer bool) {
	for _, w := range t.b.calls.Of(l.Key()) {
		v := waiters.Verdict{Err: lockstate.EndedFor(t, l, w.Session, err)}
		if err == nil {
			v.Grant, v.Err = lockstate.Answer(t, l, w.Session, t.asked)
			v.Grant.ByTimer = byTimer
		}
		t.deliveries = append(t.deliveries, delivery{err == nil && t.binds(l), func() { w.Give(v) }})
	}
}
