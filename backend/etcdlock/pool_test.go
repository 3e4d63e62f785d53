package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// timed requests a lease that needs no session.
func timed(name string, ttl time.Duration) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: ttl}
}

// takeTimed acquires n timed leases concurrently.
func takeTimed(t *testing.T, b *etcdlock.Backend, n int, ttl time.Duration) []backend.AcquireRequest {
	t.Helper()
	reqs := make([]backend.AcquireRequest, n)
	var wg sync.WaitGroup
	for i := range reqs {
		reqs[i] = timed(fmt.Sprintf("timed/%d", i), ttl)
		wg.Go(func() {
			if g, err := b.Acquire(t.Context(), reqs[i]); err != nil || g.Left > ttl {
				t.Errorf("%+v, %v", g, err)
			}
		})
	}
	wg.Wait()
	return reqs
}

func renewals(reqs []backend.AcquireRequest) backend.RenewRequest {
	var req backend.RenewRequest
	for _, r := range reqs {
		req.Leases = append(req.Leases, backend.TimedRenewal{Name: r.Name, Lease: r.Lease, TTL: r.TTL})
	}
	return req
}

// Timed leases that are granted within a second share an etcd lease, and what happens to one of
// them does not affect the others.
func TestTimedLeasesShare(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other, c := direct(t, members), direct(t, members), raw(t, members)
	const n = 60
	begun := time.Now()
	reqs := takeTimed(t, b, n, time.Minute)
	resp, err := c.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if most := 3 + int(time.Since(begun)/time.Second); len(resp.Leases) > most {
		t.Errorf("%d timed leases made %d leases of etcd; there is one for each second", n, len(resp.Leases))
	}
	// Each way for a lease to end, by the client that took it and by another.
	for i, from := range []*etcdlock.Backend{b, other} {
		leasetest.Give(t, from, reqs[2*i])
		if _, err := from.Break(t.Context(), backend.BreakRequest{Name: reqs[2*i+1].Name}); err != nil {
			t.Fatal(err)
		}
	}
	// The others still exist after everything that is done in the background.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for i, r := range reqs {
		info, err := other.Inspect(t.Context(), r.Name)
		if err != nil || (len(info.Holders) == 1) != (i >= 4) {
			t.Errorf("lease %d: %+v, %v", i, info, err)
		}
	}
	third := direct(t, members)
	res, err := third.Renew(t.Context(), renewals(reqs[4:]))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res.Leases {
		if r.Err != nil {
			t.Errorf("renew %d: %v", i, r.Err)
		}
	}
	for _, r := range reqs[4:] {
		leasetest.Give(t, other, r)
	}
}

// A lease that is renewed stays, and one that is not expires, although they began on one etcd
// lease; and watchers are told which is which.
func TestSharedLeaseEndsForWhoDoesNotRenew(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	members := etcd(t)
	b, other := direct(t, members), direct(t, members)
	var mu sync.Mutex
	ended := make(map[string]backend.EventKind)
	ctx, cancel := context.WithCancel(t.Context())
	watching, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- other.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e.Kind == backend.EventWatching:
				close(watching)
			case e.Kind != backend.EventAcquired:
				ended[e.Name] = e.Kind
			}
		})
	}()
	<-watching
	const n, renewed, ttl = 40, 20, 8 * time.Second
	begun := time.Now()
	reqs := takeTimed(t, b, n, ttl)
	leasetest.Give(t, b, reqs[n-1])
	// Two clients renew the same leases, like a client that moves from one server to another.
	var wg sync.WaitGroup
	for _, from := range []*etcdlock.Backend{b, other} {
		wg.Go(func() {
			for time.Since(begun) < 2*ttl {
				res, err := from.Renew(t.Context(), renewals(reqs[:renewed]))
				if err != nil {
					t.Error(err)
					return
				}
				for i, r := range res.Leases {
					if r.Err != nil || r.Left > ttl {
						t.Errorf("renew %d after %s: %+v", i, time.Since(begun), r)
						return
					}
				}
				time.Sleep(ttl / 10)
			}
		})
	}
	wg.Wait()
	for i, r := range reqs { // immediately: they are not renewed any more
		wg.Go(func() {
			err := other.Release(t.Context(), backend.ReleaseRequest{Name: r.Name, Lease: r.Lease})
			if lost := errors.Is(err, backend.ErrLost); lost != (i >= renewed) || err != nil && !lost {
				t.Errorf("lease %d at the end: %v", i, err)
			}
		})
	}
	wg.Wait()
	want := func(i int) backend.EventKind {
		if i >= renewed && i < n-1 {
			return backend.EventExpired
		}
		return backend.EventReleased
	}
	leasetest.Eventually(t, "all are told to have ended", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ended) == n
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for i, r := range reqs {
		if ended[r.Name] != want(i) {
			t.Errorf("lease %d is told to be %s, want %s", i, ended[r.Name], want(i))
		}
	}
}

// Renewals of one lease for different times move it from one etcd lease to another, and end the one
// before. A client that renews it at that moment is not told that the lease is lost.
func TestRenewalsThatCross(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other := direct(t, members), direct(t, members)
	req := takeTimed(t, b, 1, time.Minute)[0]
	var wg sync.WaitGroup
	for _, from := range []*etcdlock.Backend{b, b, other, other} {
		wg.Go(func() {
			for n := range 60 {
				ttl := time.Minute << (n % 2)
				res, err := from.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{
					{Name: req.Name, Lease: req.Lease, TTL: ttl}, {Name: req.Name, Lease: req.Lease, TTL: ttl},
				}})
				if err != nil {
					t.Error(err)
					return
				}
				for _, r := range res.Leases { // an error because other renewals came between too often is possible, too
					if r.Err != nil && !errors.Is(r.Err, backend.ErrUnavailable) {
						t.Errorf("renewal %d: %+v", n, r)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	leasetest.Give(t, b, req)
}

// Callers that wait for one etcd lease, and do not get it because etcd does not answer, are told so at the same time.
func TestSilentWhileAPoolIsMade(t *testing.T) {
	t.Parallel()
	proxy := chaos.Start(t, etcd(t)[0].Addr())
	b := through(t, proxy, "&timeout=1s")
	first := timed("first", time.Minute)
	leasetest.Take(t, b, first)
	proxy.BlackHole()
	began := time.Now()
	const callers = 12
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			if _, err := b.Acquire(t.Context(), timed(fmt.Sprintf("lock%d", n), 30*time.Second)); !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("etcd is silent: %v", err)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took > callers/2*time.Second {
		t.Errorf("the last of %d callers heard after %s that etcd is silent, with a bound of 1 s for a request", callers, took)
	}
}
