package consullock

import (
	"context"
	"log/slog"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
)

// EndSession releases everything that lives with the session, in one request. If the session is
// gone already, EndSession succeeds. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's
// cause.
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
			return b.fail(ctx, opEnd, context.Cause(ctx), true)
		}
		s.finish()
		g = b.graveOf(id)
	}
	if err := b.destroy(ctx, g); err != nil {
		b.background(func() { b.layFor(g) }) // even if no caller retries
		return b.fail(ctx, opEnd, err, true)
	}
	return nil
}

// bury records that no session of that ID may be opened any more. It returns the session that
// lives, or else what is known of the one that ended.
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

// grave is a session that has ended here. In Consul it may live on, and keep its leases, until it
// is ended there.
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
	ctx, cancel := answering(ctx)
	defer cancel()
	if _, err := b.client.Session().Destroy(uuid, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g.uuid = ""
	return nil
}

// lay makes one short attempt to end the session in Consul.
func (b *Backend) lay(ctx context.Context, g *grave) bool {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	err := b.destroy(ctx, g)
	if err != nil {
		b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a session has not ended in Consul yet", slog.String("error", err.Error()))
	}
	return err == nil
}

// layFor retries until the session is ended, Consul has ended it by itself, or the backend is
// closed.
func (b *Backend) layFor(g *grave) {
	for failures := 0; !b.lay(b.base, g) && !g.isOver(); failures++ {
		if !pause(b.base, failures) {
			return
		}
	}
}

// expire ends the session because its time has run out, or Consul reports that it ended.
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

// finish marks the end. It returns false if the session had ended before.
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
