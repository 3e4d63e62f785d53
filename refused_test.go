package holdfast_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// A store that refuses its client from the start is not retried, though the context has no end. One that
// has answered before is: a password may be changed in two places one after the other.
func TestRefused(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	refuse := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, &backend.UnavailableError{
			Backend: "memory", Op: "acquire", Err: &backend.RefusedError{Remedy: "correct the password", Err: errors.New("it is wrong")},
		}
	}
	f.acquire.Store(&refuse)
	for _, opts := range [][]holdfast.AcquireOption{nil, {holdfast.Wait(time.Hour)}, {holdfast.Wait(0)}} {
		_, err := c.Acquire(t.Context(), "a", opts...)
		refused, ok := errors.AsType[*holdfast.RefusedError](err)
		if !ok || !errors.Is(err, holdfast.ErrRefused) || !errors.Is(err, holdfast.ErrUnavailable) || refused.Remedy != "correct the password" ||
			!strings.Contains(err.Error(), refused.Remedy) {
			t.Errorf("refused: %v", err)
		}
	}
	if n := f.acquires.Load(); n != 3 {
		t.Errorf("the store was asked %d times", n)
	}
	f.acquire.Store(nil)
	lock, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.acquire.Store(&refuse)
	before := f.acquires.Load()
	mended := make(chan struct{})
	go func() {
		defer close(mended)
		for f.acquires.Load() < before+3 {
			<-time.After(time.Millisecond)
		}
		f.acquire.Store(nil)
	}()
	if _, err := c.Acquire(t.Context(), "a"); err != nil {
		t.Errorf("after it was mended: %v", err)
	}
	<-mended
}

// The first failure is logged, and the next one only after an answer.
func TestUnavailableIsLoggedOnce(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	log := &logged{}
	c := newClient(t, f, holdfast.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	for outage := 1; outage <= 2; outage++ {
		fails := 3
		away := func(_ context.Context, do func() (backend.Grant, error)) (backend.Grant, error) {
			if fails == 0 {
				return do()
			}
			fails--
			return backend.Grant{}, unavailable(false)
		}
		f.acquire.Store(&away)
		lock, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := log.lines("level=WARN"); n != outage {
			t.Errorf("%d warnings after %d outages", n, outage)
		}
	}
}
