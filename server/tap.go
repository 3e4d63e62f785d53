package server

import (
	"context"
	"sync/atomic"

	"github.com/holdfast-io/holdfast/backend"
)

// tap stands between a client of package holdfast and the backend. It notes the
// grants, which the client keeps to itself, and bounds the work that the acquires of
// all clients make for the backend.
type tap struct {
	backend.Backend
	s *Server
	// leave the places in line when the client is closed.
	leave atomic.Bool
}

// tapped is a grant, and the session that it was asked under.
type tapped struct {
	backend.Grant
	session backend.SessionID
}

// tappedKey finds what to note a grant in.
type tappedKey struct{}

// tapping gives a context for one acquisition, whose grant is noted.
func tapping(ctx context.Context) (context.Context, *tapped) {
	grant := new(tapped)
	return context.WithValue(ctx, tappedKey{}, grant), grant
}

// Acquire notes the grant. One that does not wait takes its turn.
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

// EndSession gives back the places in line of the session, unless they are to be
// left; then they fall with the session's TTL.
func (t *tap) EndSession(ctx context.Context, id backend.SessionID) error {
	if t.leave.Load() {
		return nil
	}
	return t.Backend.EndSession(ctx, id)
}
