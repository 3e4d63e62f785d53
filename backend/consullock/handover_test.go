package consullock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// looks counts the requests that read a whole queue.
type looks struct {
	http.RoundTripper
	n *atomic.Int64
}

func (l looks) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Has("recurse") {
		l.n.Add(1)
	}
	return l.RoundTripper.RoundTrip(r)
}

// through opens a backend whose requests go through what wrap makes.
func through(t *testing.T, server *testserver.ConsulServer, wrap func(http.RoundTripper) http.RoundTripper) *consullock.Backend {
	t.Helper()
	const conns = 64 // as Open's
	pool := &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns}
	t.Cleanup(pool.CloseIdleConnections)
	c, err := api.NewClient(&api.Config{Address: server.Addr(), HttpClient: &http.Client{Transport: wrap(pool)}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := consullock.New(c, consullock.Config{Prefix: prefixOf(t), MinTTL: testserver.ConsulMinTTL})
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, b)
}

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
	var requests, lists atomic.Int64
	b := through(t, server, func(pool http.RoundTripper) http.RoundTripper { return counted{looks{pool, &lists}, &requests} })
	id := session(t, b, nil)
	var seen turns
	var all sync.WaitGroup
	before := requests.Load()
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
	if n, l := requests.Load()-before, lists.Load(); n > 7*pairs/2 || l > pairs/8 {
		t.Errorf("%d requests for %d hand-overs, of which %d read the queue", n, pairs, l)
	} else {
		t.Logf("%.2f requests for a hand-over, %.3f reads of the queue", float64(n)/pairs, float64(l)/pairs)
	}
}

// trees counts the transactions that read a whole queue.
type trees struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c trees) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if bytes.Contains(body, []byte("get-tree")) {
			c.n.Add(1)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c.RoundTripper.RoundTrip(r)
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
	var lists, read atomic.Int64
	b := through(t, server, func(pool http.RoundTripper) http.RoundTripper { return trees{looks{pool, &lists}, &read} })
	id := session(t, b, nil)
	var seen turns
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { seen.one(t, b, id) })
	}
	leasetest.InQueue(t, other, "n", waiters)
	if n := read.Load() + lists.Load(); n > waiters/3 {
		t.Errorf("%d who wait have read the queue %d times", waiters, n)
	} else {
		t.Logf("the queue was read %d times", n)
	}
	leasetest.Give(t, other, held)
	all.Wait()
	seen.done(t, waiters)
}

// TestNextIsGone: the key of the next waiter was deleted behind our back. The lock is still
// released, that waiter is told that its lease is lost, and the one after it gets the lock.
func TestNextIsGone(t *testing.T) {
	t.Parallel()
	server := consul()
	b := closing(t, server.Addr())
	id := session(t, b, nil)
	held, gone, next := leasetest.Ask("n", id), leasetest.Ask("n", id), leasetest.Ask("n", id)
	leasetest.Take(t, b, held)
	lost, had := make(chan error, 1), make(chan error, 1)
	wait := func(req backend.AcquireRequest, result chan<- error) {
		g, err := b.Acquire(leasetest.Within(t), req)
		if err == nil && g.ByTimer {
			err = errors.New("only the timer told")
		}
		result <- err
	}
	go wait(gone, lost)
	leasetest.InQueue(t, b, "n", 1)
	go wait(next, had)
	leasetest.InQueue(t, b, "n", 2)
	c, pool := client(t, server.Addr(), nil)
	t.Cleanup(pool.CloseIdleConnections)
	if _, err := c.KV().Delete(prefixOf(t)+"/locks/n/"+string(gone.Lease), (&api.WriteOptions{}).WithContext(leasetest.Within(t))); err != nil {
		t.Fatal(err)
	}
	leasetest.Give(t, b, held)
	if err := <-lost; !errors.Is(err, backend.ErrLost) {
		t.Errorf("whose key was deleted has %v; want %v", err, backend.ErrLost)
	}
	if err := <-had; err != nil {
		t.Errorf("who comes after it: %v", err)
	}
}

// TestNoHandOverOfAPlace: a waiter gives up its place, and no other gets the lock by that.
func TestNoHandOverOfAPlace(t *testing.T) {
	t.Parallel()
	server := consul()
	b := closing(t, server.Addr())
	id := session(t, b, nil)
	held := leasetest.Ask("n", id)
	first := leasetest.Take(t, b, held)
	const waiters = 3
	var line [waiters]backend.AcquireRequest
	var results [waiters]chan error
	for i := range line {
		line[i], results[i] = leasetest.Ask("n", id), make(chan error, 1)
		go func() {
			_, err := b.Acquire(leasetest.Within(t), line[i])
			results[i] <- err
		}()
		leasetest.InQueue(t, b, "n", i+1)
	}
	last := backend.ReleaseRequest{Name: "n", Lease: line[waiters-1].Lease, Session: id}
	// If the answer to its acquire is still on its way, the acquire itself may have given the place up first.
	if err := b.Release(leasetest.Within(t), last); err != nil && !errors.Is(err, backend.ErrLost) {
		t.Errorf("the release of a place: %v", err)
	}
	if err := <-results[waiters-1]; !errors.Is(err, backend.ErrLost) {
		t.Errorf("the waiter whose place was released got %v; want %v", err, backend.ErrLost)
	}
	leasetest.InQueue(t, b, "n", waiters-1)
	if info, err := b.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 1 || info.Holders[0].Token != first {
		t.Errorf("after that: %+v, %v; want the holder as before", info, err)
	}
	for i := range waiters - 1 {
		select {
		case err := <-results[i]:
			t.Errorf("waiter %d has the lock beside its holder, or %v", i, err)
		default:
		}
	}
	leasetest.Give(t, b, held)
	for i := range waiters - 1 {
		if err := <-results[i]; err != nil {
			t.Errorf("waiter %d: %v", i, err)
		}
		leasetest.Give(t, b, line[i])
	}
}

// TestReplyOfAHandOverIsLost: the lock is released, and the answer that would tell the next waiter is
// lost: it still gets the lock, and not by the timer.
func TestReplyOfAHandOverIsLost(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	b := closing(t, proxy.Addr())
	id := session(t, b, nil)
	const attempts = 20 // until the waiter is known here before the lock is released
	for range attempts {
		if losesReplyOfAHandOver(t, b, proxy, id) {
			return
		}
	}
	t.Error("no release named the next waiter")
}

// losesReplyOfAHandOver reports whether there was such a reply.
func losesReplyOfAHandOver(t *testing.T, b *consullock.Backend, proxy *chaos.Proxy, id backend.SessionID) bool {
	t.Helper()
	held, next := leasetest.Ask("n", id), leasetest.Ask("n", id)
	leasetest.Take(t, b, held)
	had := make(chan error, 1)
	go func() {
		g, err := b.Acquire(leasetest.Within(t), next)
		if err == nil && g.ByTimer {
			err = errors.New("only the timer told")
		}
		had <- err
	}()
	leasetest.InQueue(t, b, "n", 1)
	// Only the release names both.
	lost := proxy.LoseReply(func(piece []byte) bool {
		return bytes.Contains(piece, []byte(held.Lease)) && bytes.Contains(piece, []byte(next.Lease))
	})
	released := make(chan error, 1)
	go func() {
		released <- b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id})
	}()
	var err error
	sprung := false
	select {
	case <-lost:
		sprung = true
		proxy.Reset()
		err = <-released
	case err = <-released:
	}
	proxy.Heal()
	if err != nil && !sprung || err != nil && !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, backend.ErrLost) {
		t.Errorf("the release: %v", err)
	}
	if err := <-had; err != nil {
		t.Errorf("the next waiter: %v", err)
	}
	leasetest.Give(t, b, next)
	return sprung
}

// TestHandOversOfManyKinds: several processes want one lock, some exclusively, some shared, some give
// up, again and again. No other lease is held beside an exclusive one.
func TestHandOversOfManyKinds(t *testing.T) {
	t.Parallel()
	const processes, goroutines, rounds = 3, 7, 12
	server := consul()
	var seen turns
	var readers atomic.Int64
	var all sync.WaitGroup
	for range processes {
		b := closing(t, server.Addr())
		id := session(t, b, nil)
		for k := range goroutines {
			all.Go(func() {
				for range rounds {
					switch k {
					case 0:
						req := leasetest.Ask("n", id)
						req.Mode = backend.Shared
						leasetest.Take(t, b, req)
						readers.Add(1)
						if n := seen.inside.Load(); n != 0 {
							t.Errorf("%d have the lock for themselves beside a reader", n)
						}
						readers.Add(-1)
						leasetest.Give(t, b, req)
					case 1:
						tiredOf(t, b, leasetest.Ask("n", id))
					default:
						seen.one(t, b, id)
					}
				}
			})
		}
	}
	all.Wait()
	seen.done(t, processes*(goroutines-2)*rounds)
	if info, err := closing(t, server.Addr()).Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders)+len(info.Waiters) != 0 {
		t.Errorf("in the end: %+v, %v; want no holder and no waiter", info, err)
	}
}

// tiredOf requests the lock, and gives up soon, whatever the outcome.
func tiredOf(t *testing.T, b *consullock.Backend, req backend.AcquireRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(leasetest.Within(t), 5*time.Millisecond)
	defer cancel()
	_, _ = b.Acquire(ctx, req) // any outcome will do
	if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session, Abandon: true}); err != nil {
		t.Errorf("give up: %v", err)
	}
}
