package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
)

// rememberDead is how long the ID of a session that has ended is remembered here. No request under
// it arrives later than that.
const rememberDead = 10 * time.Minute

// session is a session of the contract and the ZooKeeper session that it is tied to.
type session struct {
	b       *Backend
	id      backend.SessionID
	ttl     time.Duration
	lost    func(backend.Loss) // may be nil
	link    *link
	batcher batcher

	opened chan struct{} // closed when it was opened, or could not be
	err    error         // why it could not be opened; read after opened is closed
	over   chan struct{} // closed when the session has ended
	grave  *grave

	mu        sync.Mutex // guards the fields below
	deadline  time.Time  // when it ends unless it is renewed; by the local clock
	contact   contact
	ended     bool
	leases    map[leaseKey]*own
	abandoned []leaseKey               // in the order in which they were abandoned
	entries   map[spot]*own            // of exclusive leases
	losses    []backend.Loss           // since the last renewal
	checks    []leaseKey               // held leases whose entries have yet to be checked in this round
	told      map[backend.LeaseID]bool // leases whose loss was reported: they are never granted again
	renewed   chan struct{}            // capacity 1, never closed: the deadline moved
}

type leaseKey struct {
	name string
	id   backend.LeaseID
}

// own is what is known here of a lease of the session.
type own struct {
	// turn has capacity 1: the caller that has put a value in looks for the entry, and makes it. A
	// lease never has more than one create under way.
	turn      chan struct{}
	callers   int           // that request it
	path      string        // of its entry; empty: not known
	unsure    bool          // there may be an entry that is not known
	abandoned bool          // it must never be granted
	at        time.Time     // when it was abandoned
	held      bool          // it was granted
	gone      chan struct{} // closed when it was released, abandoned or lost: callers that wait for it stop

	// For hand-overs within the session: see follow.
	alone bool          // it is exclusive and holds the lock
	next  *own          // the lease right behind it that waits for its end; exclusive
	moved chan struct{} // closed when the one before has ended; nil: no caller waits
}

func newOwn() *own { return &own{turn: make(chan struct{}, 1), gone: make(chan struct{})} }

// OpenSession makes a session or confirms it. Errors: *InvalidError, also for a TTL that the
// ensemble does not give, or that differs from the one it was opened with; ErrSessionLost;
// *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := req.Validate(b.caps); err != nil {
		return err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	s, mine, err := b.enter(req)
	if err != nil {
		return err
	}
	if mine {
		s.open(ctx)
		return s.err
	}
	select {
	case <-s.opened:
	case <-ctx.Done():
		return b.fail(ctx, opOpen, context.Cause(ctx), true)
	}
	switch {
	case s.err != nil:
		return s.err
	case s.ttl != req.TTL:
		return &backend.InvalidError{Field: "ttl", Value: req.TTL.String(), Bound: s.ttl.String() + ", as it was opened"}
	}
	return s.renew(ctx)
}

const (
	opOpen    = "open session"
	opEnd     = "end session"
	opRenew   = "renew"
	opAcquire = "acquire"
	opRelease = "release"
	opInspect = "inspect"
	opList    = "list"
	opBreak   = "break"
)

// enter returns the session of the request, and whether it is new: then the caller has to open it.
func (b *Backend) enter(req backend.SessionRequest) (*session, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, false, backend.ErrClosed
	}
	for id, g := range b.dead {
		if time.Since(g.at) > rememberDead {
			delete(b.dead, id)
		}
	}
	if _, dead := b.dead[req.ID]; dead {
		return nil, false, backend.ErrSessionLost
	}
	if s, ok := b.sessions[req.ID]; ok {
		return s, false, nil
	}
	s := &session{
		b: b, id: req.ID, ttl: req.TTL, lost: req.Lost, opened: make(chan struct{}), over: make(chan struct{}), grave: &grave{closed: make(chan struct{})},
		leases: make(map[leaseKey]*own), entries: make(map[spot]*own), told: make(map[backend.LeaseID]bool), renewed: make(chan struct{}, 1),
	}
	b.sessions[req.ID] = s
	return s, true, nil
}

// session returns a session that is alive.
func (b *Backend) session(id backend.SessionID) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, backend.ErrClosed
	}
	s, ok := b.sessions[id]
	if !ok || !isClosed(s.opened) || s.err != nil || isClosed(s.over) {
		return nil, backend.ErrSessionLost
	}
	return s, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// open opens the session. A failed attempt leaves nothing: the session may be opened again.
func (s *session) open(ctx context.Context) {
	defer close(s.opened)
	err := s.connect(ctx)
	if err == nil {
		s.b.work.Go(s.keep)
		s.b.work.Go(s.hear)
		return
	}
	s.err = s.b.fail(ctx, opOpen, err, true)
	if errors.Is(s.err, backend.ErrSessionLost) { // it was lost while it was opened
		s.err = &backend.UnavailableError{Backend: name, Op: opOpen, MayHold: true, Err: err}
	}
	s.b.mu.Lock()
	if s.b.sessions != nil {
		delete(s.b.sessions, s.id)
	}
	s.b.mu.Unlock()
	if s.link != nil {
		s.b.work.Go(func() { s.link.close() })
	}
}

func (s *session) connect(ctx context.Context) error {
	asked := (s.ttl + s.b.cfg.margin() + time.Millisecond - 1).Truncate(time.Millisecond) // in whole milliseconds, ZooKeeper's unit
	l, err := newLink(&s.b.cfg, asked, true)
	if err != nil {
		return err
	}
	s.link, s.batcher.link = l, l
	if err := l.await(ctx); err != nil {
		return &unsent{err}
	}
	if given := time.Duration(l.given.Load()); given < asked {
		return &backend.InvalidError{
			Field: "ttl", Value: s.ttl.String(),
			Bound: "at most " + max(0, given-s.b.cfg.margin()).String() + ", as the ensemble gives no longer sessions",
		}
	}
	if err := s.b.makeNodes(ctx, l); err != nil {
		return err
	}
	if err := s.enroll(ctx); err != nil {
		return err
	}
	now := time.Now()
	s.deadline = now.Add(s.ttl)
	s.contact = contact{answered: now, since: now.Add(-s.b.cfg.Tick)} // the leader itself has made it
	return nil
}

// enroll makes the nodes of the session. Those of an attempt that was given up may exist: its
// ZooKeeper session is another one, and has no leases.
func (s *session) enroll(ctx context.Context) error {
	paths := []string{s.b.sessionPath(s.id), s.b.noticePath(s.id)}
	acl := s.b.cfg.acl()
	create := func(before ...any) error {
		_, err := call(ctx, s.link, func() ([]zk.MultiResponse, error) {
			return s.link.conn.Multi(append(before,
				&zk.CreateRequest{Path: paths[0], Acl: acl, Flags: zk.FlagEphemeral},
				&zk.CreateRequest{Path: paths[1], Acl: acl, Flags: zk.FlagEphemeral})...)
		})
		return err
	}
	err := create()
	if !errors.Is(err, zk.ErrNodeExists) {
		return err
	}
	// In one transaction: if another backend value has the session, it must not miss its nodes.
	err = create(&zk.DeleteRequest{Path: paths[0], Version: -1}, &zk.DeleteRequest{Path: paths[1], Version: -1})
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for _, p := range paths {
		if _, err := call(ctx, s.link, func() (struct{}, error) { return struct{}{}, s.link.conn.Delete(p, -1) }); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return create()
}

// renew makes the session live for its TTL from now on. It is a write, so that the leader has seen
// it: a server that has lost its leader still answers reads for a while.
func (s *session) renew(ctx context.Context) error {
	s.mu.Lock()
	late := s.ended || time.Now().After(s.deadline)
	s.mu.Unlock()
	if late {
		return backend.ErrSessionLost
	}
	for steady := false; !steady; {
		err := s.settled(ctx)
		sent := time.Now()
		var stat *zk.Stat
		if err == nil {
			stat, err = call(ctx, s.link, func() (*zk.Stat, error) { return s.link.conn.Set(s.b.sessionPath(s.id), nil, -1) })
		}
		if errors.Is(err, zk.ErrNoNode) {
			s.expire(backend.CauseGone)
			return backend.ErrSessionLost
		}
		if err != nil {
			return s.b.fail(ctx, opRenew, err, false)
		}
		s.b.sawClock(stat)
		steady = s.heard(sent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return backend.ErrSessionLost
	}
	s.deadline = time.Now().Add(s.ttl)
	select {
	case s.renewed <- struct{}{}:
	default:
	}
	return nil
}

// Renew extends a session. The result reports what became of it. Errors: ErrUnsupported for timed
// leases; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.RenewResult{}, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return backend.RenewResult{}, context.Cause(ctx)
	}
	if req.Session == "" {
		return backend.RenewResult{}, nil
	}
	s, err := b.session(req.Session)
	if err == nil {
		err = s.renew(ctx)
	}
	switch {
	case errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err):
		return backend.RenewResult{SessionLost: true}, nil
	case err != nil:
		return backend.RenewResult{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	res := backend.RenewResult{Lost: s.losses}
	s.losses = nil
	s.b.work.Go(s.checkSome)
	return res, nil
}

// beatsAtOnce is how many beats may be unanswered: a slow ensemble answers as steadily as any
// other, only later.
const beatsAtOnce = 8

// keep ends the session when it was not renewed for its TTL, and sends the ensemble a sign of life
// every half tick until then: see Config.margin. Any request is one, so it checks a lease.
func (s *session) keep() {
	beat := time.NewTicker(s.b.cfg.Tick / 2)
	defer beat.Stop()
	end := time.NewTimer(s.left())
	defer end.Stop()
	var beats sync.WaitGroup
	defer beats.Wait()
	busy := make(chan struct{}, beatsAtOnce)
	for {
		select {
		case <-s.over:
			return
		case <-s.link.over: // the ensemble has reported that it expired, or the backend is closed
			s.expire(backend.CauseExpired)
			return
		case <-s.renewed:
			end.Reset(s.left())
		case <-end.C:
			if left := s.left(); left > 0 {
				end.Reset(left)
				continue
			}
			s.expire(backend.CauseExpired)
			return
		case <-beat.C:
			select {
			case busy <- struct{}{}:
				beats.Go(func() {
					defer func() { <-busy }()
					if s.beat() == nil {
						s.heard(time.Now())
					}
				})
			default: // they are not answered
			}
		}
	}
}

func (s *session) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.deadline)
}
