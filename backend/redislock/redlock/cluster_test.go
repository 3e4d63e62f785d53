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
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// patience bounds what must happen, on a machine however busy.
const patience = time.Minute

// open opens a Backend as one more process would.
func (c cluster) open(t testing.TB, params string) *redlock.Backend {
	t.Helper()
	return openURL(t, c.url(params))
}

// openURL retries while nodes seem to be unavailable, as they do on a busy machine.
func openURL(t testing.TB, url string) *redlock.Backend {
	t.Helper()
	var b *redlock.Backend
	leasetest.Succeeds(t, func() error {
		var err error
		if b, err = redlock.Open(t.Context(), url, redlock.Config{}); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatalf("open: %v", err)
		}
		return err
	})
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// slow is a request timeout that no test can wait for, and slowTime the same: a test that passes
// waited for no node.
const (
	slow     = "timeout=45s"
	slowTime = 45 * time.Second
)

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

// short makes a lease last for ten seconds.
func short(r *backend.AcquireRequest) { r.TTL = 10 * time.Second }

// renewed renews a lease, and returns what became of it.
func renewed(t *testing.T, b *redlock.Backend, req backend.AcquireRequest) backend.Renewal {
	t.Helper()
	res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: req.TTL}}})
	if err != nil || len(res.Leases) != 1 {
		t.Fatalf("Renew: %+v, %v", res, err)
	}
	return res.Leases[0]
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

// pairs takes and releases many locks. Less than half of the calls may take as long as the time-out of
// b: only a wait for a node takes so long. Where that is slowTime a call may not take a part of it
// either, except a few on a machine that stood still.
func pairs(t testing.TB, b *redlock.Backend, timeout time.Duration) {
	t.Helper()
	const n = 50
	most, waited := n-1, 0
	if timeout == slowTime {
		most, timeout = n/10, slowTime/10
	}
	timed := func(call func()) {
		began := time.Now()
		call()
		if time.Since(began) >= timeout {
			waited++
		}
	}
	for i := range n {
		r := ask(fmt.Sprintf("pair/%d", i%3))
		timed(func() { take(t, b, r) })
		timed(func() { give(t, b, r) })
	}
	if waited > most {
		t.Errorf("%d of %d calls took %s or longer: they waited for a slow node", waited, 2*n, timeout)
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
