package sqllease

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// txn is one transaction on some locks: what was read of them, and what is to be written.
// Everything between the two happens here, without the server.
type txn struct {
	b       *Leases
	asked   time.Time // a local time before now
	now     time.Time // the server's clock, read with the rows of the locks locked
	watched bool      // there are watchers
	early   bool      // other clients see its commit before it survives a crash: see early.go

	locks    map[string]*lock
	sessions map[backend.SessionID]*session
	buried   map[Key]struct{} // abandoned leases among those requested
	tombed   map[string]bool  // locks with tombs: see View.Tombs

	tombs map[Key]struct{} // of leases that were abandoned now
	out   Changes          // so far: see changes
	more  []string         // locks whose whole queues have to be read: the transaction is repeated

	notifications map[string]*notification // for other backend values, by channel
	after         []func()                 // run after the commit
}

func newTxn(b *Leases) *txn {
	return &txn{
		b: b, locks: make(map[string]*lock), sessions: make(map[backend.SessionID]*session),
		buried: make(map[Key]struct{}), tombed: make(map[string]bool), tombs: make(map[Key]struct{}), notifications: make(map[string]*notification),
	}
}

// lock returns one of the locks that were read.
func (t *txn) lock(name string) *lock {
	l := t.locks[name]
	if l == nil {
		l = &lock{Name: name}
		t.locks[name] = l
	}
	return l
}

// session returns one of the sessions that were read. One that was not has no row.
func (t *txn) session(id backend.SessionID) *session {
	s := t.sessions[id]
	if s == nil {
		s = &session{id: id}
		t.sessions[id] = s
	}
	return s
}

// sort puts the leases that were read into their order.
func (t *txn) sort() {
	byPlace := func(a, b *lease) int { return cmp.Compare(a.Own.place, b.Own.place) }
	for _, l := range t.locks {
		all := l.All()
		slices.SortFunc(all, byPlace)
		l.Holders, l.Queue = lockstate.Group[ofLock, ofLease]{}, lockstate.Group[ofLock, ofLease]{}
		for _, x := range all {
			l.Add(x)
		}
	}
}

// names returns the names of the locks, sorted, so that nothing depends on chance.
func (t *txn) names() []string { return slices.Sorted(maps.Keys(t.locks)) }

// expire ends what has expired, in all locks. It hands nothing over: what expires at the same
// moment must not be granted.
func (t *txn) expire() {
	for id, s := range t.sessions {
		if s.overdue(t.now) {
			t.kill(s, backend.CauseExpired)
			t.tell(s, backend.Loss{Session: id, Cause: backend.CauseExpired})
		}
	}
	for _, name := range t.names() {
		for _, l := range t.locks[name].All() {
			if l.State == lockstate.Over || !expired(l, t.now) {
				continue
			}
			if l.State == lockstate.Held && l.Timed {
				lockstate.Lose(t.rules(), l, backend.EventExpired, backend.CauseExpired, "")
				continue
			}
			event := backend.EventExpired
			if s := l.Own.session; s != nil && s.cause == string(backend.CauseSession) {
				event = backend.EventReleased
			}
			lockstate.End(t.rules(), l, event, backend.ErrSessionLost, "")
		}
	}
}

// kill ends a session. Its leases end with it.
func (t *txn) kill(s *session, cause backend.Cause) {
	s.cause, s.dirty = string(cause), true
	if s.ends.After(t.now) || !s.known {
		s.ends = t.now
	}
}

// settle grants every lock to the first waiters in its queue that it has room for.
func (t *txn) settle() {
	for _, name := range t.names() {
		l := t.locks[name]
		unread := func(w *lease) bool { return l.Rest > 0 && w.Own.place > l.Own.front } // some that were not read come first
		lockstate.Settle(t.rules(), l, unread)
		if l.Rest > 0 && (len(l.Queue.Leases) == 0 || unread(l.Queue.Leases[0])) {
			t.more = append(t.more, name)
		}
	}
}

// take returns the lease of the request, held or in the queue. Where its place in a long queue has to be
// known, the transaction is repeated.
func (t *txn) take(req *backend.AcquireRequest) (*lease, error) {
	lk := t.lock(req.Name)
	l, err := lockstate.Acquire(t.rules(), lk, req)
	if err != nil {
		if lk.Rest > 0 && lk.Find(req.Lease) != nil {
			t.more = append(t.more, req.Name)
		}
		return nil, err
	}
	if addrs := strings.Fields(l.Own.addr); t.b.addr != "" && !slices.Contains(addrs, t.b.addr) && (l.State == lockstate.Waiting || !l.Own.saved) {
		l.Own.addr, l.Own.dirty = strings.Join(append(addrs, t.b.addr), " "), true
	}
	return l, nil
}

// ceil returns the duration in whole microseconds, the server's unit, rounded up: no lease is
// shorter than its request.
func ceil(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// rules returns the transaction as package lockstate needs it.
func (t *txn) rules() lockstate.Store[ofLock, ofLease] { return rows{t} }

// rows implements lockstate.Store.
type rows struct{ t *txn }

func (r rows) Now() time.Time { return r.t.now }

func (r rows) Token(l *lock) fence.Token { return token(next(l)) }

func (r rows) Queued(l *lease) {
	l.Own.place = next(l.Lock)
	r.t.emit(backend.EventWaiting, l, "")
}

func (r rows) Granted(l *lease) {
	l.Own.place, l.Own.dirty = int64(l.Token), true //nolint:gosec // it counts up from 0
	r.t.emit(backend.EventAcquired, l, "")
	if l.Waited {
		r.t.wake(l, nil)
	}
}

func (r rows) Ended(l *lease, was lockstate.State, event backend.EventKind, err error, reason string) {
	if was == lockstate.Waiting {
		r.t.wake(l, err)
	}
	if l.Own.saved {
		r.t.out.Gone = append(r.t.out.Gone, l.Key())
	}
	r.t.out.cleared = r.t.out.cleared || l.Own.thin
	r.t.emit(event, l, reason)
}

func (r rows) Extend(l *lease) { l.Own.ends, l.Own.dirty = r.t.now.Add(l.TTL), true }

// Lost notifies the session immediately, and with its renewals for one TTL. So a client that lost
// the reply to one renewal learns it from the next one, or has lost the session by then.
func (r rows) Lost(l *lease, cause backend.Cause, reason string) {
	s := l.Own.session
	if !s.alive(r.t.now) {
		return
	}
	x := backend.Loss{Session: s.id, Lease: l.ID, Cause: cause, Reason: reason}
	r.t.out.Losses = append(r.t.out.Losses, LossRow{x, r.t.now.Add(s.ttl)})
	r.t.tell(s, x)
}

func (r rows) Abandon(k Key) {
	r.t.tombs[k], r.t.buried[k], r.t.tombed[k.Name] = struct{}{}, struct{}{}, true
}

func (r rows) Abandoned(k Key) bool {
	_, dead := r.t.buried[k]
	return dead
}

func (r rows) Join(l *lease, id backend.SessionID) bool {
	if id != "" {
		s := r.t.session(id)
		if !s.alive(r.t.now) {
			return false
		}
		l.Own.session = s
	}
	l.Own.dirty = true
	return true
}

func (r rows) Session(l *lease) backend.SessionID { return sessionOf(l) }

func (r rows) Left(l *lease) time.Duration { return leftOf(l, r.t.now) }

// tell reports a loss to the listener, here or in another process.
func (t *txn) tell(s *session, x backend.Loss) {
	t.after = append(t.after, func() { t.b.tellLoss(x) })
	if s.addr != "" && s.addr != t.b.addr {
		t.notificationTo(s.addr).look.Session(s.id)
	}
}

// wake notifies the waiters for the lease that it is held, or why it never will be.
func (t *txn) wake(l *lease, err error) {
	for addr := range strings.FieldsSeq(l.Own.addr) {
		if addr != t.b.addr {
			to := t.notificationTo(addr)
			to.ended = append(to.ended, l)
		}
	}
	t.after = append(t.after, func() { // a caller here may wait for it as well
		for _, w := range t.b.calls.Of(l.Key()) {
			v := waiters.Verdict{Err: lockstate.EndedFor(t.rules(), l, w.Session, err)}
			if err == nil {
				v.Grant, v.Err = lockstate.Answer(t.rules(), l, w.Session, t.asked)
			}
			w.Give(v)
		}
	})
}

func (t *txn) notificationTo(addr string) *notification {
	l := t.notifications[addr]
	if l == nil {
		l = &notification{early: t.early}
		t.notifications[addr] = l
	}
	return l
}

// emit records what happened to a lease, if there are watchers.
func (t *txn) emit(kind backend.EventKind, l *lease, reason string) {
	if !t.watched {
		return
	}
	t.out.Events = append(t.out.Events, lockstate.Event(t.rules(), kind, l, reason))
}

// bound returns how long the lock stays as it is without another request. It is never negative.
func (t *txn) bound(l *lock) time.Duration {
	d := longestRest
	if l.Rest > 0 {
		d = unreadRest
	}
	for _, x := range l.All() {
		d = min(d, boundOf(x, t.now))
	}
	return max(0, d)
}
