package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// answers are causes of contexts that look like answers of a backend: an errgroup has the error of its first
// goroutine, and a lock its loss.
func answers() map[string]error {
	return map[string]error{
		"held":         &backend.HeldError{Name: "other", Holders: []backend.Holder{{Token: 1}}, Count: 1},
		"lost":         &holdfast.LostError{Name: "other", Cause: holdfast.CauseBroken},
		"session lost": backend.ErrSessionLost,
		"invalid":      &backend.InvalidError{Field: "ttl"},
		"unsupported":  backend.ErrUnsupported,
		"quarantine":   backend.ErrQuarantine,
		"gave up":      errors.New("gave up"),
	}
}

// eachAnswer runs a test for each of them: on a backend that returns the cause as it is, and on one that
// wraps it.
func eachAnswer(t *testing.T, test func(t *testing.T, cause error, end func(context.Context) error)) {
	t.Helper()
	for name, cause := range answers() {
		for how, end := range map[string]func(context.Context) error{
			"as it is": context.Cause,
			"wrapped": func(ctx context.Context) error {
				return &backend.UnavailableError{Backend: "memory", Op: "call", MayHold: true, Err: context.Cause(ctx)}
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { test(t, cause, end) })
			})
		}
	}
}

// C7: a wait ends with its context, whose cause looks like an answer. Its place in the queue is given up: it
// would be granted later, and kept by the session for ever.
func TestCauseOfAWait(t *testing.T) {
	t.Parallel()
	eachAnswer(t, func(t *testing.T, cause error, end func(context.Context) error) {
		t.Helper()
		f, store := newFaults(t)
		holder := newClient(t, openStore(t, store), holdfast.Config{})
		held := mustAcquire(t, holder, "n")
		c := newClient(t, f, holdfast.Config{})
		own := mustAcquire(t, c, "own")
		cutShort := func(ctx context.Context, call func() (backend.Grant, error)) (backend.Grant, error) {
			if g, err := call(); ctx.Err() == nil {
				return g, err
			}
			return backend.Grant{}, end(ctx)
		}
		f.acquire.Store(&cutShort)
		ctx, giveUp := context.WithCancelCause(t.Context())
		go func() { time.Sleep(time.Second); giveUp(cause) }()
		_, err := c.Acquire(ctx, "n")
		if !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
		mayHold(t, err)
		synctest.Wait()
		if err := own.Err(); err != nil {
			t.Errorf("another lock of the client: %v", err)
		}
		mustRelease(t, held)
		if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("the lock has no holder, and cannot be acquired: %+v", info)
		}
	})
}

// A release whose context ends, with a cause that looks like an answer, continues in the background.
func TestCauseOfARelease(t *testing.T) {
	t.Parallel()
	eachAnswer(t, func(t *testing.T, cause error, end func(context.Context) error) {
		t.Helper()
		for _, stays := range []time.Duration{0, time.Minute} {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			opts := []holdfast.AcquireOption{holdfast.TTL(time.Hour)}
			if stays > 0 {
				opts = append(opts, holdfast.AtLeast(stays))
			}
			lock := mustAcquire(t, c, "n", opts...)
			cutShort := func(ctx context.Context, call func() error) error {
				if ctx.Err() != nil {
					return end(ctx)
				}
				return call()
			}
			renew := func(ctx context.Context, call func() (backend.RenewResult, error)) (backend.RenewResult, error) {
				if ctx.Err() != nil {
					return backend.RenewResult{}, end(ctx)
				}
				return call()
			}
			f.release.Store(&cutShort)
			f.renew.Store(&renew)
			ctx, giveUp := context.WithCancelCause(t.Context())
			giveUp(cause)
			err := lock.Release(ctx)
			if errors.Is(err, holdfast.ErrLost) && !errors.Is(cause, holdfast.ErrLost) {
				t.Errorf("%v", err)
			}
			mayHold(t, err)
			time.Sleep(stays + time.Second)
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) > 0 {
				t.Errorf("AtLeast(%s): the lock has no holder, and cannot be acquired: %+v", stays, info)
			}
		}
	})
}
