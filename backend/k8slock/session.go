package k8slock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// remembered is for how long a request for a lease that was abandoned can be on its way, and rememberedEnds for how long
// the cache can show a session that has ended.
const remembered, rememberedEnds = 10 * time.Minute, time.Hour

// session is one that was opened here.
type session struct {
	b    *Backend
	id   backend.SessionID
	lost func(backend.Loss)
	life context.Context         //nolint:containedctx // it is the session's
	die  context.CancelCauseFunc // ends life

	turn   chan struct{}  // capacity 1: one request about it at a time
	mu     sync.Mutex     // guards the fields below
	ttl    time.Duration  //
	until  time.Time      // it lives at least until then, by the local clock
	losses []backend.Loss // that Renew has not reported yet
	pulse  uint64         // the version of the newest renewal

	// Of OpenSession, guarded by Backend.mu.
	calls  int  // in progress
	opened bool // one has succeeded
}

// sessionLease is a lease of a session.
type sessionLease struct {
	session backend.SessionID
	lease   lockstate.Key
}

// OpenSession makes a session, or confirms one that lives and adopts the new TTL. For a session
// that another backend value has opened it returns ErrSessionLost; the session lives on there.
// Errors: *InvalidError, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := req.Validate(b.caps); err != nil {
		return err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return err
	}
	defer cancel()
	if err := b.follow(ctx); err != nil {
		return b.fail(ctx, opOpen, err, false)
	}
	s, err := b.newSession(req)
	if err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		b.tried(s, false)
		return b.fail(ctx, opOpen, err, false)
	}
	defer s.end()
	asked := time.Now()
	err = s.open(ctx, req.TTL)
	if err == nil {
		s.extend(asked, req.TTL)
	}
	b.tried(s, err == nil)
	return b.fail(ctx, opOpen, err, true)
}

// newSession returns the session of the request, and makes it if it is not known here. The caller
// must call tried afterwards.
func (b *Backend) newSession(req backend.SessionRequest) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, backend.ErrClosed
	}
	if b.ended.Has(req.ID) {
		return nil, backend.ErrSessionLost
	}
	s, ok := b.sessions[req.ID]
	if !ok {
		s = &session{
			b: b, id: req.ID, lost: req.Lost, ttl: req.TTL, turn: make(chan struct{}, 1),
		}
		if s.lost == nil {
			s.lost = func(backend.Loss) {}
		}
		s.life, s.die = context.WithCancelCause(context.Background())
		b.sessions[req.ID] = s
	}
	s.calls++
	return s, nil
}

// tried records that a call of OpenSession has ended. It forgets a session that no call has opened:
// a client that is refused tries a new ID each time. Its object may exist if the outcome is unknown.
// Nothing is held under that object, and it ends with its TTL unless another call opens the session
// after all.
func (b *Backend) tried(s *session, opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.calls--
	s.opened = s.opened || opened
	if s.calls == 0 && !s.opened && b.sessions[s.id] == s {
		delete(b.sessions, s.id)
		s.die(backend.ErrSessionLost)
	}
}

// begin waits until no other request about the session is in progress, or the context ends.
func (s *session) begin(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) end() { <-s.turn }

// open writes the session's object: it makes or renews it, between begin and end.
func (s *session) open(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := backend.WithTimeout(ctx, attempt)
	defer cancel()
	if at := sessionName(s.id); s.b.cache.known(at) == nil {
		o, err := s.object(newObject(at), ttl)
		if err != nil {
			return err
		}
		made, err := s.b.rest.create(ctx, o)
		if err == nil {
			s.made(made, ttl)
			return nil
		}
		if !isStatus(err, http.StatusConflict) { // otherwise an earlier request has worked
			return err
		}
	}
	return s.renew(ctx, ttl)
}

// made records the object as it was written.
func (s *session) made(o *object, ttl time.Duration) {
	s.b.learn(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl, s.pulse = ttl, o.version()
}

// object returns the session's object as it must be written now.
func (s *session) object(base *object, ttl time.Duration) (*object, error) {
	text, err := json.Marshal(sessionState{ID: s.id, TTL: ttl, Value: s.b.value})
	if err != nil {
		return nil, fmt.Errorf("encode the session: %w", err)
	}
	o := base.clone()
	o.Metadata.Labels[kindLabel] = kindSession
	o.Metadata.Annotations[stateKey] = string(text)
	o.Spec.HolderIdentity = "holdfast_" + s.b.value
	o.Spec.LeaseDurationSeconds = int32((ttl + time.Second - 1) / time.Second) //nolint:gosec // a day at most
	o.Spec.RenewTime = &microTime{s.b.rest.clock.now()}
	if o.Spec.AcquireTime == nil {
		o.Spec.AcquireTime = o.Spec.RenewTime
	}
	return o, nil
}

// current returns the session's object as it is known, and reads it if it is not known, or if fresh is set.
// It returns nil if the session has ended.
func (s *session) current(ctx context.Context, fresh bool) (*seen, error) {
	at := sessionName(s.id)
	if known := s.b.cache.known(at); known != nil && !fresh {
		return known, nil
	}
	if live, err := s.b.lives(ctx, s.id, true); err != nil || !live {
		return nil, err
	}
	return s.b.cache.known(at), nil
}

// isOurs reports whether this value has made the object of the session. A session is bound to the
// value that opened it: see Capabilities.Bound.
func (s *session) isOurs(o *seen) bool { return o.session != nil && o.session.Value == s.b.value }

// renew writes the session's object again, if it is the one that was made. It never makes it. It is
// called between begin and end.
func (s *session) renew(ctx context.Context, ttl time.Duration) error {
	for fresh := false; ; fresh = true { // an answer was lost, or the session has ended
		if s.life.Err() != nil {
			return backend.ErrSessionLost
		}
		base, err := s.current(ctx, fresh)
		switch {
		case err != nil:
			return err
		case base == nil:
			return backend.ErrSessionLost
		case !s.isOurs(base):
			s.b.disown(s)
			return backend.ErrSessionLost
		}
		o, err := s.object(base.object, ttl)
		if err != nil {
			return err
		}
		written, err := s.b.rest.update(ctx, o)
		if err == nil {
			s.made(written, ttl)
			return nil
		}
		if !isStatus(err, http.StatusConflict, http.StatusNotFound) {
			return err
		}
	}
}

// extend records that the API server has received a renewal that was sent at that time.
func (s *session) extend(asked time.Time, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = asked.Add(ttl)
}

// left returns for how long the session lives at least.
func (s *session) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.until)
}

// session returns a session that is alive.
func (b *Backend) session(id backend.SessionID) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, backend.ErrClosed
	}
	s, ok := b.sessions[id]
	if !ok {
		return nil, backend.ErrSessionLost
	}
	return s, nil
}

// Renew renews the session with one write, and one more for each of its locks that client-go must
// see renewed. Errors: *InvalidError, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.RenewResult{}, err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer cancel()
	if req.Session == "" {
		return backend.RenewResult{}, nil
	}
	s, err := b.session(req.Session)
	switch {
	case errors.Is(err, backend.ErrSessionLost):
		return backend.RenewResult{SessionLost: true}, nil
	case err != nil:
		return backend.RenewResult{}, err
	}
	if err := s.begin(ctx); err != nil {
		return backend.RenewResult{}, b.fail(ctx, opRenew, err, false)
	}
	defer s.end()
	asked := time.Now()
	s.mu.Lock()
	ttl, pulse := s.ttl, s.pulse
	s.mu.Unlock()
	err = func() error {
		ctx, cancel := backend.WithTimeout(ctx, attempt)
		defer cancel()
		if err := s.renew(ctx, ttl); err != nil {
			return err
		}
		b.checkStream(pulse)
		return backend.PartDone(name, opRenew, b.fail(ctx, opRenew, s.present(ctx, ttl), true))
	}()
	switch {
	case errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err):
		return backend.RenewResult{SessionLost: true}, nil
	case err != nil:
		return backend.RenewResult{}, b.fail(ctx, opRenew, err, true)
	}
	s.extend(asked, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	res := backend.RenewResult{Lost: s.losses}
	s.losses = nil
	return res, nil
}

// lose reports a loss, and again with the next renewal.
func (s *session) lose(l backend.Loss) {
	s.mu.Lock()
	s.losses = append(s.losses, l)
	s.mu.Unlock()
	s.lost(l)
}

// EndSession releases everything of the session, with one request. Errors: *InvalidError,
// ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return err
	}
	defer cancel()
	s, err := b.session(id)
	switch {
	case errors.Is(err, backend.ErrSessionLost):
		return nil
	case err != nil:
		return err
	}
	return b.fail(ctx, opEnd, b.remove(ctx, s), true)
}

// remove deletes the session's object.
func (b *Backend) remove(ctx context.Context, s *session) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	ctx, cancel := backend.WithTimeout(ctx, attempt)
	defer cancel()
	s.die(backend.ErrSessionLost)
	o, err := s.current(ctx, false) // it may have been made, and the answer lost
	if err != nil || o == nil {
		return err
	}
	if !s.isOurs(o) {
		b.disown(s)
		return nil
	}
	at := sessionName(s.id)
	if err := b.rest.remove(ctx, at, o.object.Metadata.UID, ""); err != nil && !isStatus(err, http.StatusNotFound, http.StatusConflict) {
		return err
	}
	b.absent(at, o.object.version()+1)
	b.gone(s.id)
	return nil
}

// disown forgets a session whose object another value has made. That session lives, with all that
// it holds: unlike those of a session that is gone, its leases stay where they are.
func (b *Backend) disown(s *session) {
	b.mu.Lock()
	if b.sessions[s.id] == s {
		delete(b.sessions, s.id)
	}
	b.mu.Unlock()
	m := &b.cache
	m.mu.Lock()
	for at, leases := range m.held {
		for lease, owner := range leases {
			if owner == s {
				m.unhold(at, lease)
			}
		}
	}
	m.mu.Unlock()
	if s.life.Err() == nil {
		s.die(backend.ErrSessionLost)
		s.lost(backend.Loss{Session: s.id, Cause: backend.CauseSession})
	}
}
