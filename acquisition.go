package holdfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// acquisition is one call of Acquire, with as many attempts as it needs.
type acquisition struct {
	c       *Client
	req     backend.AcquireRequest
	s       settings
	begun   clock.Instant
	unknown bool  // an attempt was cut short: the lease may be held
	away    error // the last ErrUnavailable
	// givenUp are the leases of earlier attempts that are being released in the background. Until
	// that is done they may hold the lock.
	givenUp []LeaseID
}

var errWaitOver = errors.New("the wait time has elapsed")

// run makes attempts until the lock is granted or a further attempt is pointless.
func (a *acquisition) run(ctx context.Context) (*Lock, error) {
	c := a.c
	within, cancel := a.bound(ctx)
	defer cancel()
	for n := 0; ; n++ {
		h, err := a.prepare(within)
		if err == nil {
			var lock *Lock
			if lock, err = a.attempt(ctx, within, h); err == nil {
				return lock, nil
			}
		}
		if a.again(within, err, n) {
			continue
		}
		if a.s.wait > 0 && isOver(ctx, within) && !isUnavailable(err) && c.closing.Err() == nil {
			var lock *Lock
			if lock, err = a.last(ctx); err == nil {
				return lock, nil
			}
		}
		return nil, a.fail(ctx, within, err)
	}
}

// bound limits the attempts to the time that the caller wants to wait, or, if it does not want to
// wait, to the time for which an unavailable backend is retried.
func (a *acquisition) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case a.s.wait < 0:
		return ctx, func() {} // each attempt has a context of its own that ends
	case a.s.wait == 0:
		return context.WithTimeoutCause(ctx, a.c.cfg.Timeout, errWaitOver)
	default:
		return context.WithTimeoutCause(ctx, a.s.wait, errWaitOver)
	}
}

// prepare chooses the session and the lease ID of the next attempt. The lease ID stays the same, so
// that a lost reply does not mean two grants. A new session brings a new lease ID: a lease of the
// old session that was granted after all would die with that session.
func (a *acquisition) prepare(ctx context.Context) (*hold, error) {
	c := a.c
	var sess *liveness.Session
	if c.caps.Sessions && (a.req.Wait || !a.req.Timed) {
		var err error
		if sess, err = c.liveSession(ctx); err != nil {
			return nil, err
		}
	}
	if sess != nil && sess.ID != a.req.Session {
		if a.req.Session != "" && a.req.Lease != "" && a.s.lease == "" {
			a.abandon()
		}
		a.req.Session = sess.ID
	}
	if a.req.Lease == "" {
		a.req.Lease = a.s.lease
	}
	if a.req.Lease == "" {
		a.req.Lease = backend.NewLeaseID()
	}
	h := &hold{
		c: c, owner: a.req.Owner, begun: a.begun,
		shared: a.req.Mode == backend.Shared, limit: a.req.Limit, permits: a.req.Permits,
	}
	h.live = liveness.Lease{
		Holder: h, Name: a.req.Name, ID: a.req.Lease, Session: sess, Timed: a.req.Timed, Life: a.req.TTL,
		Late: a.unknown,
	}
	if a.req.Timed && !a.s.noRenew {
		h.live.TTL = a.req.TTL
	}
	return h, nil
}

// attempt sends one request.
func (a *acquisition) attempt(ctx, within context.Context, h *hold) (*Lock, error) {
	c := a.c
	within, interrupt := context.WithCancelCause(within)
	defer interrupt(nil)
	if err := c.begins(h, interrupt); err != nil {
		return nil, err
	}
	missed := c.clock.Missed()
	grant, err := c.b.Acquire(within, a.req)
	if err != nil {
		c.ends(h)
		if cause := context.Cause(within); cause != nil && !isAnswer(err) {
			a.unknown = true
			err = cause
		}
		return nil, err
	}
	a.unknown = true // until it is ours it is nobody's
	lock, err := c.grant(ctx, h, a.s, grant, c.clock.At(grant.Asked, missed))
	c.stopWaiting(h)
	if err != nil {
		c.ends(h)
		return nil, err
	}
	return lock, nil
}

// isAnswer reports whether err is an answer of the backend, rather than a call that was cut short.
func isAnswer(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported) ||
		errors.Is(err, ErrLost) || errors.Is(err, backend.ErrSessionLost) || errors.Is(err, ErrQuarantine)
}

// isRefusal reports whether err says why the lock was not granted, so that a retry is pointless.
func isRefusal(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrQuarantine)
}

// isOver reports whether within has ended only because Wait has elapsed.
func isOver(ctx, within context.Context) bool {
	return errors.Is(context.Cause(within), errWaitOver) && ctx.Err() == nil
}

// begins registers h, so that a loss reported while its request is in progress is not missed.
func (c *Client) begins(h *hold, interrupt interrupter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case !c.live.Expect(&h.live):
		return backend.ErrSessionLost
	}
	c.waiting[h] = interrupt
	return nil
}

// ends removes h, which was not granted.
func (c *Client) ends(h *hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, h)
	c.live.Drop(&h.live)
}

func (c *Client) stopWaiting(h *hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, h)
}

// again reports whether to retry after err. It pauses first if a pause is due.
func (a *acquisition) again(within context.Context, err error, n int) bool {
	c := a.c
	var away *UnavailableError
	switch {
	case a.heldByOurs(err):
		return c.pause(within, min(backoff(n), 100*time.Millisecond))
	case errors.Is(err, ErrClosed), errors.Is(err, ErrHeld), errors.Is(err, ErrInvalid), errors.Is(err, ErrUnsupported):
		return false
	case errors.Is(err, backend.ErrSessionLost):
		c.sessionGone(a.req.Session)
		return c.pause(within, min(backoff(n), 100*time.Millisecond))
	case errors.Is(err, ErrLost):
		// Granted and lost before it became ours, or abandoned: this ID cannot be used again.
		a.abandon()
		return a.s.lease == "" && c.pause(within, min(backoff(n), 100*time.Millisecond))
	case errors.Is(err, ErrQuarantine):
		errors.As(err, &away)
		a.away = err
		a.unknown = a.unknown || away != nil && away.MayHold
		return c.sitOut(within, err) && a.s.wait != 0
	case within.Err() != nil:
		return false
	case errors.As(err, &away):
		a.away = err
		a.unknown = a.unknown || away.MayHold
		return c.pause(within, max(backoff(n), min(away.RetryAfter, time.Second)))
	default:
		return isUnavailable(err) && c.pause(within, backoff(n))
	}
}

// heldByOurs reports whether only earlier attempts of this acquisition hold the lock. For the
// caller it is then free.
func (a *acquisition) heldByOurs(err error) bool {
	held, ok := errors.AsType[*HeldError](err)
	return ok && len(held.Holders) > 0 && held.Count <= len(held.Holders) && !slices.ContainsFunc(held.Holders, func(h Holder) bool { return !slices.Contains(a.givenUp, h.Lease) })
}

// sessionGone ends the client's session if it is id, which the backend no longer knows.
func (c *Client) sessionGone(id backend.SessionID) {
	c.mu.Lock()
	s := c.sess
	c.mu.Unlock()
	if s != nil && s.ID == id {
		c.sessionIsLost(s)
	}
}

// abandon releases the lease ID in the background. The next attempt has another ID.
func (a *acquisition) abandon() {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.unknown && a.req.Lease != "" && a.s.lease == "" { // see WithLease
		c.settle(a.settleRequest(), a.req.Session, a.req.TTL)
		a.givenUp = append(a.givenUp, a.req.Lease)
	}
	a.unknown = false
	a.req.Lease = a.s.lease
}

func (a *acquisition) settleRequest() backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: a.req.Name, Lease: a.req.Lease, Session: a.req.Session, Abandon: true}
}

// last makes one more attempt, without waiting, when Wait has elapsed: its refusal says who holds
// the lock, or why no client does. If the lease was granted in the meantime, the caller gets it.
// The place in the queue is released.
func (a *acquisition) last(ctx context.Context) (*Lock, error) {
	c := a.c
	within, cancel := context.WithTimeout(ctx, min(c.cfg.Timeout, time.Second))
	defer cancel()
	h, err := a.prepare(within)
	if err == nil {
		a.req.Wait = false
		var lock *Lock
		if lock, err = a.attempt(ctx, within, h); err == nil {
			return lock, nil
		}
		if a.s.lease == "" && c.b.Release(within, a.settleRequest()) == nil {
			a.unknown = false
		}
	}
	c.warnQuarantine(err)
	if !isRefusal(err) && !isUnavailable(err) && ctx.Err() == nil {
		err = &UnavailableError{
			Backend: c.caps.Name, Op: "acquire", MayHold: a.unknown,
			Err: fmt.Errorf("the holder of the lock is unknown: %v", err), //nolint:errorlint // the loss of a place is not the loss of the lock
		}
	}
	return nil, err
}

// sitOut waits until a quarantine ends, but at most a second, because another client may end it
// sooner. It reports false when within has ended.
func (c *Client) sitOut(within context.Context, err error) bool {
	c.warnQuarantine(err)
	const shortest, longest, jitter = time.Millisecond, time.Second, 10 * time.Millisecond
	left := longest
	if q, ok := errors.AsType[*QuarantineError](err); ok {
		left = min(max(q.Left, shortest), longest)
	}
	return c.pause(within, left+rand.N(jitter))
}

// warnQuarantine logs a quarantine once.
func (c *Client) warnQuarantine(err error) {
	q, ok := errors.AsType[*QuarantineError](err)
	if !ok {
		return
	}
	const slack = 2 * time.Second // the reported end is never exact
	c.mu.Lock()
	known := q.Until.Before(c.warned)
	if !known {
		c.warned = q.Until.Add(slack)
	}
	c.mu.Unlock()
	if !known {
		c.log().LogAttrs(c.background, levelWarn, "no lock is granted yet: the store is in quarantine", slog.String("backend", q.Backend),
			slog.String("reason", q.Reason), slog.Duration("for", q.Left.Round(time.Millisecond)),
			slog.Time("until", q.Until), slog.String("turned_off_by", q.Parameter))
	}
}

// fail returns why the lock was not granted, and makes sure that it is not held.
func (a *acquisition) fail(ctx, within context.Context, err error) error {
	c := a.c
	if q, ok := errors.AsType[*QuarantineError](a.away); ok && q.Until.Before(time.Now()) {
		a.away = nil // the quarantine has ended: the wait since then had another reason
	}
	switch {
	case c.closing.Err() != nil:
		err = ErrClosed
	case ctx.Err() != nil:
		err = joinCause(ctx, a.away)
	case isOver(ctx, within) && !isRefusal(err) && !isUnavailable(err):
		if err = a.away; err == nil {
			err = &UnavailableError{Backend: c.caps.Name, Op: "acquire", MayHold: a.unknown, Err: context.DeadlineExceeded}
		}
	}
	switch {
	case a.unknown:
		hook(ctx, &c.hooks, c.hooks.Ambiguous, "acquire")
		a.abandon()
	case len(a.givenUp) == 0:
		return err
	}
	mayHold := a.s.lease != "" || !errors.Is(err, ErrHeld) // a refusal after a wait: it has left the queue, or will
	return &OpError{Op: "acquire", Name: a.req.Name, Backend: c.caps.Name, MayHold: mayHold, Err: err}
}
