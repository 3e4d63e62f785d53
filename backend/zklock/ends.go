package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// grave is a session that has ended here. In the ensemble it may live on until it expires there.
type grave struct {
	at     time.Time
	closed chan struct{} // closed when the attempt to end it there has ended; nil: there is nothing to end
	gone   bool          // it has ended there; guarded by Backend.mu
}

var errUntold = errors.New("the ensemble has not confirmed the end of the session: its leases may be held until it expires")

// EndSession releases everything that lives with the session: it ends the ZooKeeper session. If the
// session is gone already, EndSession succeeds. If the ensemble does not confirm the end, the leases
// may be held until the session expires there; another EndSession checks whether it has. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	s := b.sessions[id]
	closed := b.closed
	if !closed && b.dead[id] == nil {
		b.dead[id] = &grave{at: time.Now(), gone: true}
	}
	g := b.dead[id]
	b.mu.Unlock()
	if closed {
		return backend.ErrClosed
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if s == nil && (g.closed == nil || isClosed(g.closed)) {
		return b.fail(ctx, opEnd, b.confirm(ctx, id, g), true)
	}
	done := make(chan struct{})
	b.work.Go(func() {
		defer close(done)
		if s != nil {
			s.close()
		} else {
			<-g.closed
		}
	})
	select {
	case <-done:
		if s != nil && s.err == nil {
			g = s.grave
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if !g.gone {
			return &backend.UnavailableError{Backend: name, Op: opEnd, MayHold: true, Err: errUntold}
		}
		return nil
	case <-ctx.Done():
		return b.fail(ctx, opEnd, context.Cause(ctx), true)
	}
}

// confirm checks whether a session that has ended here has ended in the ensemble, unless that is
// known. The write lets the server catch up with the leader, if the leader is one.
func (b *Backend) confirm(ctx context.Context, id backend.SessionID, g *grave) error {
	b.mu.Lock()
	gone := g.gone
	b.mu.Unlock()
	if gone {
		return nil
	}
	l, err := b.controlLink(ctx)
	if err != nil {
		return err
	}
	there, err := call(ctx, l, func() (bool, error) {
		if _, err := l.conn.Set(b.locksPath(), nil, -1); err != nil {
			return false, err
		}
		there, _, err := l.conn.Exists(b.sessionPath(id))
		return there, err
	})
	if err != nil {
		return err
	}
	if there {
		return errUntold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g.gone = true
	return nil
}

// close ends the session, and waits until the ensemble has been told, for at most three seconds.
func (s *session) close() {
	<-s.opened
	if s.finish() {
		s.bury()
	} else if s.err == nil {
		<-s.grave.closed
	}
}

// bury ends the session in the ensemble.
func (s *session) bury() {
	gone := s.link.close()
	s.b.mu.Lock()
	s.grave.gone = gone
	s.b.mu.Unlock()
	close(s.grave.closed)
}

// expire ends the session because its time has run out, or the ensemble reports that it ended.
func (s *session) expire(cause backend.Cause) {
	if !s.finish() {
		return
	}
	s.b.work.Go(s.bury)
	if s.lost != nil {
		s.lost(backend.Loss{Session: s.id, Cause: cause})
	}
}

// finish marks the end. It returns false if the session had ended before.
func (s *session) finish() bool {
	if s.err != nil {
		return false
	}
	s.mu.Lock()
	first := !s.ended
	s.ended = true
	s.mu.Unlock()
	if !first {
		return false
	}
	close(s.over)
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.grave.at = time.Now()
	s.b.dead[s.id] = s.grave
	if s.b.sessions != nil {
		delete(s.b.sessions, s.id)
	}
	return true
}
