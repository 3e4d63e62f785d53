package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// Release releases the lock. Its context ends first. If Reentrant made several handles of one lease,
// the last handle releases the lease.
//
//   - nil: released.
//   - ErrLost: it was lost before, or this handle was released already; the error is
//     then ErrReleased too. Nothing was changed.
//   - any other error, with OpError.MayHold set: the outcome was unknown when ctx
//     ended. The release continues in the background, and the lease is free when
//     its TTL has elapsed at the latest.
//
// With AtLeast the lease stays for as long as that says. Released then means that the lease will
// not be renewed after that.
//
// A context that has already ended does not prevent the release: it is then done in the background.
func (l *Lock) Release(ctx context.Context) error {
	c, h := l.h.c, l.h
	if err := checkContext(ctx); err != nil {
		return c.opErr("release", h.live.Name, err)
	}
	c.mu.Lock()
	c.check(h)
	err := l.over()
	if errors.Is(err, ErrReleased) {
		err = twiceError{}
	}
	last, shared := err == nil && l.leave(), h.shared
	var done func()
	if last {
		done = c.agent.Count()
	}
	c.mu.Unlock()
	if last {
		defer done()
		err = c.giveUp(ctx, h)
		hook(ctx, &c.hooks, c.hooks.Released, ReleasedEvent{
			Lock: h.id(), Token: h.token, Shared: shared, Held: time.Duration(c.timeForHooks() - h.since), Err: err,
		})
	}
	return c.opErr("release", h.live.Name, err)
}

// twiceError is of a second release: ErrReleased, and ErrLost too.
type twiceError struct{}

func (twiceError) Error() string   { return "lock was released before" }
func (twiceError) Unwrap() []error { return []error{ErrReleased, ErrLost} }

// leave ends the handle, and the hold if it was the last handle. It reports whether it was.
// Client.mu is held.
func (l *Lock) leave() bool {
	h := l.h
	l.released = true
	l.end(ErrReleased)
	for i, other := range h.handles {
		if other == l {
			h.handles = append(h.handles[:i:i], h.handles[i+1:]...)
			break
		}
	}
	if len(h.handles) > 0 {
		return false
	}
	h.err = ErrReleased
	h.c.live.Release(&h.live)
	return true
}

// giveUp tells the backend that the lease has ended, or how long it is to stay. If a request to
// acquire the lease may still arrive, the lease is abandoned, so that it is not granted again
// without a holder.
func (c *Client) giveUp(ctx context.Context, h *hold) error {
	if h.stays() > 0 {
		return c.leaveAlone(ctx, h)
	}
	unknown := false
	for n := 0; ; n++ {
		err := c.agent.Try(ctx, func(ctx context.Context) error { return c.b.Release(ctx, h.releaseRequest(h.live.Late)) })
		switch {
		case err == nil, errors.Is(err, ErrLost) && unknown:
			// The outcome was unknown before: that release worked, or the lease has ended since.
			return nil
		case errors.Is(err, ErrLost):
			return &LostError{Name: h.live.Name, Token: h.token, Cause: CauseGone}
		case errors.Is(err, backend.ErrSessionLost):
			return &LostError{Name: h.live.Name, Token: h.token, Cause: CauseSession}
		case errors.Is(err, ErrClosed):
			return &OpError{Op: "release", Name: h.live.Name, Backend: c.caps.Name, MayHold: true, Err: err}
		}
		unknown = true
		if acquire.IsUnavailable(err) && !acquire.IsRefused(err) && c.clock.Now() < h.lastEnd() && c.agent.Pause(ctx, acquire.Backoff(n)) {
			continue
		}
		req := h.releaseRequest(true)
		return c.goOn(ctx, h, err, func(ctx context.Context) error { return c.b.Release(ctx, req) })
	}
}

// goOn hands to the background the work on h that err interrupted.
func (c *Client) goOn(ctx context.Context, h *hold, err error, f func(context.Context) error) error {
	hook(ctx, &c.hooks, c.hooks.Ambiguous, "release")
	c.mu.Lock()
	c.agent.SettleBy(h.live.Name, h.keptBy(), h.live.Life, f)
	c.mu.Unlock()
	return &OpError{Op: "release", Name: h.live.Name, Backend: c.caps.Name, MayHold: true, Err: fmt.Errorf("the release continues in the background: %w", err)}
}

// lastEnd returns when the lease ends on this side in any case.
func (h *hold) lastEnd() clock.Instant {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	return h.live.Deadline()
}

// stays returns how much longer the lease has to stay held: see AtLeast.
func (h *hold) stays() time.Duration {
	if h.floor == 0 {
		return 0
	}
	return h.floor - time.Duration(h.c.clock.Now()-h.since)
}

// leaveAlone lets the lease end by itself when its time for AtLeast has elapsed.
func (c *Client) leaveAlone(ctx context.Context, h *hold) error {
	leave := func(ctx context.Context) error {
		stay := h.stays()
		if stay <= 0 {
			return c.b.Release(ctx, h.releaseRequest(true))
		}
		res, err := c.agent.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{
			Name: h.live.Name, Lease: h.live.ID, TTL: min(max(stay, c.caps.MinTTL), c.caps.MaxTTL),
		}}})
		if err != nil {
			return err
		}
		return res.Leases[0].Err
	}
	err := c.agent.Retry(ctx, leave)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLost) && !acquire.IsCutShort(ctx, err):
		return &LostError{Name: h.live.Name, Token: h.token, Cause: CauseGone}
	}
	return c.goOn(ctx, h, err, leave)
}
