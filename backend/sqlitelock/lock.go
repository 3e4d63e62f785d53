package sqlitelock

import (
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// lock is a lock as one transaction sees it.
type lock struct {
	name    string
	holders group // in the order of their grants
	line    group // first come first
	changed bool  // it is in txn.changed
}

// group is an ordered list of leases, and their claims.
type group struct {
	leases []*lease
	claims []backend.Claim
}

func (g *group) add(l *lease) {
	g.leases = append(g.leases, l)
	g.claims = append(g.claims, l.claim)
}

func (g *group) remove(l *lease) {
	i := slices.Index(g.leases, l)
	g.leases = slices.Delete(g.leases, i, i+1)
	g.claims = slices.Delete(g.claims, i, i+1)
}

func (g *group) find(id backend.LeaseID) *lease {
	for _, l := range g.leases {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (l *lock) find(id backend.LeaseID) *lease {
	if x := l.holders.find(id); x != nil {
		return x
	}
	return l.line.find(id)
}

// state is the state of a lease.
type state uint8

const (
	waiting state = iota // in the queue
	held                 // out
	over                 // ended, for good
)

// lease is a row of the table of leases: an acquisition that is in the queue or held.
type lease struct {
	lock  *lock
	id    backend.LeaseID
	claim backend.Claim
	note  string
	timed bool
	ttl   time.Duration // of a timed lease
	// session is the one that the place in the queue lives under, and also the lease unless it is
	// timed. A held timed lease has it only to know which client to notify of its loss. Empty:
	// none.
	session backend.SessionID
	addr    string // of the backend value that waits for it

	state  state
	place  int64 // in the queue or among the holders; a greater one is later
	asked  int64 // wall time
	waited bool  // it was in the queue
	token  fence.Token
	since  int64   // wall time, of the grant
	ends   instant // of a timed lease that is held
	joined bool    // by re-entry

	saved bool // it has a row
	dirty bool // it is in txn.touched
}

// leaseKey identifies a lease: the same ID with another name is another lease.
type leaseKey struct {
	name string
	id   backend.LeaseID
}

func (l *lease) key() leaseKey { return leaseKey{l.lock.name, l.id} }

// take is the heart of Acquire. Afterwards the lease is held, or in the queue, or there is an
// error and nothing has changed.
func (t *txn) take(req *backend.AcquireRequest) (*lease, error) {
	lk := t.lock(req.Name)
	if l := lk.find(req.Lease); l != nil {
		return t.takeAgain(l, req)
	}
	if _, dead := t.tomb(string(req.Lease), req.Name); dead {
		return nil, backend.ErrLost
	}
	if req.Session != "" && t.session(req.Session) == nil {
		return nil, backend.ErrSessionLost
	}
	claim := req.Claim()
	if err := t.refuse(lk, claim, req.Wait); err != nil {
		return nil, err
	}
	l := &lease{
		lock: lk, id: req.Lease, claim: claim, note: req.Note, timed: req.Timed, ttl: req.TTL,
		session: req.Session, addr: t.b.addr(), asked: t.wall.UnixNano(),
	}
	lk.line.add(l)
	if lk.admits(claim) {
		t.grant(l)
		return l, nil
	}
	l.waited, l.place = true, t.nextPlace()
	t.touch(l)
	t.emit(backend.EventWaiting, l, "")
	return l, nil
}

// takeAgain answers a repeated request: C6.
func (t *txn) takeAgain(l *lease, req *backend.AcquireRequest) (*lease, error) {
	if l.state == held {
		return l, nil
	}
	if req.Session != "" && l.session != req.Session {
		if t.session(req.Session) == nil {
			return nil, backend.ErrSessionLost
		}
		l.session = req.Session
		t.touch(l)
	}
	if !req.Wait {
		return nil, t.heldError(l.lock, slices.Index(l.lock.line.leases, l))
	}
	if l.addr != t.b.addr() {
		l.addr = t.b.addr()
		t.touch(l)
	}
	return l, nil
}

// refuse returns why a new lease with this claim can neither be granted nor queued.
func (t *txn) refuse(l *lock, c backend.Claim, wait bool) error {
	if c.Mode == backend.Shared {
		limit, ok := backend.LimitInForce(l.holders.claims, l.line.claims)
		if ok && limit != c.Limit {
			return &backend.LimitError{Name: l.name, Asked: c.Limit, InForce: limit}
		}
	}
	if wait || l.joins(c) != nil || len(l.line.leases) == 0 && c.Fits(l.holders.claims) {
		return nil
	}
	return t.heldError(l, len(l.line.leases))
}

func (t *txn) heldError(l *lock, ahead int) error {
	out := l.holders.leases
	return backend.NewHeldError(l.name, t.holders(backend.FirstHolders(out)), len(out), ahead)
}

// admits reports whether the claim, which is the last in the queue, may be granted now: it fits
// and is also the first, or it joins by re-entry, which overtakes.
func (l *lock) admits(c backend.Claim) bool {
	return len(l.line.leases) == 1 && c.Fits(l.holders.claims) || l.joins(c) != nil
}

// joins returns the lease that c may join, or nil.
func (l *lock) joins(c backend.Claim) *lease {
	for i, h := range l.holders.claims {
		if c.Joins(h) {
			return l.holders.leases[i]
		}
	}
	return nil
}

// grant moves a lease from the queue to the holders.
func (t *txn) grant(l *lease) {
	l.lock.line.remove(l)
	if h := l.lock.joins(l.claim); h != nil {
		l.token, l.joined = h.token, true
	} else {
		l.token = t.nextToken()
	}
	l.lock.holders.add(l)
	l.state, l.place, l.since = held, t.nextPlace(), t.wall.UnixNano()
	if l.timed {
		l.ends = t.now.add(l.ttl)
		t.ends(l.ends)
		t.dirty = true // the clocks are noted with every timed lease
	}
	t.touch(l)
	t.emit(backend.EventAcquired, l, "")
	if l.waited {
		t.wake(l, nil)
	}
}

// end removes a lease for good. The next settle hands over what it held. Its waiters get err.
func (t *txn) end(l *lease, err error, event backend.EventKind, reason string) {
	was := l.state
	l.state = over
	switch was {
	case waiting:
		l.lock.line.remove(l)
		event = backend.EventLeft
		t.wake(l, err)
	case held:
		l.lock.holders.remove(l)
	case over:
		return
	}
	t.touch(l)
	t.change(l.lock)
	t.emit(event, l, reason)
}

// answer returns the answer to an Acquire, under that session, of a lease that is held.
func (t *txn) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	if !l.timed && l.session != id {
		return backend.Grant{}, backend.ErrLost // it will die with the other session
	}
	if l.timed || t.telling(l.token) {
		t.durable = true
	}
	g := backend.Grant{Token: l.token, Asked: t.asked, Since: time.Unix(0, l.since), Waited: l.waited, Joined: l.joined}
	if l.timed {
		g.Left = time.Duration(l.ends - t.now)
	}
	return g, nil
}

// wake notifies the waiters for the lease that it is held, or why it never will be.
func (t *txn) wake(l *lease, err error) {
	if l.addr != t.b.addr() {
		t.write(l.addr, letter{leases: map[leaseKey]struct{}{l.key(): {}}})
	}
	t.resolve(l, err, false) // a caller here may wait for it as well
}

// resolve answers the waiters of this backend value.
func (t *txn) resolve(l *lease, err error, byTimer bool) {
	outer := t.durable
	defer func() { t.durable = outer }()
	for _, w := range t.b.waitersOf(l.key()) {
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
