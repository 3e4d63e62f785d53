package sqllease

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
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
		l = &lock{name: name}
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
	byPlace := func(a, b *lease) int { return int(a.place - b.place) }
	for _, l := range t.locks {
		all := l.all()
		slices.SortFunc(all, byPlace)
		l.holders, l.line = group{}, group{}
		for _, x := range all {
			if x.state == held {
				l.holders.add(x)
			} else {
				l.line.add(x)
			}
		}
	}
}

// names returns the names of the locks, sorted, so that nothing depends on chance.
func (t *txn) names() []string { return slices.Sorted(maps.Keys(t.locks)) }

// expire ends what has expired, in all locks. It hands nothing over: what expires at the same
// moment must not be granted.
func (t *txn) expire() {
	for _, name := range t.names() {
		for _, l := range t.locks[name].all() {
			if l.state == over || !l.over(t.now) {
				continue
			}
			if l.state == held && l.timed {
				t.lose(l, backend.EventExpired, backend.CauseExpired, "")
				continue
			}
			event := backend.EventExpired
			if s := l.session; s != nil && s.known && s.cause == "" {
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
		for range backend.Admit(l.holders.claims, l.line.claims) {
			if l.rest > 0 && l.line.leases[0].place > l.front {
				break // some that were not read come first
			}
			t.grant(l.line.leases[0])
		}
		if l.rest > 0 && (len(l.line.leases) == 0 || l.line.leases[0].place > l.front) {
			t.more = append(t.more, name)
		}
	}
}

// take is the heart of Acquire. Afterwards the lease is held, or in the queue, or there is an
// error and nothing has changed.
func (t *txn) take(req *backend.AcquireRequest) (*lease, error) {
	lk := t.lock(req.Name)
	if l := lk.find(req.Lease); l != nil {
		return t.takeAgain(l, req)
	}
	if _, dead := t.buried[Key{req.Name, req.Lease}]; dead {
		return nil, backend.ErrLost
	}
	var s *session
	if req.Session != "" {
		if s = t.session(req.Session); !s.alive(t.now) {
			return nil, backend.ErrSessionLost
		}
	}
	claim := req.Claim()
	if err := t.refuse(lk, claim, req.Wait); err != nil {
		return nil, err
	}
	l := &lease{
		lock: lk, id: req.Lease, claim: claim, note: req.Note, timed: req.Timed, ttl: ceil(req.TTL),
		session: s, addr: t.b.addr, asked: t.now, dirty: true,
	}
	lk.line.add(l)
	if lk.admits(claim) {
		t.grant(l)
		return l, nil
	}
	l.waited, l.place = true, lk.next()
	t.emit(backend.EventWaiting, l, "")
	return l, nil
}

// ceil returns the duration in whole microseconds, the server's unit, rounded up: no lease is
// shorter than its request.
func ceil(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// takeAgain answers a repeated request: C6.
func (t *txn) takeAgain(l *lease, req *backend.AcquireRequest) (*lease, error) {
	if l.state == held {
		return l, nil
	}
	if req.Session != "" && l.sessionID() != req.Session {
		s := t.session(req.Session)
		if !s.alive(t.now) {
			return nil, backend.ErrSessionLost
		}
		l.session, l.dirty = s, true
	}
	if !req.Wait {
		if l.lock.rest > 0 { // to know the waiters before it
			t.more = append(t.more, l.lock.name)
		}
		return nil, t.heldError(l.lock, slices.Index(l.lock.line.leases, l))
	}
	if l.addr != t.b.addr {
		l.addr, l.dirty = t.b.addr, true
	}
	return l, nil
}

// refuse returns why a new lease with this claim can neither be granted nor queued.
func (t *txn) refuse(l *lock, c backend.Claim, wait bool) error {
	if c.Mode == backend.Shared {
		limit, ok := l.limit()
		if ok && limit != c.Limit {
			return &backend.LimitError{Name: l.name, Asked: c.Limit, InForce: limit}
		}
	}
	if wait || l.joins(c) != nil || l.waiting() == 0 && c.Fits(l.holders.claims) {
		return nil
	}
	return t.heldError(l, l.waiting())
}

func (t *txn) heldError(l *lock, ahead int) error {
	out := l.holders.leases
	return backend.NewHeldError(l.name, t.holders(backend.FirstHolders(out)), len(out), ahead)
}

// grant moves a lease from the queue to the holders.
func (t *txn) grant(l *lease) {
	l.lock.line.remove(l)
	l.place = l.lock.next()
	if h := l.lock.joins(l.claim); h != nil {
		l.token, l.joined = h.token, true
	} else {
		l.token = l.place
	}
	l.lock.holders.add(l)
	l.state, l.since, l.dirty = held, t.now, true
	if l.timed {
		l.ends = t.now.Add(l.ttl)
	}
	t.emit(backend.EventAcquired, l, "")
	if l.waited {
		t.wake(l, nil)
	}
}

// end removes a lease for good. The next settle hands over what it held. Its waiters get err.
func (t *txn) end(l *lease, err error, event backend.EventKind, reason string) {
	switch l.state {
	case waiting:
		l.lock.line.remove(l)
		event = backend.EventLeft
		t.wake(l, err)
	case held:
		l.lock.holders.remove(l)
	case over:
		return
	}
	l.state = over
	if l.saved {
		t.gone = append(t.gone, l)
	}
	t.emit(event, l, reason)
}

// lose ends a lease that its holder did not release, and notifies its session: immediately, and
// with its renewals for one TTL. So a client that lost the reply to one renewal learns it from
// the next one, or has lost the session by then.
func (t *txn) lose(l *lease, event backend.EventKind, cause backend.Cause, reason string) {
	t.end(l, backend.ErrLost, event, reason)
	s := l.session
	if !s.alive(t.now) {
		return
	}
	x := backend.Loss{Session: s.id, Lease: l.id, Cause: cause, Reason: reason}
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
	if !l.timed && l.sessionID() != id {
		return backend.Grant{}, backend.ErrLost // it will die with the other session
	}
	g := backend.Grant{Token: l.fencing(), Asked: t.asked, Since: l.since, Waited: l.waited, Joined: l.joined}
	if l.timed { // it may have been renewed after the clock was read
		g.Left = min(l.ends.Sub(t.now), l.ttl)
	}
	return g, nil
}

// wake notifies the waiters for the lease that it is held, or why it never will be.
func (t *txn) wake(l *lease, err error) {
	if l.addr != "" && l.addr != t.b.addr {
		t.letterTo(l.addr).lease(l)
	}
	t.after = append(t.after, func() { // a caller here may wait for it as well
		for _, w := range t.b.waitersOf(l.key()) {
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
	e := backend.Event{
		Kind: kind, Name: l.lock.name, Lease: l.id, Owner: l.claim.Owner, Mode: l.claim.Mode,
		Reason: reason, At: t.now,
	}
	if kind != backend.EventWaiting && kind != backend.EventLeft {
		e.Token = l.fencing()
	}
	t.events = append(t.events, e)
}

// bound returns how long the lock stays as it is without another request. It is never negative.
func (t *txn) bound(l *lock) time.Duration {
	d := longestRest
	if l.rest > 0 {
		d = unreadRest
	}
	for _, x := range l.all() {
		d = min(d, x.bound(t.now))
	}
	return max(0, d)
}

func (t *txn) info(l *lock) backend.LockInfo {
	limit, _ := backend.LimitInForce(l.holders.claims, l.line.claims)
	info := backend.LockInfo{Name: l.name, Holders: t.holders(l.holders.leases)}
	for _, h := range l.holders.leases {
		if h.claim.Mode == backend.Exclusive {
			limit = 1
		}
		info.Token = max(info.Token, h.fencing())
	}
	info.Limit = limit
	for _, w := range l.line.leases {
		info.Waiters = append(info.Waiters, backend.Waiter{
			Lease: w.id, Session: w.sessionID(), Owner: w.claim.Owner, Note: w.note,
			Mode: w.claim.Mode, Permits: w.claim.Permits, Since: w.asked,
		})
	}
	return info
}

func (t *txn) holders(leases []*lease) []backend.Holder {
	var holders []backend.Holder
	for _, h := range leases {
		x := backend.Holder{
			Lease: h.id, Owner: h.claim.Owner, Note: h.note, Mode: h.claim.Mode, Permits: h.claim.Permits,
			Token: h.fencing(), Since: h.since, Left: h.left(t.now),
		}
		if !h.timed {
			x.Session = h.sessionID()
		}
		holders = append(holders, x)
	}
	return holders
}
