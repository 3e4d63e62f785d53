package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redlock"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// patience bounds what must happen, on a machine however busy.
const patience = time.Minute

// open opens a Backend as one more process would.
func (c cluster) open(t testing.TB, params string) *redlock.Backend {
	t.Helper()
	b, err := redlock.Open(t.Context(), c.url(params), redlock.Config{})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// slow is a request timeout that no test can wait for: a test that passes waited for no node.
const slow = "timeout=45s"

func ask(name string, change ...func(*backend.AcquireRequest)) backend.AcquireRequest {
	r := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: 2 * time.Minute, Owner: "w7"}
	for _, f := range change {
		f(&r)
	}
	return r
}

func waiting(r *backend.AcquireRequest) { r.Wait = true }

func permits(limit int) func(*backend.AcquireRequest) {
	return func(r *backend.AcquireRequest) { r.Mode, r.Limit = backend.Shared, limit }
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// take retries until there is an answer: on a busy machine nodes seem to be unavailable.
func take(t testing.TB, b *redlock.Backend, r backend.AcquireRequest) backend.Grant {
	t.Helper()
	ctx := within(t, patience)
	for {
		g, err := b.Acquire(ctx, r)
		switch {
		case err == nil:
			return g
		case ctx.Err() != nil || !errors.Is(err, backend.ErrUnavailable):
			t.Fatalf("acquire %q: %v", r.Name, err)
		}
	}
}

func give(t testing.TB, b *redlock.Backend, r backend.AcquireRequest) {
	t.Helper()
	free(t, b, backend.ReleaseRequest{Name: r.Name, Lease: r.Lease})
}

// free releases what is held. A call that failed as unavailable may have done it before.
func free(t testing.TB, b *redlock.Backend, r backend.ReleaseRequest) {
	t.Helper()
	ctx := within(t, patience)
	for again := false; ; again = true {
		err := b.Release(ctx, r)
		switch {
		case err == nil, again && errors.Is(err, backend.ErrLost):
			return
		case ctx.Err() != nil || !errors.Is(err, backend.ErrUnavailable):
			t.Fatalf("release %q: %v", r.Name, err)
		}
	}
}

// pairs takes and releases many locks, which must not take as long as a time-out.
func pairs(t testing.TB, b *redlock.Backend) {
	t.Helper()
	const n, bound = 50, 30 * time.Second
	began := time.Now()
	for i := range n {
		r := ask(fmt.Sprintf("pair/%d", i%3))
		take(t, b, r)
		give(t, b, r)
	}
	if took := time.Since(began); took > bound {
		t.Errorf("%d pairs took %s: they waited for a slow node", n, took)
	}
}

// votes returns how many leases of the lock a node has on record.
func votes(s *testserver.RedisServer, name string) int64 {
	n, _ := s.Do("HLEN", "hfr:l:"+name).(int64)
	n = max(0, n-1) // one is the summary
	// A single vote is kept with the counter; its second line begins with its end.
	counter, _ := s.Do("GET", "hfr:f:"+name).(string)
	if _, vote, ok := strings.Cut(counter, "\n"); ok {
		if ends, _, _ := strings.Cut(vote, " "); ends > strconv.FormatInt(time.Now().UnixMicro(), 10) {
			n++
		}
	}
	return n
}
