package consullock

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
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
	// leastDelay is the least lock-delay that the client library can ask for: what it is
	// for, tokens do.
	leastDelay = time.Millisecond
	// renewParts is which part of its TTL a renewal of a session may take at most to look
	// for breaks.
	renewParts = 6
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
	losses   []backend.Loss           // since the last renewal
	told     map[backend.LeaseID]bool // breaks that were told
	renewed  chan struct{}            // capacity 1, never closed: the deadline moved
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
		leases: make(map[leaseKey]*own), told: make(map[backend.LeaseID]bool), renewed: make(chan struct{}, 1),
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
		s.b.listen(s)
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
		Name: s.b.cfg.Prefix, TTL: s.ttl.String(), Behavior: api.SessionBehaviorDelete, LockDelay: leastDelay,
	}, (&api.WriteOptions{}).WithContext(ctx))
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
	entry, _, err := s.b.client.Session().Renew(s.uuid, (&api.WriteOptions{}).WithContext(ctx))
	if err == nil && entry == nil {
		err = s.confirmGone(ctx)
	}
	if err != nil {
		return fail(ctx, opRenew, err, false)
	}
	if err := s.extend(); err != nil {
		return err
	}
	// What was broken is pushed; but the connection for that may be a dead one.
	ctx, cancel := context.WithTimeout(ctx, s.ttl/renewParts)
	defer cancel()
	if _, err := s.read(ctx, 0); errors.Is(err, backend.ErrSessionLost) {
		return err
	}
	return nil // the renewal itself was answered
}

// extend notes that Consul has renewed the session.
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

// confirmGone asks whether the session is gone, after an answer by a leader that may have
// been too new to know it. ErrSessionLost: it is.
func (s *session) confirmGone(ctx context.Context) error {
	entry, _, err := s.b.client.Session().Info(s.uuid, consistent(ctx))
	switch {
	case err != nil:
		return err
	case entry != nil:
		return errors.New("the leader did not know the session yet")
	}
	s.expire(backend.CauseGone)
	return backend.ErrSessionLost
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
	s, g, err := b.bury(id)
	if err != nil {
		return err
	}
	if s != nil {
		select {
		case <-s.opened:
		case <-ctx.Done():
			return fail(ctx, opEnd, context.Cause(ctx), true)
		}
		s.finish()
		g = b.graveOf(id)
	}
	if err := b.destroy(ctx, g); err != nil {
		b.background(func() { b.layFor(g) }) // also when nobody asks again
		return fail(ctx, opEnd, err, true)
	}
	return nil
}

// bury notes that no session of the ID may be opened any more, and gives the one that
// lives, or else what is known of the one that was.
func (b *Backend) bury(id backend.SessionID) (*session, *grave, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, nil, backend.ErrClosed
	}
	if b.dead[id] == nil {
		b.dead[id] = &grave{at: time.Now()}
	}
	return b.sessions[id], b.dead[id], nil
}

// grave is a session that has ended here. In Consul it may live on, and keep its leases,
// until somebody ends it there.
type grave struct {
	at   time.Time
	ttl  time.Duration
	uuid string // empty: it is gone from Consul; guarded by Backend.mu
}

// isOver reports whether Consul has ended the session by itself.
func (g *grave) isOver() bool { return time.Since(g.at) > 2*g.ttl+lag }

func (b *Backend) graveOf(id backend.SessionID) *grave {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dead[id]
}

// destroy ends the session in Consul, unless that was done.
func (b *Backend) destroy(ctx context.Context, g *grave) error {
	b.mu.Lock()
	uuid := g.uuid
	b.mu.Unlock()
	if uuid == "" {
		return nil
	}
	if _, err := b.client.Session().Destroy(uuid, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g.uuid = ""
	return nil
}

// lay tries once, not for long, to end the session in Consul.
func (b *Backend) lay(ctx context.Context, g *grave) bool {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	err := b.destroy(ctx, g)
	if err != nil {
		b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a session has not ended in Consul yet", slog.String("error", err.Error()))
	}
	return err == nil
}

// layFor tries until it is done, or Consul has ended the session by itself, or Close.
func (b *Backend) layFor(g *grave) {
	for failures := 0; !b.lay(b.base, g) && !g.isOver(); failures++ {
		if !pause(b.base, failures) {
			return
		}
	}
}

// expire ends the session because its time is over, or Consul says so.
func (s *session) expire(cause backend.Cause) {
	if !s.finish() {
		return
	}
	g := s.b.graveOf(s.id)
	s.b.background(func() { s.b.layFor(g) })
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
	s.b.dead[s.id] = &grave{at: time.Now(), ttl: s.ttl, uuid: s.uuid}
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

// listen has a session hear of its losses at once, where there is a connection for that.
// A client has one session; only where many clients share a backend the last of them
// learn it by their next renewal.
func (b *Backend) listen(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hearing >= maxHearing {
		return
	}
	b.hearing++
	b.work.Go(func() {
		s.hear()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.hearing--
	})
}

// hear tells the losses that are written to the session's notices, and that the session
// is gone: with it the key is.
func (s *session) hear() {
	var index uint64
	for failures := 0; s.life.Err() == nil; {
		now, err := s.read(s.life, index)
		if err != nil {
			if !pause(s.life, failures) {
				return
			}
			failures++
			continue
		}
		failures = 0
		index = nextIndex(index, now)
	}
}

// read reads the notices, once they are other than at the index, and tells what is new.
// ErrSessionLost: the session is gone. It is asked of a leader that is sure to be it, and
// to know what was written: one that was just elected knows less for a moment.
func (s *session) read(ctx context.Context, index uint64) (uint64, error) {
	ctx, cancel := patiently(ctx, index, longPoll)
	defer cancel()
	opts := consistent(ctx)
	opts.WaitIndex, opts.WaitTime = index, longPoll
	pair, meta, err := s.b.client.KV().Get(s.b.noticeKey(s.uuid), opts)
	if err != nil {
		return 0, err
	}
	if pair == nil || pair.Session != s.uuid {
		s.expire(backend.CauseGone)
		return 0, backend.ErrSessionLost
	}
	var notices []notice
	_ = json.Unmarshal(pair.Value, &notices) // what is not ours says nothing
	for _, n := range notices {
		s.tellBroken(n)
	}
	return meta.LastIndex, nil
}

// patiently bounds a question that Consul keeps for wait, when there is an index: it adds
// a sixteenth to that (developer.hashicorp.com/consul/api-docs/features/blocking). What
// takes longer is on a connection that is dead and does not say so.
func patiently(ctx context.Context, index uint64, wait time.Duration) (context.Context, context.CancelFunc) {
	const answer = 10 * time.Second
	if index == 0 {
		return context.WithTimeout(ctx, answer)
	}
	return context.WithTimeout(ctx, wait+wait/16+answer)
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
	known := s.told[n.Lease]
	if !known {
		s.told[n.Lease] = true
		s.losses = append(s.losses, loss)
	}
	s.b.mu.Unlock()
	if s.lost != nil && !known {
		s.lost(loss)
	}
}
