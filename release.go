package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Release releases the lock. Its context ends first. If re-entry made several handles of one lease,
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
		err = fmt.Errorf("%w before: %w", ErrReleased, ErrLost)
	}
	last, shared := err == nil && l.leave(), h.shared
	if last {
		c.work.Add(1)
	}
	c.mu.Unlock()
	if last {
		defer c.work.Done()
		err = c.giveUp(ctx, h)
		hook(ctx, &c.hooks, c.hooks.Released, ReleasedEvent{
			Lock: h.id(), Token: h.token, Shared: shared, Held: time.Duration(c.clock.Now() - h.since), Err: err,
		})
	}
	return c.opErr("release", h.live.Name, err)
}

// leave ends the handle, and the hold if it was the last handle. It reports whether it was.
// Client.mu is held.
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
		err := c.try(ctx, func(ctx context.Context) error { return c.b.Release(ctx, h.releaseRequest(h.live.Late)) })
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
		if isUnavailable(err) && c.clock.Now() < h.lastEnd() && c.pause(ctx, backoff(n)) {
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
	c.settleBy(h.live.Name, h.keptBy(), h.live.Life, f)
	c.mu.Unlock()
	return &OpError{Op: "release", Name: h.live.Name, Backend: c.caps.Name, MayHold: true, Err: fmt.Errorf("goes on in the background: %w", err)}
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
		res, err := c.sendRenewal(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{
			Name: h.live.Name, Lease: h.live.ID, TTL: min(max(stay, c.caps.MinTTL), c.caps.MaxTTL),
		}}})
		if err != nil {
			return err
		}
		return res.Leases[0].Err
	}
	err := c.retry(ctx, leave)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLost):
		return &LostError{Name: h.live.Name, Token: h.token, Cause: CauseGone}
	}
	return c.goOn(ctx, h, err, leave)
}

// settle ensures, in the background, that the lease is gone: an acquire that failed, timed out or
// was cancelled may have worked, and a release may not have. It stops when the lease has ended by
// itself, which it does not do while keptBy, if any, is the session that is renewed. Client.mu is
// held.
func (c *Client) settle(req backend.ReleaseRequest, keptBy backend.SessionID, ttl time.Duration) {
	req.Abandon = true
	c.settleBy(req.Name, keptBy, ttl, func(ctx context.Context) error { return c.b.Release(ctx, req) })
}

// settleBy is settle with a given way to end the lease. Client.mu is held.
//
// The first attempt is made immediately. A backend that is too busy to answer in time leaves many to
// be repeated, and would be kept busy with nothing else, so further attempts wait for their turn.
func (c *Client) settleBy(name string, keptBy backend.SessionID, ttl time.Duration, end func(context.Context) error) {
	if c.background.Err() != nil {
		return
	}
	c.work.Go(func() {
		life := 2 * max(ttl, c.cfg.TTL)
		over := time.Now().Add(life)
		mayLive := func() bool {
			if c.sessionLives(keptBy) {
				over = time.Now().Add(life)
			}
			return time.Now().Before(over)
		}
		err := c.try(c.background, end)
		for n := 0; !settled(err); n++ {
			turns, long := c.further, c.cfg.Timeout // nothing waits for it, and the backend may need long
			if n == 0 {
				turns, long = c.second, c.cfg.Timeout/3
			}
			if !isUnavailable(err) || !mayLive() || !retry.Pause(c.background, backoff(n)) || !turns.enter(c.background, life, mayLive) {
				c.log().LogAttrs(c.background, levelWarn, "a lease of unknown state was left to its end", attrName(name), attrError(err))
				return
			}
			err = c.tryFor(c.background, long, end)
			turns.leave()
		}
	})
}

// settled reports whether a lease whose release was answered with err has ended.
func settled(err error) bool {
	return err == nil || errors.Is(err, ErrLost) || errors.Is(err, backend.ErrSessionLost)
}

// lane bounds how many attempts of settlements are made at the same time. Those that wait are
// admitted in their order.
type lane chan struct{}

func newLane() lane {
	const turns = 16
	return make(lane, turns)
}

// enter waits for a turn until ctx has ended, or needed returns false, which is called every so often.
// It reports whether there is a turn.
func (l lane) enter(ctx context.Context, often time.Duration, needed func() bool) bool {
	check := time.NewTicker(often)
	defer check.Stop()
	for {
		select {
		case l <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		case <-check.C:
			if !needed() {
				return false
			}
		}
	}
}

func (l lane) leave() { <-l }

// sessionLives reports whether id is the session that is being renewed.
func (c *Client) sessionLives(id backend.SessionID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id != "" && c.sess != nil && c.sess.ID == id && !c.sess.Ended()
}

// try makes one attempt. It is short enough that a connection that answers nothing does not use up
// the time of the other attempts.
func (c *Client) try(ctx context.Context, f func(context.Context) error) error {
	return c.tryFor(ctx, c.cfg.Timeout/3, f)
}

// tryFor makes one attempt of a given length.
func (c *Client) tryFor(ctx context.Context, long time.Duration, f func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	err := f(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil && !isAnswer(err) && !isUnavailable(err) {
		err = &UnavailableError{Backend: c.caps.Name, Op: "request", MayHold: true, Err: err}
	}
	return err
}

// lastError marks an error of f after which f must not be called again.
type lastError struct{ err error }

func (e *lastError) Error() string { return e.err.Error() }

// retry calls f until it returns anything but ErrUnavailable, ctx ends, or Config.Timeout has
// elapsed.
func (c *Client) retry(ctx context.Context, f func(context.Context) error) error {
	return c.retryWith(ctx, c.pause, f)
}

// retryWith is retry with a given way to pause between attempts.
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

// joinCause returns the cause of ctx, if ctx has ended, joined with err.
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

// longestPause bounds the result of backoff.
const longestPause = 2 * time.Second

// backoff returns how long to wait before the next attempt: 10 ms, doubling to 2 s, with jitter.
func backoff(n int) time.Duration {
	return retry.Delay(n, 10*time.Millisecond, longestPause)
}

// pause waits for d. It reports false when ctx has ended or the client is being closed.
func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	return retry.Pause(ctx, d)
}
