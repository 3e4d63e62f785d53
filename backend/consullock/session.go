package consullock

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
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

	// rememberDead is how long the ID of a session that has ended is known here, and a
	// lease that was abandoned: a request that is late is not later than that.
	rememberDead = 10 * time.Minute
	// closePatience bounds how long the end of a session waits for Consul.
	closePatience = time.Second
	// longPoll is how long Consul keeps a question that waits for a change, about.
	longPoll = 5 * time.Minute
)

// session is a session of the contract and the session of Consul that it is tied to.
type session struct {
	b    *Backend
	id   backend.SessionID
	ttl  time.Duration
	lost func(backend.Loss) // may be nil

	opened chan struct{}      // closed when it was opened, or could not be
	err    error              // why it could not; read after opened
	uuid   string             // Consul's name for it; read after opened
	life   context.Context    //nolint:containedctx // it is what the end of the session ends
	end    context.CancelFunc // ends life: the session is over

	// guarded by Backend.mu
	deadline time.Time // when it ends unless it is renewed
	ended    bool
	leases   map[leaseKey]*own
	losses   []backend.Loss // since the last renewal
	renewed  chan struct{}  // capacity 1, never closed: the deadline moved
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
	gone      chan struct{} // closed when it was released or abandoned here
}

// OpenSession makes a session or confirms it. Errors: *InvalidError, also for another TTL
// than it was opened with; ErrSessionLost; *UnavailableError; ErrClosed; ctx's cause.
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
		return fail(ctx, opOpen, context.Cause(ctx), true)
	}
	switch {
	case s.err != nil:
		return s.err
	case s.ttl != req.TTL:
		return &backend.InvalidError{Field: "ttl", Value: req.TTL.String(), Bound: s.ttl.String() + ", as it was opened"}
	}
	return s.renew(ctx)
}

// enter gives the session of the request, and whether it is new: then the caller has to
// open it.
func (b *Backend) enter(req backend.SessionRequest) (*session, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, false, backend.ErrClosed
	}
	for id, at := range b.dead {
		if time.Since(at) > rememberDead {
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
		b: b, id: req.ID, ttl: req.TTL, lost: req.Lost, opened: make(chan struct{}),
		leases: make(map[leaseKey]*own), renewed: make(chan struct{}, 1),
	}
	s.life, s.end = context.WithCancel(b.base)
	b.sessions[req.ID] = s
	return s, true, nil
}

// session gives a session that lives.
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

// open opens the session. What failed leaves a session of Consul at most, which has no
// leases and ends by itself.
func (s *session) open(ctx context.Context) {
	defer close(s.opened)
	err := s.create(ctx)
	if err == nil {
		s.b.work.Go(s.keep)
		s.b.work.Go(s.hear)
		return
	}
	s.err = fail(ctx, opOpen, err, true)
	s.end()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.sessions != nil {
		delete(s.b.sessions, s.id)
	}
}

func (s *session) create(ctx context.Context) error {
	uuid, _, err := s.b.client.Session().CreateNoChecks(&api.SessionEntry{
		Name: s.b.cfg.Prefix, TTL: s.ttl.String(), Behavior: api.SessionBehaviorDelete,
	}, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	received := time.Now()
	s.uuid = uuid
	_, err = s.b.txn(ctx, api.KVTxnOps{{Verb: api.KVLock, Key: s.b.noticeKey(uuid), Session: uuid}})
	if err != nil {
		s.b.work.Go(func() { s.destroy(context.Background()) })
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
	entry, _, err := s.b.client.Session().Renew(s.uuid, (&api.WriteOptions{}).WithContext(ctx))
	if err == nil && entry == nil {
		s.expire(backend.CauseGone)
		return backend.ErrSessionLost
	}
	if err != nil {
		return fail(ctx, opRenew, err, false)
	}
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

// Renew extends a session. Errors: ErrUnsupported for timed leases; *InvalidError;
// *UnavailableError; ErrClosed; ctx's cause. What became of it is in the result.
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
	case errors.Is(err, backend.ErrSessionLost):
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

// EndSession gives back all that lives with the session, in one request. A session that
// is gone is success. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s, err := b.bury(id)
	if s == nil {
		return err
	}
	select {
	case <-s.opened:
	case <-ctx.Done():
		return fail(ctx, opEnd, context.Cause(ctx), true)
	}
	s.finish()
	if s.uuid == "" {
		return nil
	}
	_, err = b.client.Session().Destroy(s.uuid, (&api.WriteOptions{}).WithContext(ctx))
	return fail(ctx, opEnd, err, true)
}

// bury notes that no session of the ID may be opened any more, and gives the one that
// was; nil: there was none.
func (b *Backend) bury(id backend.SessionID) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, backend.ErrClosed
	}
	b.dead[id] = time.Now()
	return b.sessions[id], nil
}

// close ends the session, and waits for a moment until Consul has heard of it.
func (s *session) close(ctx context.Context) {
	<-s.opened
	s.finish()
	s.destroy(ctx)
}

func (s *session) destroy(ctx context.Context) {
	if s.uuid == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	if _, err := s.b.client.Session().Destroy(s.uuid, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		s.b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a session is left to its end", slog.String("error", err.Error()))
	}
}

// expire ends the session because its time is over, or Consul says so.
func (s *session) expire(cause backend.Cause) {
	if !s.finish() {
		return
	}
	s.b.work.Go(func() { s.destroy(context.Background()) })
	if s.lost != nil {
		s.lost(backend.Loss{Session: s.id, Cause: cause})
	}
}

// finish marks the end; false: it was over before.
func (s *session) finish() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.ended {
		return false
	}
	s.ended = true
	s.end()
	s.b.dead[s.id] = time.Now()
	if s.b.sessions != nil {
		delete(s.b.sessions, s.id)
	}
	return true
}

// keep ends the session when nobody has renewed it for its TTL. Consul itself would take
// twice that.
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

// notice is what a break tells the session of its victim.
type notice struct {
	Lease  backend.LeaseID `json:"l"`
	Reason string          `json:"r,omitempty"`
}

// hear tells the losses that are written to the session's notices, and that the session
// is gone: with it the key is.
func (s *session) hear() {
	told := make(map[backend.LeaseID]bool)
	var index uint64
	for failures := 0; s.life.Err() == nil; {
		pair, meta, err := s.b.client.KV().Get(s.b.noticeKey(s.uuid), (&api.QueryOptions{WaitIndex: index, WaitTime: longPoll}).WithContext(s.life))
		if err != nil {
			if !pause(s.life, failures) {
				return
			}
			failures++
			continue
		}
		failures = 0
		if pair == nil || pair.Session != s.uuid {
			s.expire(backend.CauseGone)
			return
		}
		index = nextIndex(index, meta.LastIndex)
		var notices []notice
		_ = json.Unmarshal(pair.Value, &notices) // what is not ours says nothing
		for _, n := range notices {
			if !told[n.Lease] {
				told[n.Lease] = true
				s.tellBroken(n)
			}
		}
	}
}

// nextIndex is the index to wait behind. One that went back begins again:
// developer.hashicorp.com/consul/api-docs/features/blocking.
func nextIndex(old, now uint64) uint64 {
	if now < old {
		return 0
	}
	return max(1, now)
}

// pause waits before the next try, longer each time; false: ctx has ended.
func pause(ctx context.Context, failures int) bool {
	const first, most = 20 * time.Millisecond, 2 * time.Second
	d := min(first<<min(failures, 10), most)
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *session) tellBroken(n notice) {
	loss := backend.Loss{Session: s.id, Lease: n.Lease, Cause: backend.CauseBroken, Reason: n.Reason}
	s.b.mu.Lock()
	s.losses = append(s.losses, loss)
	s.b.mu.Unlock()
	if s.lost != nil {
		s.lost(loss)
	}
}
