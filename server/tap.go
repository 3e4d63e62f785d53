package server

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/holdfast-io/holdfast/backend"
)

// tap stands between a client of package holdfast and the backend. It notes the
// grants, which the client keeps to itself, and holds back what the server must not
// say about a lease ID that is not its own.
type tap struct {
	backend.Backend
	grants sync.Map // backend.LeaseID -> tapped, of acquires under way
	// theirs: the lease IDs are made by HTTP clients. Nothing is released for them:
	// they may have asked again elsewhere, and hold by now what would be released.
	theirs bool
	// leave the places in line when the client is closed.
	leave atomic.Bool
}

// tapped is a grant, and the session that it was asked under.
type tapped struct {
	backend.Grant
	session backend.SessionID
}

// Acquire notes the grant.
func (t *tap) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	g, err := t.Backend.Acquire(ctx, req)
	if err == nil {
		t.grants.Store(req.Lease, tapped{g, req.Session})
	}
	return g, err
}

// taken gives the grant of the lease, once.
func (t *tap) taken(id backend.LeaseID) (tapped, bool) {
	v, ok := t.grants.LoadAndDelete(id)
	g, _ := v.(tapped)
	return g, ok
}

// Release does nothing for a lease that is not the server's to give back.
func (t *tap) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if t.theirs {
		return nil
	}
	return t.Backend.Release(ctx, req)
}

// EndSession gives back the places in line of the session, unless they are to be
// left; then they fall with the session's TTL.
func (t *tap) EndSession(ctx context.Context, id backend.SessionID) error {
	if t.leave.Load() {
		return nil
	}
	return t.Backend.EndSession(ctx, id)
}
