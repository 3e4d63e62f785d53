package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// raw returns a client of etcd as other programs have it.
func raw(t *testing.T, members []*testserver.Etcd) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: testserver.Endpoints(members), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func compact(t *testing.T, members []*testserver.Etcd) {
	t.Helper()
	c := raw(t, members)
	resp, err := c.Put(t.Context(), "other", "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

func leader(t *testing.T, members []*testserver.Etcd) *testserver.Etcd {
	t.Helper()
	var found *testserver.Etcd
	await(t, "a leader", func() bool {
		for _, m := range members {
			if m.Leads() {
				found = m
			}
		}
		return found != nil
	})
	return found
}

// metric reads a counter of the server.
func metric(t *testing.T, m *testserver.Etcd, name string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.Addr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close(); http.DefaultClient.CloseIdleConnections() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^`+name+`(?:{[^}]*})? (\S+)$`).FindAllSubmatch(body, -1)
	sum := 0.0
	for _, f := range found {
		v, err := strconv.ParseFloat(string(f[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	if found == nil {
		t.Fatalf("the server has no metric %s", name)
	}
	return int(sum)
}

// handOver makes waiters queue, one after the other, and returns what the server sent to watchers
// while the lock went through all of them.
func handOver(t *testing.T, members []*testserver.Etcd, bs []*etcdlock.Backend, each int) int {
	t.Helper()
	name := fmt.Sprintf("queue/%d", len(bs))
	holding := direct(t, members)
	held := request(name, kept(t, holding))
	if _, err := holding.Acquire(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	var queue []<-chan result
	for _, b := range bs {
		s := kept(t, b)
		for n := range each {
			queue = append(queue, start(t.Context(), b, request(name, s)))
			await(t, "in the queue", func() bool { return b.Waiting(name) == n+1 })
		}
	}
	before := metric(t, members[0], "etcd_debugging_mvcc_events_total")
	release(t, holding, held)
	var last fence.Token
	timers := 0
	for i, c := range queue {
		r := receive(t, c)
		if r.grant.ByTimer { // a timer may fire at that very moment, on a busy machine
			timers++
		}
		switch {
		case r.err != nil:
			t.Fatalf("waiter %d: %v", i, r.err)
		case r.grant.Token <= last:
			t.Fatalf("waiter %d has token %d, after %d", i, r.grant.Token, last)
		case !r.grant.Waited:
			t.Errorf("waiter %d: %+v", i, r.grant)
		}
		last = r.grant.Token
		for j := i + 1; j < len(queue); j++ {
			select {
			case <-queue[j]:
				t.Fatalf("waiter %d was served while %d had the lock", j, i)
			default:
			}
		}
		release(t, bs[i/each], r.req)
	}
	if timers > len(queue)/10 {
		t.Errorf("%d of %d were woken by a timer", timers, len(queue))
	}
	return metric(t, members[0], "etcd_debugging_mvcc_events_total") - before
}

func TestQueueOfOneClient(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	const waiters = 200
	// One watch for all of them: one event for each release.
	if n := handOver(t, members, []*etcdlock.Backend{direct(t, members)}, waiters); n > waiters+20 {
		t.Errorf("%d waiters of one client cost %d watch events", waiters, n)
	}
}

func TestQueueOfManyClients(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	bs := make([]*etcdlock.Backend, 25)
	for i := range bs {
		bs[i] = direct(t, members)
	}
	// Each waiter watches the one before it: a release wakes one client, not all.
	if n := handOver(t, members, bs, 1); n > 2*len(bs) {
		t.Errorf("%d clients in the queue cost %d watch events", len(bs), n)
	}
}

// A lock that is used often must not make etcd read over all the keys that it ever had.
func TestKeysAreUsedAgain(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, c := direct(t, members), raw(t, members)
	s := kept(t, b)
	seen := make(map[string]bool)
	for i := range 30 {
		req := request("hot", s)
		req.Timed, req.TTL = i%2 == 0, time.Minute
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		resp, err := c.Get(t.Context(), etcdlock.DefaultPrefix+"/q/", clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%d entries, %v", len(resp.Kvs), err)
		}
		seen[string(resp.Kvs[0].Key)] = true
		release(t, b, req)
	}
	if len(seen) != 1 {
		t.Errorf("%d keys for one lock: %v", len(seen), seen)
	}
	if n := b.Slots(); n != 0 {
		t.Errorf("%d slots in use at the end", n)
	}
}

// Many concurrent callers share transactions.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, c := direct(t, members), raw(t, members)
	s := kept(t, b)
	revision := func() int64 {
		resp, err := c.Get(t.Context(), "any")
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	const callers, rounds = 64, 20
	before := revision()
	tokens := make([]map[fence.Token]bool, callers)
	var wg sync.WaitGroup
	for i := range callers {
		tokens[i] = make(map[fence.Token]bool)
		wg.Go(func() {
			for range rounds {
				req := request(fmt.Sprintf("lock/%d", i), s)
				g, err := b.Acquire(t.Context(), req)
				if err != nil || tokens[i][g.Token] {
					t.Errorf("token %d (again: %v), %v", g.Token, tokens[i][g.Token], err)
					return
				}
				tokens[i][g.Token] = true
				if err := b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: s}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	const changes = 2 * callers * rounds
	if n := revision() - before; n > changes/2 {
		t.Errorf("%d changes took %d transactions", changes, n)
	}
}

// All changes of one transaction have one revision. Two requests of the same lock must not share
// one, or they would share a token and a place.
func TestOneLockInOneBatch(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b := direct(t, members)
	s := kept(t, b)
	const callers, rounds = 32, 10
	var mu sync.Mutex
	seen := make(map[fence.Token]int)
	inside := 0
	var freed time.Time // when the last release was sent
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				req := request("same", s)
				g, err := b.Acquire(t.Context(), req)
				if err != nil {
					t.Errorf("%+v, %v", g, err)
					return
				}
				mu.Lock()
				// A timer that is due just then may be faster than the watch; after a lost wake-up the lock
				// is free until one is due.
				if idle := time.Since(freed); g.ByTimer && idle > wakes {
					t.Errorf("woken by a timer %s after the release", idle)
				}
				seen[g.Token]++
				inside++
				if inside != 1 || seen[g.Token] != 1 {
					t.Errorf("%d inside, token %d given %d times", inside, g.Token, seen[g.Token])
				}
				mu.Unlock()
				mu.Lock()
				inside--
				freed = time.Now()
				mu.Unlock()
				if err := b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: s}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// wakes is longer than a hand-over by a watch takes, and shorter than most waits for a timer.
const wakes = 3 * time.Second

func TestDeletedKeyIsALoss(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, c := direct(t, members), raw(t, members)
	s := kept(t, b)
	gone, stays := request("gone", s), request("stays", s)
	for _, req := range []backend.AcquireRequest{gone, stays} {
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Delete(t.Context(), etcdlock.DefaultPrefix+"/q/gone\x00", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	res, err := b.Renew(t.Context(), backend.RenewRequest{Session: s})
	if err != nil || len(res.Lost) != 1 || res.Lost[0].Lease != gone.Lease || res.Lost[0].Cause != backend.CauseGone {
		t.Errorf("Renew tells %+v, %v; it has to tell the loss of %s", res, err, gone.Lease)
	}
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: gone.Name, Lease: gone.Lease}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Release of what is gone: %v", err)
	}
	release(t, b, stays)
}

// Every key that is left at the end will expire.
func TestNothingStays(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, c := open(t, members), raw(t, members)
	s := kept(t, b)
	for i := range 10 {
		req := request(fmt.Sprint("lock ", i), s)
		req.Timed, req.TTL = i%3 == 0, time.Minute
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		var err error
		if i%2 == 0 {
			_, err = b.Break(t.Context(), backend.BreakRequest{Name: req.Name, Reason: "test"})
		} else {
			err = b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: s, Abandon: i%4 == 1})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := b.EndSession(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		rest := strings.TrimPrefix(string(kv.Key), etcdlock.DefaultPrefix+"/")
		note := strings.HasPrefix(rest, "q/") && strings.HasSuffix(rest, "\x00z")
		if kv.Lease == 0 || !note && !strings.HasPrefix(rest, "d/") && !strings.Contains(rest, "\x00y") && !strings.HasPrefix(rest, "l/") {
			t.Errorf("%q is left, on lease %x", kv.Key, kv.Lease)
		}
	}
}

func TestClientIsNotClosed(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	c := raw(t, members)
	b, err := etcdlock.New(c, etcdlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := kept(t, b)
	done := start(t.Context(), b, request("lock", s))
	receive(t, done)
	waiting := start(t.Context(), b, request("lock", s))
	await(t, "in the queue", func() bool { return b.Waiting("lock") == 1 })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, waiting); !errors.Is(r.err, backend.ErrClosed) {
		t.Errorf("Acquire under way while Close: %v", r.err)
	}
	if _, err := c.Get(context.WithoutCancel(t.Context()), "x"); err != nil {
		t.Errorf("the client after Close: %v", err)
	}
}
