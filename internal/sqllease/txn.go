package sqllease

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
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

	gone   []*lease // rows to be deleted
	tombs  map[Key]struct{}
	losses []LossRow
	events []backend.Event

	more []string // locks whose whole queues have to be read: the transaction is repeated

	letters map[string]*letter // for other backend values, by channel
	after   []func()           // run after the commit
}

func newTxn(b *Leases) *txn {
	return &txn{
		b: b, locks: make(map[string]*lock), sessions: make(map[backend.SessionID]*session),
		buried: make(map[Key]struct{}), tombs: make(map[Key]struct{}), letters: make(map[string]*letter),
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
	byPlace := func(a, b *lease) int { return int(a.Own.place - b.Own.place) }
	for _, l := range t.locks {
		all := l.All()
		slices.SortFunc(all, byPlace)
		l.Holders, l.Line = lockstate.Group[ofLock, ofLease]{}, lockstate.Group[ofLock, ofLease]{}
		for _, x := range all {
			add(x)
		}
	}
}

// add puts a lease behind the others of its lock.
func add(l *lease) {
	if l.State == lockstate.Held {
		l.Lock.Holders.Add(l)
	} else {
		l.Lock.Line.Add(l)
	}
}

// names returns the names of the locks, sorted, so that nothing depends on chance.
func (t *txn) names() []string { return slices.Sorted(maps.Keys(t.locks)) }

// expire ends what has expired, in all locks. It hands nothing over: what expires at the same
// moment must not be granted.
func (t *txn) expire() {
	for _, name := range t.names() {
		for _, l := range t.locks[name].All() {
			if l.State == lockstate.Over || !expired(l, t.now) {
				continue
			}
			if l.State == lockstate.Held && l.Timed {
				t.lose(l, backend.EventExpired, backend.CauseExpired, "")
				continue
			}
			event := backend.EventExpired
			if s := l.Own.session; s != nil && s.known && s.cause == "" {
				t.kill(s, backend.CauseExpired)
				t.tell(s, backend.Loss{Session: s.id, Cause: backend.CauseExpired})
			} else if s != nil && s.cause == string(backend.CauseSession) {
				event = backend.EventReleased
			}
			t.end(l, backend.ErrSessionLost, event, "")
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
		if l.Rest > 0 && (len(l.Line.Leases) == 0 || unread(l.Line.Leases[0])) {
			t.more = append(t.more, name)
		}
	}
}

// take is the heart of Acquire. Afterwards the lease is held, or in the queue, or there is an
// error and nothing has changed.
func (t *txn) take(req *backend.AcquireRequest) (*lease, error) {
	lk := t.lock(req.Name)
	if l := lk.Find(req.Lease); l != nil {
		return t.takeAgain(l, req)
	}
	if _, dead := t.buried[Key{req.Name, req.Lease}]; dead {
		return nil, backend.ErrLost
	}
	l := &lease{ID: req.Lease, Claim: req.Claim(), Note: req.Note, Timed: req.Timed, TTL: ceil(req.TTL), Own: ofLease{addr: t.b.addr, dirty: true}}
	if req.Session != "" {
		if l.Own.session = t.session(req.Session); !l.Own.session.alive(t.now) {
			return nil, backend.ErrSessionLost
		}
	}
	if err := lockstate.Take(t.rules(), lk, l, req.Wait); err != nil {
		return nil, err
	}
	return l, nil
}

// ceil returns the duration in whole microseconds, the server's unit, rounded up: no lease is
// shorter than its request.
func ceil(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// takeAgain answers a repeated request: C6.
func (t *txn) takeAgain(l *lease, req *backend.AcquireRequest) (*lease, error) {
	if l.State == lockstate.Held {
		return l, nil
	}
	if req.Session != "" && sessionOf(l) != req.Session {
		s := t.session(req.Session)
		if !s.alive(t.now) {
			return nil, backend.ErrSessionLost
		}
		l.Own.session, l.Own.dirty = s, true
	}
	if !req.Wait {
		if l.Lock.Rest > 0 { // to know the waiters before it
			t.more = append(t.more, l.Lock.Name)
		}
		return nil, lockstate.HeldError(t.rules(), l)
	}
	if l.Own.addr != t.b.addr {
		l.Own.addr, l.Own.dirty = t.b.addr, true
	}
	return l, nil
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
	if l.Joined {
		l.Own.place = next(l.Lock)
	}
	if l.Timed {
		l.Own.ends = r.t.now.Add(l.TTL)
	}
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
		r.t.gone = append(r.t.gone, l)
	}
	r.t.emit(event, l, reason)
}

func (r rows) Session(l *lease) backend.SessionID { return sessionOf(l) }

func (r rows) Left(l *lease) time.Duration { return leftOf(l, r.t.now) }

// end removes a lease for good. The next settle hands over what it held. Its waiters get err.
func (t *txn) end(l *lease, err error, event backend.EventKind, reason string) {
	lockstate.End(t.rules(), l, event, err, reason)
}

// lose ends a lease that its holder did not release, and notifies its session: immediately, and
// with its renewals for one TTL. So a client that lost the reply to one renewal learns it from
// the next one, or has lost the session by then.
func (t *txn) lose(l *lease, event backend.EventKind, cause backend.Cause, reason string) {
	t.end(l, backend.ErrLost, event, reason)
	s := l.Own.session
	if !s.alive(t.now) {
		return
	}
	x := backend.Loss{Session: s.id, Lease: l.ID, Cause: cause, Reason: reason}
	t.losses = append(t.losses, LossRow{x, t.now.Add(s.ttl)})
	t.tell(s, x)
}

// tell reports a loss to the listener, here or in another process.
func (t *txn) tell(s *session, x backend.Loss) {
	t.after = append(t.after, func() { t.b.tellLoss(x) })
	if s.addr != "" && s.addr != t.b.addr {
		t.letterTo(s.addr).session(s.id)
	}
}

// answer returns the answer to an Acquire, under that session, of a lease that is held.
func (t *txn) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	if !l.Timed && sessionOf(l) != id {
		return backend.Grant{}, backend.ErrLost // it will die with the other session
	}
	g := backend.Grant{Token: l.Token, Asked: t.asked, Since: l.Since, Waited: l.Waited, Joined: l.Joined}
	if l.Timed { // it may have been renewed after the clock was read
		g.Left = min(l.Own.ends.Sub(t.now), l.TTL)
	}
	return g, nil
}

// wake notifies the waiters for the lease that it is held, or why it never will be.
func (t *txn) wake(l *lease, err error) {
	if l.Own.addr != "" && l.Own.addr != t.b.addr {
		t.letterTo(l.Own.addr).lease(l)
	}
	t.after = append(t.after, func() { // a caller here may wait for it as well
		for _, w := range t.b.waitersOf(keyOf(l)) {
			a := verdict{err: err}
			if err == nil {
				a.grant, a.err = t.answer(l, w.session)
			}
			w.give(a)
		}
	})
}

// bury keeps a lease from coming back.
func (t *txn) bury(k Key) {
	t.tombs[k], t.buried[k] = struct{}{}, struct{}{}
}

func (t *txn) letterTo(addr string) *letter {
	l := t.letters[addr]
	if l == nil {
		l = &letter{early: t.early}
		t.letters[addr] = l
	}
	return l
}

// emit records what happened to a lease, if there are watchers.
func (t *txn) emit(kind backend.EventKind, l *lease, reason string) {
	if !t.watched {
		return
	}
	t.events = append(t.events, lockstate.Event(t.rules(), kind, l, reason))
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
