package consullock

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

const (
	opOpen    = "open session"
	opEnd     = "end session"
	opRenew   = "renew"
	opAcquire = "acquire"
	opRelease = "release"
	opInspect = "inspect"
	opList    = "list"
	opBreak   = "break"

	// rememberDead is how long the ID of a session that has ended, and a lease that was abandoned,
	// are remembered here: no request for them arrives later than that.
	rememberDead = 10 * time.Minute
	// closePatience bounds how long the end of a session waits for Consul.
	closePatience = time.Second
	// leastDelay is the least lock-delay that the client library can request: tokens serve its
	// purpose.
	leastDelay = time.Millisecond
	// renewParts is the part of its TTL, as a divisor, that a renewal of a session may take at most
	// to check for breaks.
	renewParts = 6
	// longPoll is about how long Consul keeps a query open that waits for a change.
	longPoll = 5 * time.Minute
)

// session is a session of the contract and the session of Consul that it is tied to.
type session struct {
	b    *Backend
	id   backend.SessionID
	ttl  time.Duration
	lost func(backend.Loss) // may be nil

	opened chan struct{}      // closed when it was opened, or could not be
	err    error              // why it could not be opened; read after opened is closed
	uuid   string             // Consul's name for it; read after opened is closed
	life   context.Context    //nolint:containedctx // it is what the end of the session ends
	end    context.CancelFunc // ends life: the session has ended

	// guarded by Backend.mu
	deadline time.Time // when it ends unless it is renewed
	ended    bool
	leases   map[leaseKey]*own
	out      map[leaseKey]struct{}    // what was granted and not released
	losses   []backend.Loss           // since the last renewal
	told     map[backend.LeaseID]bool // leases whose loss was reported: they are never granted again
	inbox    seqlock.Inbox
	renewed  chan struct{} // capacity 1, never closed: the deadline moved
}

type leaseKey struct {
	name string
	id   backend.LeaseID
}

// own is what is known here of a lease of the session that is waited for or abandoned.
type own struct {
	waiters   int
	abandoned bool
	at        time.Time     // when it was abandoned
	gone      chan struct{} // closed when it was released, abandoned or reported as lost here
}

// OpenSession makes a session or confirms it. Errors: *InvalidError, also for a TTL other than the
// one it was opened with; ErrSessionLost; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := req.Validate(b.caps); err != nil {
		return err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
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

// enter returns the session of the request, and whether it is new: then the caller has to open it.
func (b *Backend) enter(req backend.SessionRequest) (*session, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, false, backend.ErrClosed
	}
	maps.DeleteFunc(b.dead, func(_ backend.SessionID, g *grave) bool {
		return time.Since(g.at) > rememberDead && (g.uuid == "" || g.isOver())
	})
	if _, dead := b.dead[req.ID]; dead {
		return nil, false, backend.ErrSessionLost
	}
	if s, ok := b.sessions[req.ID]; ok {
		return s, false, nil
	}
	s := &session{
		b: b, id: req.ID, ttl: req.TTL, lost: req.Lost, opened: make(chan struct{}),
		leases: make(map[leaseKey]*own), out: make(map[leaseKey]struct{}), told: make(map[backend.LeaseID]bool),
		renewed: make(chan struct{}, 1),
	}
	s.life, s.end = context.WithCancel(b.base)
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
	if !ok || !s.isOpen() || s.ended {
		return nil, backend.ErrSessionLost
	}
	return s, nil
}

func (s *session) isOpen() bool {
	select {
	case <-s.opened:
		return s.err == nil
	default:
		return false
	}
}

// open opens the session. A failed attempt leaves at most a session of Consul, which has no leases
// and ends by itself.
func (s *session) open(ctx context.Context) {
	defer close(s.opened)
	err := s.create(ctx)
	if err == nil {
		s.b.work.Go(s.keep)
		s.b.listen(s)
		return
	}
	s.err = s.b.fail(ctx, opOpen, err, true)
	s.end()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.sessions != nil {
		delete(s.b.sessions, s.id)
	}
}

func (s *session) create(ctx context.Context) error {
	uuid, err := s.b.create(ctx, s.ttl)
	if err != nil {
		return err
	}
	received := time.Now()
	s.uuid = uuid
	_, err = s.b.txn(ctx, api.KVTxnOps{{Verb: api.KVLock, Key: s.b.noticeKey(uuid), Session: uuid}})
	if err != nil {
		s.b.background(func() { s.b.layFor(&grave{at: received, ttl: s.ttl, uuid: uuid}) })
		return err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.deadline = received.Add(s.ttl)
	return nil
}

// renew makes the session live for its TTL from now on.
func (s *session) renew(ctx context.Context) error {
	s.b.mu.Lock()
	late := s.ended || time.Now().After(s.deadline)
	s.b.mu.Unlock()
	if late {
		return backend.ErrSessionLost
	}
	asking, answered := answering(ctx)
	entry, _, err := s.b.client.Session().Renew(s.uuid, (&api.WriteOptions{}).WithContext(asking))
	answered()
	if err == nil && entry == nil {
		err = s.confirmGone(ctx)
	}
	if err != nil {
		return s.b.fail(ctx, opRenew, err, false)
	}
	if err := s.extend(); err != nil {
		return err
	}
	// Breaks are pushed; but the connection for that may be dead.
	ctx, cancel := context.WithTimeout(ctx, s.ttl/renewParts)
	defer cancel()
	if _, err := s.read(ctx, 0); errors.Is(err, backend.ErrSessionLost) {
		return err
	}
	s.missGone(ctx)
	return nil // the renewal itself was answered
}

// extend records that Consul has renewed the session.
func (s *session) extend() error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
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

// confirmGone checks whether the session is gone, after an answer by a leader that may have been
// too new to know it. ErrSessionLost: it is.
func (s *session) confirmGone(ctx context.Context) error {
	ctx, cancel := answering(ctx)
	defer cancel()
	entry, _, err := s.b.client.Session().Info(s.uuid, consistent(ctx))
	switch {
	case err != nil:
		return err
	case entry != nil:
		return errors.New("the leader did not have the session yet")
	}
	s.expire(backend.CauseGone)
	return backend.ErrSessionLost
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
	b.mu.Lock()
	defer b.mu.Unlock()
	res := backend.RenewResult{Lost: s.losses}
	s.losses = nil
	return res, nil
}

// keep ends the session when it was not renewed for its TTL. Consul itself would take twice that.
func (s *session) keep() {
	end := time.NewTimer(s.left())
	defer end.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.renewed:
			end.Reset(s.left())
		case <-end.C:
			left := s.left()
			if left <= 0 {
				s.expire(backend.CauseExpired)
				return
			}
			end.Reset(left)
		}
	}
}

func (s *session) left() time.Duration {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return time.Until(s.deadline)
}
