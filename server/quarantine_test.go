package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// A store in quarantine is answered with 503, its end and the reason, and never with 409, also
// for requests that would wait; the server is not ready.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	f := &faulty{Backend: memlock.NewStore().Open()}
	until := time.Now().Add(time.Hour)
	f.until.Store(&until)
	a := serve(t, f, server.Config{})
	for _, ask := range []struct{ method, path, body string }{
		{"POST", "/v1/locks/a", `{}`},
		{"POST", "/v1/locks/a", `{"wait":"20ms"}`},
		{"POST", "/v1/locks/a", `{"wait":"20ms","lease":"0123456789abcdef"}`},
		{"GET", "/readyz", ""},
	} {
		got := a.call(ask.method, ask.path, ask.body)
		var p wire.Problem
		if err := json.Unmarshal(got.body, &p); err != nil {
			t.Fatal(err)
		}
		seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))
		if got.status != 503 || p.Type != wire.TypeQuarantine || p.Reason != "it is a test" || p.Backend != "memory" || p.Parameter != "quarantine=off" ||
			time.Duration(p.Left) < 50*time.Minute || time.Duration(seconds)*time.Second < time.Duration(p.Left) || p.MayHold != nil && *p.MayHold {
			t.Errorf("%+v: status %d, Retry-After %d, %s", ask, got.status, seconds, got.body)
		}
	}
}

// A client of the server sees the quarantine as such; a waiter has the lock at its end.
func TestQuarantineOverHTTP(t *testing.T) {
	t.Parallel()
	f := &faulty{Backend: memlock.NewStore().Open()}
	until := time.Now().Add(time.Hour)
	f.until.Store(&until)
	a := serve(t, f, server.Config{})
	b, err := remotelock.Open(t.Context(), strings.Replace(a.base, "http:", "holdfast:", 1), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if name := b.Capabilities().Name; name == "" {
		t.Error("no capabilities")
	}
	told := func(err error) {
		t.Helper()
		q, ok := errors.AsType[*backend.QuarantineError](err)
		if !ok || q.Backend != "memory" || q.Reason != "it is a test" || q.Left < 50*time.Minute || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("told %v", err)
		}
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold || away.RetryAfter < 50*time.Minute {
			t.Errorf("told %+v", away)
		}
	}
	told(b.Quarantined(t.Context()))
	req := backend.AcquireRequest{Name: "a", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
	for _, req.Wait = range []bool{false, true} {
		_, err = b.Acquire(t.Context(), req)
		told(err)
	}
	soon := time.Now().Add(500 * time.Millisecond)
	f.until.Store(&soon)
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	lock, err := c.Acquire(t.Context(), "a", holdfast.Wait(patience))
	if err != nil {
		t.Fatal(err)
	}
	if time.Now().Before(soon) {
		t.Error("granted in the quarantine")
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A client may be opened while the store of the server is unavailable: the calls report that,
// and a waiter gets the lock when the failure has ended.
func TestOpenedWhileTheStoreIsAway(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	f := &faulty{Backend: memlock.NewStore().Open()}
	f.away.Store(true)
	a := serve(t, f, server.Config{})
	b, err := remotelock.Open(t.Context(), strings.Replace(a.base, "http:", "holdfast:", 1), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if caps := b.Capabilities(); caps.MaxTTL == 0 || !caps.Timed {
		t.Errorf("its capabilities are %+v", caps)
	}
	if err := b.Quarantined(t.Context()); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrQuarantine) {
		t.Errorf("a server whose store is unavailable is ready: %v", err)
	}
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	if _, err := c.Acquire(t.Context(), "a", holdfast.Wait(0)); !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("Acquire: %v", err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := c.Acquire(t.Context(), "b", holdfast.Wait(patience))
		granted <- err
	}()
	f.away.Store(false)
	if err := <-granted; err != nil {
		t.Error(err)
	}
}
