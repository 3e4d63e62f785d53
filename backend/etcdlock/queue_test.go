package etcdlock_test

import (
	"context"
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
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
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
	leasetest.Eventually(t, "a leader", func() bool {
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

// handOvers is NoHerd by what the server sends to watchers.
func handOvers(t *testing.T, clients, each, most int) {
	t.Helper()
	members := etcd(t)
	bs := make([]*etcdlock.Backend, clients)
	for i := range bs {
		bs[i] = direct(t, members)
	}
	leasetest.NoHerd(t, bs, each, func() {}, func() int { return metric(t, members[0], "etcd_debugging_mvcc_events_total") }, most)
}

// One watch for all of them: one event for each release.
func TestQueueOfOneClient(t *testing.T) {
	t.Parallel()
	handOvers(t, 1, 200, 220)
}

// Each waiter watches the one before it: a release wakes one client, not all.
func TestQueueOfManyClients(t *testing.T) {
	t.Parallel()
	handOvers(t, 25, 1, 50)
}

// A lock that is used often must not make etcd read over all the keys that it ever had.
func TestKeysAreUsedAgain(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, c := direct(t, members), raw(t, members)
	s := kept(t, b)
	seen := make(map[string]bool)
	for i := range 30 {
		req := leasetest.Ask("hot", s)
		req.Timed, req.TTL = i%2 == 0, time.Minute
		leasetest.Take(t, b, req)
		resp, err := c.Get(t.Context(), etcdlock.DefaultPrefix+"/q/", clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%d entries, %v", len(resp.Kvs), err)
		}
		seen[string(resp.Kvs[0].Key)] = true
		leasetest.Give(t, b, req)
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
				req := leasetest.Ask(fmt.Sprintf("lock/%d", i), s)
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

// wakes is longer than a hand-over by a watch takes, and shorter than most waits for a timer.
const wakes = 3 * time.Second

func TestDeletedKeyIsALoss(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	c := raw(t, members)
	leasetest.DeletedIsALoss(t, direct(t, members), direct(t, members), func(req backend.AcquireRequest) {
		if _, err := c.Delete(t.Context(), etcdlock.DefaultPrefix+"/q/"+req.Name+"\x00", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	})
}

// Every key that is left at the end will expire.
func TestNothingStays(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, c := open(t, members), raw(t, members)
	s := kept(t, b)
	for i := range 10 {
		req := leasetest.Ask(fmt.Sprint("lock ", i), s)
		req.Timed, req.TTL = i%3 == 0, time.Minute
		leasetest.Take(t, b, req)
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
	leasetest.Take(t, b, leasetest.Ask("lock", kept(t, b)))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(context.WithoutCancel(t.Context()), "x"); err != nil {
		t.Errorf("the client after Close: %v", err)
	}
}
