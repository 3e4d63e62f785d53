package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Concurrent operations share one request, and each caller gets its own answer: also a caller
// that is refused, and one whose item the server rejects.
func TestTravelTogether(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	const n = 30
	if _, err := s.direct.Acquire(t.Context(), timedRequest("x7")); err != nil {
		t.Fatal(err)
	}
	mine := timedRequest("mine")
	if _, err := s.b.Acquire(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	s.busy()
	reqs, grants, done := s.acquireMany(n, func(i int, r *backend.AcquireRequest) {
		r.Wait = i%2 == 0
		if i == 3 {
			r.Mode, r.Limit, r.Permits = backend.Shared, 5, 2
		}
	})
	s.queued(n)
	released := s.async(func(ctx context.Context) error {
		return s.b.Release(ctx, backend.ReleaseRequest{Name: "mine", Lease: mine.Lease})
	})
	lost := s.async(func(ctx context.Context) error {
		return s.b.Release(ctx, backend.ReleaseRequest{Name: "other", Lease: backend.NewLeaseID()})
	})
	s.queued(n + 2)
	before := time.Now()
	s.open()
	tokens := make(map[string]bool)
	for i := range n {
		err := <-done[i]
		if i == 7 {
			if held, ok := errors.AsType[*backend.HeldError](err); !ok || held.Name != "x7" || len(held.Holders) != 1 || held.Holders[0].Left > time.Minute {
				t.Errorf("a lock that another has: %v", err)
			}
			continue
		}
		g := grants[i]
		if h := s.holders(reqs[i].Name); err != nil || len(h) != 1 || h[0].Lease != reqs[i].Lease || h[0].Token != g.Token || h[0].Permits != max(1, reqs[i].Permits) {
			t.Errorf("%s: %+v, %v; holders %+v", reqs[i].Name, g, err, h)
		}
		_, _, arrived := s.seen()
		if g.Left <= 0 || g.Left > time.Minute || g.Asked.Before(before) || g.Asked.After(arrived[0]) {
			t.Errorf("%s: %s left of %s, counted from %s after the others left, which is to be before the request came, %s after that",
				reqs[i].Name, g.Left, time.Minute, g.Asked.Sub(before), arrived[0].Sub(before))
		}
		tokens[fmt.Sprint(reqs[i].Name, g.Token)] = true
	}
	if err := <-released; err != nil || len(s.holders("mine")) != 0 {
		t.Errorf("released: %v, holders %+v", err, s.holders("mine"))
	}
	if err := <-lost; !errors.Is(err, backend.ErrLost) {
		t.Errorf("a release of nothing: %v", err)
	}
	singles, batches, _ := s.seen()
	if len(batches) != 1 || len(batches[0].Acquire) != n || len(batches[0].Release) != 2 || len(singles) != 1 {
		t.Errorf("%d batches, and alone %q", len(batches), singles)
	}
	if len(tokens) != n-1 {
		t.Errorf("%d grants", len(tokens))
	}
}

// A single operation uses the call for one, and so does the last one in the queue.
func TestAlone(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	r := timedRequest("x")
	if _, err := s.b.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	s.busy()
	released := s.async(func(ctx context.Context) error {
		return s.b.Release(ctx, backend.ReleaseRequest{Name: "x", Lease: r.Lease})
	})
	s.queued(1)
	s.open()
	if err := <-released; err != nil {
		t.Error(err)
	}
	singles, batches, _ := s.seen()
	if len(batches) != 0 || fmt.Sprint(singles) != "[POST x DELETE x]" {
		t.Errorf("%d batches, and alone %q", len(batches), singles)
	}
	leasetest.Eventually(t, "all have finished", func() bool { return s.probe.Requests() == 0 })
}

// A lock is held by other clients: an acquire that would wait is in the queue one request
// later, and the next ones start with the long poll.
func TestTravelAndWait(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := newStation(t)
	holder := timedRequest("x0")
	if _, err := s.direct.Acquire(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	wait := func(_ int, r *backend.AcquireRequest) { r.Wait = true }
	s.busy()
	first, _, done := s.acquireMany(2, wait)
	s.queued(2)
	s.open()
	if err := <-done[1]; err != nil {
		t.Fatal(err)
	}
	queue := func(want ...backend.LeaseID) {
		t.Helper()
		leasetest.Eventually(t, fmt.Sprintf("%d are in the queue", len(want)), func() bool {
			if s.probe.Queued() != 0 {
				t.Fatal("who knows that there is a queue waits to travel with others")
			}
			info, err := s.direct.Inspect(t.Context(), "x0")
			if err != nil || len(info.Waiters) != len(want) {
				return false
			}
			for i, w := range info.Waiters {
				if w.Lease != want[i] {
					t.Fatalf("waiter %d is %s, want %v", i, w.Lease, want)
				}
			}
			return true
		})
	}
	queue(first[0].Lease)
	s.busy()
	second, _, done2 := s.acquireMany(1, wait)
	queue(first[0].Lease, second[0].Lease)
	s.open()
	_, batches, _ := s.seen()
	if len(batches) != 1 {
		t.Errorf("%d batches; want 1: the second request knows that there is a queue", len(batches))
	}
	hand := func(from, to backend.LeaseID, done chan error) {
		t.Helper()
		if err := s.direct.Release(t.Context(), backend.ReleaseRequest{Name: "x0", Lease: from}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if h := s.holders("x0"); len(h) != 1 || h[0].Lease != to {
			t.Errorf("holders %+v", h)
		}
	}
	hand(holder.Lease, first[0].Lease, done[0])
	hand(first[0].Lease, second[0].Lease, done2[0])
	// No acquire is in progress, and there was a queue the last time.
	s.busy()
	third, _, done3 := s.acquireMany(1, wait)
	queue(third[0].Lease)
	hand(second[0].Lease, third[0].Lease, done3[0])
	s.open()
	if _, batches, _ := s.seen(); len(batches) != 1 {
		t.Errorf("%d batches; want 1: the later request knows that there was a queue", len(batches))
	}
}
