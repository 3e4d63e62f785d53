package holdfast

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Release gives the lock back. Its context ends first. Where re-entry made several
// handles of one lease, the last of them gives it back.
//
//   - nil: released.
//   - ErrLost: it was lost before, or this handle was released already. Nothing was
//     changed.
//   - anything else, with OpError.MayHold set: the outcome is not known when ctx
//     ended. The release goes on in the background, and with its TTL the lease is
//     free at the latest.
//
// With AtLeast the lease stays for as long as that says; released means that it will not
// be renewed after that.
//
// A context that has ended already does not keep the lock from being released: that
// is done in the background then.
func (l *Lock) Release(ctx context.Context) error {
	c, h := l.h.c, l.h
	c.mu.Lock()
	c.check(h)
	err := l.over()
	if errors.Is(err, ErrReleased) {
		err = fmt.Errorf("%w: released before", ErrLost)
	}
	last, shared := err == nil && l.leave(), h.shared
	if last {
		c.work.Add(1)
	}
	events := c.takeEvents()
	c.mu.Unlock()
	c.emit(events)
	if last {
		defer c.work.Done()
		err = c.giveUp(ctx, h)
		c.cfg.Events.released(ReleasedEvent{
			Lock: h.id, Token: h.token, Shared: shared, Held: time.Duration(c.clock.now() - h.since), Err: err,
		})
	}
	return c.opErr("release", h.id.Name, err)
}

// leave ends the handle, and the hold when it was the last. It reports whether it
// was. Client.mu is held.
func (l *Lock) leave() bool {
	h := l.h
	l.gone = ErrReleased
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
	h.c.leave(h)
	return true
}

// giveUp tells the backend that the lease is over, or how long it is to stay. A lease
// whose acquire may still arrive once more is abandoned, so that it is not granted again,
// to nobody.
func (c *Client) giveUp(ctx context.Context, h *hold) error {
	if h.stays() > 0 {
		return c.leaveAlone(ctx, h)
	}
	unknown := false
	for n := 0; ; n++ {
		err := c.try(ctx, func(ctx context.Context) error { return c.b.Release(ctx, h.releaseRequest(h.late)) })
		switch {
		case err == nil, errors.Is(err, ErrLost) && unknown:
			// Unknown before: that release worked, or the lease ended since.
			return nil
		case errors.Is(err, ErrLost):
			return &LostError{Name: h.id.Name, Token: h.token, Cause: CauseGone}
		case errors.Is(err, backend.ErrSessionLost):
			return &LostError{Name: h.id.Name, Token: h.token, Cause: CauseSession}
		case errors.Is(err, ErrClosed):
			return &OpError{Op: "release", Name: h.id.Name, Backend: c.caps.Name, MayHold: true, Err: err}
		}
		unknown = true
		if isUnavailable(err) && c.clock.now() < h.lastEnd() && c.pause(ctx, backoff(n)) {
			continue
		}
		req := h.releaseRequest(true)
		return c.goOn(h, err, func(ctx context.Context) error { return c.b.Release(ctx, req) })
	}
}

// goOn leaves to the background what err kept from being done with h.
func (c *Client) goOn(h *hold, err error, f func(context.Context) error) error {
	c.cfg.Events.ambiguous("release")
	c.mu.Lock()
	c.settleBy(h.releaseRequest(true), h.life, f)
	c.mu.Unlock()
	return &OpError{Op: "release", Name: h.id.Name, Backend: c.caps.Name, MayHold: true, Err: fmt.Errorf("goes on in the background: %w", err)}
}

// lastEnd is when the lease is over on this side whatever happens.
func (h *hold) lastEnd() instant {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	return h.ends()
}

// stays is for how long the lease has to stay out yet: see AtLeast.
func (h *hold) stays() time.Duration {
	if h.floor == 0 {
		return 0
	}
	return h.floor - time.Duration(h.c.clock.now()-h.since)
}

// leaveAlone lets the lease end by itself when it has stayed for long enough.
func (c *Client) leaveAlone(ctx context.Context, h *hold) error {
	leave := func(ctx context.Context) error {
		stay := h.stays()
		if stay <= 0 {
			return c.b.Release(ctx, h.releaseRequest(true))
		}
		res, err := c.b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{
			Name: h.id.Name, Lease: h.id.ID, TTL: min(max(stay, c.caps.MinTTL), c.caps.MaxTTL),
		}}})
		switch {
		case err != nil:
			return err
		case len(res.Leases) != 1:
			return &UnavailableError{Backend: c.caps.Name, Op: "renew", Err: errAnswer}
		}
		return res.Leases[0].Err
	}
	err := c.retry(ctx, leave)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLost):
		return &LostError{Name: h.id.Name, Token: h.token, Cause: CauseGone}
	}
	return c.goOn(h, err, leave)
}

// settle makes sure, in the background, that the lease is gone: an acquire that
// failed, timed out or was cancelled may have worked, and a release may not. It
// gives up when the lease has ended by itself, which one of a session does not do
// while that is renewed. Client.mu is held.
func (c *Client) settle(req backend.ReleaseRequest, ttl time.Duration) {
	req.Abandon = true
	c.settleBy(req, ttl, func(ctx context.Context) error { return c.b.Release(ctx, req) })
}

// settleBy is settle with its own way to end the lease. Client.mu is held.
func (c *Client) settleBy(req backend.ReleaseRequest, ttl time.Duration, end func(context.Context) error) {
	if c.background.Err() != nil {
		return
	}
	c.work.Go(func() {
		life := 2 * max(ttl, c.cfg.TTL)
		over := time.Now().Add(life)
		for n := 0; ; n++ {
			err := c.try(c.background, end)
			if err == nil || errors.Is(err, ErrLost) || errors.Is(err, backend.ErrSessionLost) {
				return
			}
			if c.sessionLives(req.Session) {
				over = time.Now().Add(life)
			}
			if !isUnavailable(err) || time.Now().After(over) || !pause(c.background, backoff(n)) {
				c.log().LogAttrs(c.background, levelWarn, "a lease of unknown state was left to its end", attrName(req.Name), attrError(err))
				return
			}
		}
	})
}

// sessionLives reports whether the session is the one that is renewed.
func (c *Client) sessionLives(id backend.SessionID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id != "" && c.sess != nil && c.sess.id == id && !c.sess.ended
}

// try makes one attempt, short enough that a connection on which nothing is answered
// does not use up the time of the others.
func (c *Client) try(ctx context.Context, f func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, c.cfg.Timeout/3)
	defer cancel()
	err := f(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil && !isAnswer(err) && !isUnavailable(err) {
		err = &UnavailableError{Backend: c.caps.Name, Op: "request", MayHold: true, Err: err}
	}
	return err
}

// lastError is what f gives where it must not be called again.
type lastError struct{ err error }

func (e *lastError) Error() string { return e.err.Error() }

// retry calls f until it gives anything but ErrUnavailable, ctx ends, or
// Config.Timeout is over.
func (c *Client) retry(ctx context.Context, f func(context.Context) error) error {
	return c.retryWith(ctx, c.pause, f)
}

// retryWith is retry with its own way to wait between attempts.
func (c *Client) retryWith(ctx context.Context, pause func(context.Context, time.Duration) bool, f func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	var away error
	for n := 0; ; n++ {
		err := c.try(within, f)
		if last, ok := errors.AsType[*lastError](err); ok {
			return joinCause(ctx, last.err)
		}
		switch {
		case err == nil || !isUnavailable(err) && within.Err() == nil:
			return err
		case isUnavailable(err):
			away = err
		}
		if !pause(within, backoff(n)) {
			if ctx.Err() == nil && within.Err() == nil {
				return ErrClosed
			}
			if ctx.Err() == nil && away == nil {
				away = &UnavailableError{Backend: c.caps.Name, Op: "request", MayHold: true, Err: err}
			}
			return joinCause(ctx, away)
		}
	}
}

// joinCause is why ctx ended, if it did, and err.
func joinCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil:
		return err
	case err == nil:
		return cause
	default:
		return fmt.Errorf("%w (%w)", cause, err)
	}
}

// longestPause is the most that backoff gives.
const longestPause = 2 * time.Second

// backoff is how long to wait before the next attempt: 10 ms, doubling to 2 s, with
// jitter.
func backoff(n int) time.Duration {
	d := min(10*time.Millisecond<<min(n, 8), longestPause)
	return d/2 + rand.N(d/2)
}

// pause waits, and reports false when ctx ended or the client is being closed.
func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	return pause(ctx, d)
}

// pause waits, and reports false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
