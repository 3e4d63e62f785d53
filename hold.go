package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// State is the state of a lock.
type State uint8

const (
	// StateHeld: the lease is held and its renewals are acknowledged.
	StateHeld State = iota + 1
	// StateAtRisk: the lease is held, but the last renewal failed. It becomes held again, or lost at
	// its deadline.
	StateAtRisk
	// StateLost: the lease has ended. Final.
	StateLost
	// StateReleased: the holder released the lock. Final.
	StateReleased
)

// String returns "held", "at risk", "lost" or "released".
func (s State) String() string {
	switch s {
	case StateHeld:
		return "held"
	case StateAtRisk:
		return "at risk"
	case StateLost:
		return "lost"
	case StateReleased:
		return "released"
	default:
		return "unknown"
	}
}

// hold is a lease of this client, shared by the Locks that are handles of it. All fields that
// change are guarded by Client.mu.
type hold struct {
	live  liveness.Lease
	c     *Client
	owner string
	// The limit and permits of a shared lease, which bound what re-entry may ask for.
	limit, permits int
	shared         bool
	unread         bool          // resumed, and its mode and permits are not read from the backend yet
	begun          clock.Instant // when the caller asked for the lock; 0: there are no hooks that want to know
	floor, most    time.Duration // AtLeast and AtMost; 0: not given

	token   fence.Token
	since   clock.Instant
	err     error // why it has ended
	first   Lock  // the handle that the acquisition returns
	handles []*Lock
	one     [1]*Lock // where handles begins
}

// id identifies the lease to callers.
func (h *hold) id() Lease { return Lease{Name: h.live.Name, ID: h.live.ID} }

func (h *hold) releaseRequest(abandon bool) backend.ReleaseRequest {
	r := backend.ReleaseRequest{Name: h.live.Name, Lease: h.live.ID, Abandon: abandon}
	if h.live.Session != nil {
		r.Session = h.live.Session.ID
	}
	return r
}

// keptBy returns the session whose renewals keep the lease, if one does: a timed lease that was
// granted ends by itself.
func (h *hold) keptBy() *liveness.Session {
	if h.live.Timed {
		return nil
	}
	return h.live.Session
}

// Lost ends the contexts of the locks. Client.mu is held.
func (h *hold) Lost(cause Cause, reason string, err error) {
	h.err = &LostError{Name: h.live.Name, Token: h.token, Cause: cause, Reason: reason, Err: err}
	if h.live.Held() {
		hook(h.call(), &h.c.hooks, h.c.hooks.Lost, LostEvent{
			Lock: h.id(), Token: h.token, Shared: h.shared, Held: time.Duration(h.c.clock.Now() - h.since),
			Cause: cause, Reason: reason,
		})
	}
	for _, l := range h.handles {
		l.end(h.err)
	}
}

// Moved signals the channels of Renewed that the deadline has moved. Client.mu is held.
func (h *hold) Moved() {
	for _, l := range h.handles {
		if l.renewed != nil {
			select {
			case l.renewed <- struct{}{}:
			default:
			}
		}
	}
}

// Abandon has the lease released on the backend, which may have it. Client.mu is held.
func (h *hold) Abandon() { h.c.agent.Settle(h.releaseRequest(true), h.keptBy(), h.live.Life) }

// call returns the values of the context that the lock was acquired with. Client.mu is held.
func (h *hold) call() context.Context {
	if len(h.handles) == 0 {
		return h.c.agent.Background()
	}
	return h.handles[0].values
}

// check ends h if its deadline has passed. Client.mu is held.
func (c *Client) check(h *hold) {
	if h.live.Held() {
		c.live.Check(&h.live, c.clock.Now())
	}
}

// lockContext is the context of a lock. Its Err reads the clock, so it is correct even if the timer
// that closes Done is late.
type lockContext struct {
	context.Context //nolint:containedctx // this is a context
	lock            *Lock
}

func (x *lockContext) Err() error {
	if err := x.Context.Err(); err != nil {
		return err
	}
	x.lock.checkNow()
	return x.Context.Err()
}

func (x *lockContext) Value(key any) any {
	if asked, ok := key.(*call); ok {
		asked.found(x.lock)
	}
	return x.Context.Value(key)
}

// lookingContext belongs to its locks, and ends with them. Its Err reads the clock, as that of a lock's context does: an
// ordinary child of that context would only know what the last timer reported.
type lookingContext struct {
	context.Context //nolint:containedctx // this is a context
	end             context.CancelCauseFunc
	locks           Locks
}

func (x *lookingContext) Err() error {
	if err := x.Context.Err(); err != nil {
		return err
	}
	for _, l := range x.locks {
		if err := l.Err(); err != nil {
			x.end(err)
			break
		}
	}
	return x.Context.Err()
}

func (x *lookingContext) Value(key any) any {
	if asked, ok := key.(*call); ok {
		for _, l := range x.locks {
			asked.found(l)
		}
	}
	return x.Context.Value(key)
}
