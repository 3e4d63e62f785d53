package consullock_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// turns checks what exclusive holders of a lock have seen.
type turns struct {
	inside atomic.Int64
	mu     sync.Mutex
	tokens []uint64
}

// one acquires the lock exclusively and releases it.
func (s *turns) one(t *testing.T, b *consullock.Backend, id backend.SessionID) {
	t.Helper()
	req := leasetest.Ask("n", id)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), leasetest.Long) // for the turns of all others
	defer cancel()
	g, err := b.Acquire(ctx, req)
	if err != nil {
		t.Errorf("acquire %q: %v", req.Name, err)
		return
	}
	if n := s.inside.Add(1); n != 1 {
		t.Errorf("%d clients hold the lock at the same time", n)
	}
	s.mu.Lock()
	s.tokens = append(s.tokens, uint64(g.Token))
	s.mu.Unlock()
	s.inside.Add(-1)
	leasetest.Give(t, b, req)
}

// done checks that as many had the lock, in the order of their tokens.
func (s *turns) done(t *testing.T, want int) {
	t.Helper()
	if len(s.tokens) != want || !slices.IsSorted(s.tokens) || len(slices.Compact(s.tokens)) != want {
		t.Errorf("%d turns with tokens %d; want %d, each with a greater one", len(s.tokens), s.tokens, want)
	}
}

// TestHandOversAskNothing: hand-overs within a process cost the writes and hardly any reads: the
// release tells the next waiter, and the acquires bring the state of the queue.
func TestHandOversAskNothing(t *testing.T) {
	t.Parallel()
	const goroutines, rounds = 40, 10
	server := testserver.StartConsul(t, 1)[0]
	b, x := tapped(t, server.Addr())
	id := session(t, b, nil)
	var seen turns
	var all sync.WaitGroup
	before := x.n.Load()
	for range goroutines {
		all.Go(func() {
			for range rounds {
				seen.one(t, b, id)
			}
		})
	}
	all.Wait()
	seen.done(t, goroutines*rounds)
	// Two that write, and at most one about the present holder.
	const pairs = goroutines * rounds
	if n, l := x.n.Load()-before, x.lists.Load(); n > 7*pairs/2 || l > pairs/8 {
		t.Errorf("%d requests for %d hand-overs, of which %d read the queue", n, pairs, l)
	} else {
		t.Logf("%.2f requests for a hand-over, %.3f reads of the queue", float64(n)/pairs, float64(l)/pairs)
	}
}

// TestManyAtOnce: many acquires come to a lock at the same time. Not each of them reads the queue
// that they form, which would be the square of their number.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const waiters = 300
	server := testserver.StartConsul(t, 1)[0]
	other := closing(t, server.Addr())
	held := leasetest.Ask("n", session(t, other, nil))
	leasetest.Take(t, other, held)
	b, x := tapped(t, server.Addr())
	id := session(t, b, nil)
	var seen turns
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { seen.one(t, b, id) })
	}
	leasetest.InQueue(t, other, "n", waiters)
	if n := x.trees.Load() + x.lists.Load(); n > waiters/3 {
		t.Errorf("%d who wait have read the queue %d times", waiters, n)
	} else {
		t.Logf("the queue was read %d times", n)
	}
	leasetest.Give(t, other, held)
	all.Wait()
	seen.done(t, waiters)
}

func TestNextIsGone(t *testing.T) {
	t.Parallel()
	server := consul()
	leasetest.NextIsGone(t, closing(t, server.Addr()), closing(t, server.Addr()))
}

func TestReplyOfAHandOverIsLost(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	leasetest.LostHandOver(t, closing(t, proxy.Addr()), closing(t, server.Addr()), proxy)
}
