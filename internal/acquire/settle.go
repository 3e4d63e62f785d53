package acquire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/liveness"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Settle ensures, in the background, that a lease is gone: an acquire that failed, timed out or was
// cancelled may have worked, and a release may not have. It stops when the lease has ended by itself,
// twice its ttl from now. A lease that keptBy, if any, renews does not end while that session is open.
// Mu is held. The channel is closed when the first attempt has ended. It is nil, and nothing is done, when
// Close has stopped all work.
func (a *Agent) Settle(req backend.ReleaseRequest, keptBy *liveness.Session, ttl time.Duration) <-chan struct{} {
	req.Abandon = true
	return a.SettleBy(req.Name, keptBy, ttl, func(ctx context.Context) error { return a.Backend.Release(ctx, req) })
}

// SettleBy is Settle with a given way to end the lease. Mu is held.
//
// The first attempt is made immediately. A backend that is too busy to answer in time leaves many to
// be repeated, and would be kept busy with nothing else, so further attempts wait for their turn.
func (a *Agent) SettleBy(name string, keptBy *liveness.Session, ttl time.Duration, end func(context.Context) error) <-chan struct{} {
	if a.background.Err() != nil {
		return nil
	}
	first := make(chan struct{})
	a.work.run(func() {
		life := 2 * max(ttl, a.TTL)
		over := time.Now().Add(life)
		mayLive := func() bool {
			if a.isOpen(keptBy) {
				over = time.Now().Add(life)
			}
			return time.Now().Before(over)
		}
		err := a.Try(a.background, end)
		close(first)
		for n := 0; !settled(err); n++ {
			turns, long := a.further, a.Timeout // nothing waits for it, and the backend may need long
			if n == 0 {
				turns, long = a.second, a.Timeout/3
			}
			if !IsUnavailable(err) || !mayLive() || !retry.Pause(a.background, Backoff(n)) || !turns.enter(a.background, life, mayLive) {
				a.Logger.LogAttrs(a.background, slog.LevelWarn, "a lease of unknown state was left to its end",
					slog.String("lock", name), slog.String("error", err.Error()))
				return
			}
			err = a.tryFor(a.background, long, end)
			turns.leave()
		}
	})
	return first
}

// settled reports whether a lease whose release was answered with err has ended.
func settled(err error) bool {
	return err == nil || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrSessionLost)
}

func (a *Agent) isOpen(s *liveness.Session) bool {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return s != nil && !s.Ended()
}

// limiter bounds how many attempts of settlements are made at the same time. Those that wait are
// admitted in their order.
type limiter chan struct{}

func newLimiter() limiter {
	const turns = 16
	return make(limiter, turns)
}

// enter waits for a turn until ctx has ended, or needed returns false, which is called every so often.
// It reports whether there is a turn.
func (l limiter) enter(ctx context.Context, often time.Duration, needed func() bool) bool {
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

func (l limiter) leave() { <-l }

// Try makes one attempt. It is short enough that a connection that answers nothing does not use up
// the time of the other attempts.
func (a *Agent) Try(ctx context.Context, f func(context.Context) error) error {
	return a.tryFor(ctx, a.Timeout/3, f)
}

// tryFor makes one attempt of a given length.
func (a *Agent) tryFor(ctx context.Context, long time.Duration, f func(context.Context) error) error {
	bound := within(ctx, long, nil)
	defer bound.finish()
	err := f(bound)
	switch {
	case !IsCutShort(bound, err):
	case ctx.Err() == nil && !IsUnavailable(err):
		return &backend.UnavailableError{Backend: a.caps.Name, Op: "request", MayHold: true, Err: err}
	case IsAnswer(err): // it looks like one
		return errors.New(err.Error())
	}
	return err
}

// LastError marks an error of a function after which Retry must not call it again.
type LastError struct{ Err error }

// Error returns the text of Err.
func (e *LastError) Error() string { return e.Err.Error() }

// Retry calls f until it returns ErrRefused or anything but ErrUnavailable, ctx ends, Timeout has
// elapsed, or Close begins.
//
// Errors: those of f; the cause of ctx; ErrClosed.
func (a *Agent) Retry(ctx context.Context, f func(context.Context) error) error {
	return a.retryWith(ctx, a.Pause, a.Timeout/3, f)
}

// Patiently is Retry for a request that one answer from a slow backend is worth waiting for: an attempt
// may take all of Timeout, and Close does not end it.
func (a *Agent) Patiently(ctx context.Context, f func(context.Context) error) error {
	return a.retryWith(ctx, retry.Pause, a.Timeout, f)
}

// retryWith is Retry with a given way to pause between attempts, and a given length of each.
func (a *Agent) retryWith(ctx context.Context, pause func(context.Context, time.Duration) bool, long time.Duration, f func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	var away error
	for n := 0; ; n++ {
		err := a.tryFor(within, long, f)
		if last, ok := errors.AsType[*LastError](err); ok {
			return joinCause(ctx, last.Err)
		}
		switch {
		case err == nil || IsRefused(err) || !IsUnavailable(err) && within.Err() == nil:
			return err
		case IsUnavailable(err):
			away = err
		}
		if !pause(within, Backoff(n)) {
			if ctx.Err() == nil && within.Err() == nil {
				return backend.ErrClosed
			}
			if ctx.Err() == nil && away == nil {
				away = &backend.UnavailableError{Backend: a.caps.Name, Op: "request", MayHold: true, Err: err}
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

// IsRefused reports whether the store refuses until an operator changes something: a caller learns
// of it instead of waiting. Renewals and settlements are retried all the same, because they are only
// worth something before the lease ends.
func IsRefused(err error) bool { return errors.Is(err, backend.ErrRefused) }

// IsUnavailable reports whether a retry may help.
func IsUnavailable(err error) bool {
	return errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, backend.ErrClosed)
}

// LongestPause bounds the result of Backoff.
const LongestPause = 2 * time.Second

// Backoff returns how long to wait before the next attempt: 10 ms, doubling to 2 s, with jitter.
func Backoff(n int) time.Duration { return retry.Delay(n, 10*time.Millisecond, LongestPause) }

// Pause waits for d. It reports false when ctx has ended or Close has begun.
func (a *Agent) Pause(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.closing, cancel)()
	return retry.Pause(ctx, d)
}
