package server

import (
	"context"
	"sync/atomic"

	"github.com/holdfast-io/holdfast/backend"
)

// tap stands between a client of package holdfast and the backend. It records the grants, which
// the client does not expose, and bounds the work that the acquires of all clients make for the
// backend.
type tap struct {
	backend.Backend
	s *Server
	// leave keeps the places in the queue when the client is closed.
	leave atomic.Bool
}

// tapped is a grant, and the session of its request.
type tapped struct {
	backend.Grant
	session backend.SessionID
}

// tappedKey is the context key of the tapped in which a grant is recorded.
type tappedKey struct{}

// tapping returns a context for one acquisition, and where its grant is recorded.
func tapping(ctx context.Context) (context.Context, *tapped) {
	grant := new(tapped)
	return context.WithValue(ctx, tappedKey{}, grant), grant
}

// Acquire records the grant. An acquire that does not wait takes a slot in the lane of tries.
func (t *tap) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if !req.Wait {
		if err := t.s.admit(ctx, t.s.lanes.tries); err != nil {
			return backend.Grant{}, err
		}
		defer t.s.lanes.tries.leave()
	}
	g, err := t.Backend.Acquire(ctx, req)
	if note, ok := ctx.Value(tappedKey{}).(*tapped); ok && err == nil {
		*note = tapped{g, req.Session}
	}
	return g, err
}

// EndSession releases the places in the queue of the session, unless leave is set. They then
// expire with the session's TTL.
func (t *tap) EndSession(ctx context.Context, id backend.SessionID) error {
	if t.leave.Load() {
		return nil
	}
	return t.Backend.EndSession(ctx, id)
}
