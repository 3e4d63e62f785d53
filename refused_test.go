package holdfast_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/leasetest"
)

func refused(mayHold bool) error {
	return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: mayHold, Err: connect.Lacks("memory", "to write", errWire)}
}

// What the store refuses until an operator changes something there is not retried: the caller, who
// would wait for hours, learns what is missing.
func TestRefused(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{Timeout: time.Hour})
	told := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, holdfast.ErrRefused) || !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
			t.Fatalf("%s: the kinds of %v", what, err)
		}
		for _, part := range []string{`"a" on memory`, "the user lacks the right to write", "docs/backends/memory.md", "refused by the store"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", what, err, part)
			}
		}
	}
	ctx := leasetest.Within(t)
	no := func(context.Context, func() error) error { return refused(false) }
	f.open.Store(&no)
	_, err := c.Acquire(ctx, "a")
	told("open session", err)
	f.open.Store(nil)
	for _, mayHold := range []bool{false, true} {
		f.acquires.Store(0)
		noGrant := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
			return backend.Grant{}, refused(mayHold)
		}
		f.acquire.Store(&noGrant)
		_, err = c.Acquire(ctx, "a")
		told("acquire", err)
		if op, ok := errors.AsType[*holdfast.OpError](err); !ok || op.MayHold != mayHold || f.acquires.Load() != 1 {
			t.Errorf("acquire: %+v after %d attempts", op, f.acquires.Load())
		}
	}
	f.acquire.Store(nil)
	lock, err := c.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	f.release.Store(&no)
	told("release", lock.Release(ctx))
	f.release.Store(nil) // the release continues in the background
	lock, err = c.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
}

// A value that the store refuses, such as a token, is not an invalid request for the metrics either.
func TestRefusedValue(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	var results []holdfast.Result
	c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{Failed: func(_ context.Context, e holdfast.FailedEvent) {
		results = append(results, e.Result)
	}}})
	no := func(context.Context, func() (backend.Grant, error)) (backend.Grant, error) {
		return backend.Grant{}, &backend.RefusedError{Backend: "memory", Remedy: "give another", Err: &backend.InvalidError{Field: "credentials", Value: "as given", Bound: "allowed"}}
	}
	f.acquire.Store(&no)
	if _, err := c.Acquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrRefused) {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil { // it waits for the hooks
		t.Error(err)
	}
	if !slices.Equal(results, []holdfast.Result{holdfast.ResultUnavailable}) {
		t.Errorf("the results are %v", results)
	}
}

// A right that is taken away and given back costs no lock: renewals are retried until the lease ends.
func TestRefusedRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{TTL: 2 * time.Second})
		lock, err := c.Acquire(leasetest.Within(t), "a")
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan struct{}, 1000)
		no := func(context.Context, func() (backend.RenewResult, error)) (backend.RenewResult, error) {
			asked <- struct{}{}
			return backend.RenewResult{}, refused(false)
		}
		f.renew.Store(&no)
		<-asked
		<-asked
		f.renew.Store(nil)
		before := f.renewals.Load()
		leasetest.Eventually(t, "it is renewed", func() bool { return f.renewals.Load() > before })
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
	})
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

// So it is with renewals.
func TestUnavailableRenewalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		log := &logged{}
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))})
		lock, err := c.Acquire(leasetest.Within(t), "a")
		if err != nil {
			t.Fatal(err)
		}
		for outage := 1; outage <= 2; outage++ {
			asked := make(chan struct{}, 1000)
			away := func(context.Context, func() (backend.RenewResult, error)) (backend.RenewResult, error) {
				asked <- struct{}{}
				return backend.RenewResult{}, unavailable(false)
			}
			f.renew.Store(&away)
			for range 3 {
				<-asked
			}
			f.renew.Store(nil)
			before := f.renewals.Load()
			leasetest.Eventually(t, "it is renewed", func() bool { return f.renewals.Load() > before })
			synctest.Wait() // for what follows the answer
			if n := log.lines("level=WARN"); n != outage {
				t.Errorf("%d warnings after %d outages", n, outage)
			}
		}
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
	})
}
