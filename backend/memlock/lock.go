package memlock

import (
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// lock is a lock that is held or waited for.
type lock struct {
	name    string
	token   fence.Token // the greatest so far
	holders group       // in the order of their grants
	line    group       // in order of arrival
	changed bool        // it is in Store.changed
}

// group is a list of leases in order, with the claim of each.
type group struct {
	leases []*lease
	claims []backend.Claim
}

func (g *group) empty() bool { return len(g.leases) == 0 }

func (g *group) add(l *lease) {
	g.leases = append(g.leases, l)
	g.claims = append(g.claims, l.claim)
}

func (g *group) remove(l *lease) {
	i := slices.Index(g.leases, l)
	g.leases = slices.Delete(g.leases, i, i+1)
	g.claims = slices.Delete(g.claims, i, i+1)
}

// state is the stage that a lease has reached.
type state uint8

const (
	waiting state = iota // queued
	held                 // granted
	over                 // ended, for good
)

// lease is an acquisition: first perhaps queued, then granted, then ended.
type lease struct {
	deadline // of a timed lease that is held
	id       backend.LeaseID
	lock     *lock
	claim    backend.Claim
	note     string
	timed    bool
	ttl      time.Duration
	// session is the session that the place in the queue belongs to, and that a lease belongs
	// to unless it is timed. A timed lease that is held keeps it only to report its loss
	// there. Nil: none.
	session *session
	slot    int // in session.leases

	state  state
	asked  time.Time // when it joined the queue
	token  fence.Token
	since  time.Time // of the grant
	joined bool      // by re-entry
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
	claim := req.Claim()
	if l, ok := s.locks[req.Name]; ok {
		if err := s.refuse(l, claim, req.Wait); err != nil {
			return nil, err
		}
	}
	l := &lease{
		id: req.Lease, lock: s.lock(req.Name), claim: claim, note: req.Note,
		timed: req.Timed, ttl: req.TTL, session: sess, asked: s.wall(),
	}
	s.leases[key] = l
	if sess != nil {
		sess.add(l)
	}
	l.lock.line.add(l)
	if l.lock.admits(claim) {
		s.grant(l)
		return l, nil
	}
	l.left = make(chan struct{})
	s.emit(backend.EventWaiting, l, "")
	return l, nil
}

// takeAgain answers a repeated request: C6.
func (s *Store) takeAgain(l *lease, req *backend.AcquireRequest) (*lease, error) {
	if l.state == held {
		return l, nil
	}
	if l.session.id != req.Session {
		sess, err := s.liveSession(req.Session)
		if err != nil {
			return nil, err
		}
		if sess != nil {
			l.session.remove(l)
			l.session = sess
			sess.add(l)
		}
	}
	if !req.Wait {
		return nil, s.heldError(l.lock, slices.Index(l.lock.line.leases, l))
	}
	return l, nil
}

// refuse returns the reason why a new lease with this claim can neither be granted nor
// queued.
func (s *Store) refuse(l *lock, c backend.Claim, wait bool) error {
	if c.Mode == backend.Shared {
		limit, ok := backend.LimitInForce(l.holders.claims, l.line.claims)
		if ok && limit != c.Limit {
			return &backend.LimitError{Name: l.name, Asked: c.Limit, InForce: limit}
		}
	}
	if wait || l.joins(c) != nil || l.line.empty() && c.Fits(l.holders.claims) {
		return nil
	}
	return s.heldError(l, len(l.line.leases))
}

func (s *Store) heldError(l *lock, ahead int) error {
	out := l.holders.leases
	return backend.NewHeldError(l.name, s.holders(backend.FirstHolders(out)), len(out), ahead)
}

// admits reports whether the claim, which is last in the queue, may be granted now: it fits
// and no waiter is ahead of it, or it joins by re-entry, which overtakes.
func (l *lock) admits(c backend.Claim) bool {
	return len(l.line.leases) == 1 && c.Fits(l.holders.claims) || l.joins(c) != nil
}

// joins returns the lease that c may join, if any.
func (l *lock) joins(c backend.Claim) *lease {
	for i, h := range l.holders.claims {
		if c.Joins(h) {
			return l.holders.leases[i]
		}
	}
	return nil
}

// grant moves a lease from the queue to the holders.
func (s *Store) grant(l *lease) {
	l.lock.line.remove(l)
	if h := l.lock.joins(l.claim); h != nil {
		l.token, l.joined = h.token, true
	} else {
		l.token = s.nextToken()
	}
	l.lock.token = l.token
	l.lock.holders.add(l)
	l.state, l.since = held, s.wall()
	if l.timed {
		if l.session != nil {
			l.session.remove(l)
		}
		l.ofLease = l
		s.schedule(&l.deadline, s.now+instant(l.ttl))
	}
	if l.left != nil {
		close(l.left)
	}
	s.emit(backend.EventAcquired, l, "")
}

// end removes a lease everywhere, for good. The next settle hands over what it held.
func (s *Store) end(l *lease, err error, event backend.EventKind, reason string) {
	was := l.state
	switch was {
	case waiting:
		l.lock.line.remove(l)
		close(l.left)
		event = backend.EventLeft
	case held:
		l.lock.holders.remove(l)
		s.unschedule(&l.deadline)
	case over:
		return
	}
	l.state, l.err = over, err
	if l.session != nil && (was == waiting || !l.timed) {
		l.session.remove(l)
	}
	delete(s.leases, leaseKey{l.lock.name, l.id})
	s.touch(l.lock)
	s.emit(event, l, reason)
}

// answer returns the result of an Acquire of the lease under that session, when the lease is
// not queued.
func (s *Store) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	switch {
	case l.state != held:
		return backend.Grant{}, l.err
	case !l.timed && l.session.id != id:
		return backend.Grant{}, backend.ErrLost // it ends with the other session
	}
	g := backend.Grant{
		Token: l.token, Asked: s.epoch.Add(time.Duration(s.now)), Since: l.since,
		Waited: l.left != nil, Joined: l.joined,
	}
	if l.timed {
		g.Left = time.Duration(l.ends - s.now)
	}
	return g, nil
}
