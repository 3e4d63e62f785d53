package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// quarantined makes the backend grant nothing for the given time.
func (f *faults) quarantined(d time.Duration) {
	until := time.Now().Add(d)
	refuse := func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
		left := time.Until(until)
		if left <= 0 {
			return do()
		}
		q := &backend.QuarantineError{Backend: "memory", Reason: "it is a test", Left: left, Until: until, Parameter: "quarantine=off"}
		return backend.Grant{}, q.Unavailable("memory", "acquire", false)
	}
	f.acquire.Store(&refuse)
}

// logged is a log that a test can read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) lines(with string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), with)
}

// A store in quarantine is unavailable. The remaining time and the reason are reported. The lock is
// not held, and no lease may be held.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	log := &logged{}
	c := newClient(t, f, holdfast.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	f.quarantined(time.Hour)
	told := func(err error) {
		t.Helper()
		q, ok := errors.AsType[*holdfast.QuarantineError](err)
		op, _ := errors.AsType[*holdfast.OpError](err)
		switch {
		case !ok || op == nil:
			t.Fatalf("%v; want a *QuarantineError in an *OpError", err)
		case q.Left <= 50*time.Minute || q.Reason != "it is a test" || op.MayHold:
			t.Errorf("told %+v, may hold: %t", q, op.MayHold)
		case !errors.Is(err, holdfast.ErrUnavailable) || !errors.Is(err, holdfast.ErrQuarantine) || errors.Is(err, holdfast.ErrHeld):
			t.Errorf("the kinds of %v", err)
		case !strings.Contains(err.Error(), "it is a test") || !strings.Contains(err.Error(), "quarantine=off"):
			t.Errorf("said: %v", err)
		}
	}
	_, err := c.TryAcquire(t.Context(), "a")
	told(err)
	_, err = c.Acquire(t.Context(), "a", holdfast.Wait(50*time.Millisecond))
	told(err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Acquire(ctx, "a")
	told(err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; the context ended it", err)
	}
	if n := log.lines("in quarantine"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// A waiter gets the lock when the quarantine has ended.
func TestQuarantineEnds(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	const lasts = 300 * time.Millisecond
	began := time.Now()
	f.quarantined(lasts)
	lock, err := c.Acquire(t.Context(), "a", holdfast.Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < lasts {
		t.Errorf("granted after %s", took)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
	// The quarantine ended long before the lock turns out to be held.
	lock, err = c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	f.quarantined(lasts)
	other := newClient(t, f, holdfast.Config{})
	_, err = other.Acquire(t.Context(), "a", holdfast.Wait(2*lasts))
	held, ok := errors.AsType[*holdfast.HeldError](err)
	if !ok || len(held.Holders) != 1 || held.Holders[0].Token != lock.Token() {
		t.Errorf("after the quarantine: %v", err)
	}
}

// When Wait has elapsed, the store is asked for the holder of the lock. If it does not answer, the
// lock is not called held. If the lock was granted just then, the caller has it. When the context has ended, the store is
// not asked, and the error names no holder.
func TestWaitEndsWithTheTruth(t *testing.T) {
	t.Parallel()
	f, store := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	holder := newClient(t, openStore(t, store), holdfast.Config{})
	lock, err := holder.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	at := func(fault func(ctx context.Context, do func() (backend.Grant, error)) (backend.Grant, error)) error {
		wait := func(ctx context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
			if f.lastAsked.Load().Wait {
				return do()
			}
			return fault(ctx, do)
		}
		f.acquire.Store(&wait)
		got, err := c.Acquire(t.Context(), "a", holdfast.Wait(20*time.Millisecond))
		if err == nil {
			err = got.Release(t.Context())
		}
		return err
	}
	err = at(func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, unavailable(false)
	})
	if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("with an unavailable store: %v", err)
	}
	err = at(func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, (&backend.QuarantineError{Backend: "memory", Left: time.Hour}).Unavailable("memory", "acquire", false)
	})
	if !errors.Is(err, holdfast.ErrQuarantine) || errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("where the store is in quarantine: %v", err)
	}
	err = at(func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) { return do() })
	if held, ok := errors.AsType[*holdfast.HeldError](err); !ok || len(held.Holders) != 1 || held.Holders[0].Token != lock.Token() {
		t.Errorf("where it is held: %v", err)
	}
	f.acquire.Store(nil)
	for _, opts := range [][]holdfast.AcquireOption{nil, {holdfast.Wait(time.Hour)}} {
		f.acquires.Store(0)
		mine := errors.New("the caller's own")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, mine)
		_, err = c.Acquire(ctx, "a", opts...)
		cancel()
		if _, named := errors.AsType[*holdfast.HeldError](err); named || !errors.Is(err, mine) || errors.Is(err, holdfast.ErrHeld) || f.acquires.Load() > 1 {
			t.Errorf("where the context ended: %v, after %d requests", err, f.acquires.Load())
		}
	}
	err = at(func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		return do()
	})
	if err != nil {
		t.Errorf("where it was free at last: %v", err)
	}
}
