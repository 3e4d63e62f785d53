// Package leasetest is what the tests of backends share: how to wait for what must happen, how
// to request a lock in a test, and faults that each backend on a database must survive.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Patience bounds what must happen, on a machine however busy.
const Patience = time.Minute

// Long is the TTL of a session that outlives the patience of a test: what goes while the test waits
// does not go because the session expires.
const Long = 5 * Patience

// Within returns a context that ends with the patience of the tests.
func Within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Session opens a session.
func Session(t *testing.T, b backend.Backend, ttl time.Duration, lost func(backend.Loss)) backend.SessionID {
	t.Helper()
	id := backend.NewSessionID()
	_, err := steadily(t, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.OpenSession(ctx, backend.SessionRequest{ID: id, TTL: ttl, Lost: lost})
	})
	if err != nil {
		t.Fatalf("open session: %v", err)
	}
	return id
}

// Ask returns a request for an exclusive lock that waits.
func Ask(name string, id backend.SessionID) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id, Wait: true}
}

// Take takes the lock, or fails the test.
func Take(t *testing.T, b backend.Backend, req backend.AcquireRequest) fence.Token {
	t.Helper()
	g, err := steadily(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
	if err != nil {
		t.Fatalf("acquire %q: %v", req.Name, err)
	}
	return g.Token
}

// Give releases it, or fails the test. If it is gone the second time, the first release worked.
func Give(t *testing.T, b backend.Backend, req backend.AcquireRequest) {
	t.Helper()
	times := 0
	_, err := steadily(t, func(ctx context.Context) (struct{}, error) {
		times++
		return struct{}{}, b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session})
	})
	if err != nil && (times == 1 || !errors.Is(err, backend.ErrLost)) {
		t.Fatalf("release %q: %v", req.Name, err)
	}
}

// Eventually waits until the condition is true.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	if !patiently(cond) {
		tb.Fatalf("not within %s: %s", Patience, what)
	}
}

// Succeeds waits until f returns nil.
func Succeeds(tb testing.TB, f func() error) {
	tb.Helper()
	var err error
	if !patiently(func() bool { err = f(); return err == nil }) {
		tb.Fatal(err)
	}
}

// patiently calls cond again and again, and reports whether it became true.
func patiently(cond func() bool) bool {
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
	return true
}

// InQueue waits until n waiters are queued.
func InQueue(t *testing.T, b backend.Backend, name string, n int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d in the queue for %q", n, name), func() bool {
		info, err := b.Inspect(Within(t), name)
		return err == nil && len(info.Waiters) == n
	})
}

// Answer is the result of an Acquire in progress.
type Answer struct {
	Grant backend.Grant
	Err   error
}

// Start starts an Acquire, and returns a channel for its result.
func Start(t *testing.T, b backend.Backend, req backend.AcquireRequest) <-chan Answer {
	t.Helper()
	ctx := Within(t)
	got := make(chan Answer, 1)
	go func() {
		g, err := b.Acquire(ctx, req)
		got <- Answer{g, err}
	}()
	return got
}

// InsistOn is Insist for calls that return only an error.
func InsistOn(t *testing.T, call func(context.Context) error) error {
	t.Helper()
	_, err := Insist(t, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// Insist retries until there is an answer.
func Insist[T any](t *testing.T, call func(context.Context) (T, error)) (T, error) {
	t.Helper()
	return insist(t, 0, call)
}

// steadily is Insist that begins to retry after an attempt that took so long that the machine must have
// stood still. A store that soon says that it is unavailable gets no second chance.
func steadily[T any](t *testing.T, call func(context.Context) (T, error)) (T, error) {
	t.Helper()
	const standstill = 2 * time.Second
	return insist(t, standstill, call)
}

func insist[T any](t *testing.T, standstill time.Duration, call func(context.Context) (T, error)) (T, error) {
	t.Helper()
	stood := false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	for {
		began := time.Now()
		v, err := call(ctx)
		stood = stood || time.Since(began) >= standstill
		if !errors.Is(err, backend.ErrUnavailable) || !stood || ctx.Err() != nil {
			return v, err
		}
		select {
		case <-time.After(20 * time.Millisecond): //nolint:mnd // soon
		case <-ctx.Done():
		}
	}
}
