package memlock

import (
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// lock is a lock that somebody holds or waits for.
type lock struct {
	name    string
	token   fence.Token // the greatest so far
	holders group       // in the order of their grants
	line    group       // first come first
	changed bool        // it is in Store.changed
}

// group is leases in order, and what each of them takes.
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

// state is where a lease stands.
type state uint8

const (
	waiting state = iota // in line
	held                 // out
	over                 // gone, for good
)

// lease is an acquisition: first, perhaps, in line, then out, then over.
type lease struct {
	deadline // of a timed lease that is out
	id       backend.LeaseID
	lock     *lock
	claim    backend.Claim
	note     string
	timed    bool
	ttl      time.Duration
	// session is the one that the place in line belongs to, and the lease when it is
	// not timed. A timed lease that is out keeps it only to know whom to tell of its
	// loss. Nil: none.
	session *session
	slot    int // in session.leases

	state  state
	asked  time.Time // when it joined the line
	token  fence.Token
	since  time.Time // of the grant
	joined bool      // by re-entry
	// left is closed when the lease leaves the line, and is nil when it never stood
	// there.
	left chan struct{}
	err  error // why it is over
}

// take is the heart of Acquire: the lease is out afterwards, or in line, or there is
// an error and nothing has changed.
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

// takeAgain answers a request that was asked before: C6.
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

// refuse says why a new lease with this claim can neither be out nor in line.
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

// admits reports whether the claim, which stands last in line, may be out now: it
// fits and nobody is before it, or it joins by re-entry, which overtakes.
func (l *lock) admits(c backend.Claim) bool {
	return len(l.line.leases) == 1 && c.Fits(l.holders.claims) || l.joins(c) != nil
}

// joins is the lease that c may join, if any.
func (l *lock) joins(c backend.Claim) *lease {
	for i, h := range l.holders.claims {
		if c.Joins(h) {
			return l.holders.leases[i]
		}
	}
	return nil
}

// grant moves a lease from the line to the holders.
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

// end takes a lease out of everything, for good. What it held is handed over by the
// next settle.
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

// answer is what an Acquire of the lease under that session is told, when the lease
// is not in line.
func (s *Store) answer(l *lease, id backend.SessionID) (backend.Grant, error) {
	switch {
	case l.state != held:
		return backend.Grant{}, l.err
	case !l.timed && l.session.id != id:
		return backend.Grant{}, backend.ErrLost // it will die with the other session
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
