package zklock_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Kinds of requests of ZooKeeper's protocol.
const (
	exists       = 3
	getData      = 4
	getChildren2 = 12
	multi        = 14
)

func dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, network, address)
}

// readSpy counts the requests of some kinds whose path contains a text, and those of them that set a watch.
type readSpy struct {
	net.Conn
	path  []byte
	kinds []uint32
	*counts
}

type counts struct{ reads, watches atomic.Int64 }

func (s readSpy) Write(p []byte) (int, error) {
	if len(p) >= 12 && slices.Contains(s.kinds, binary.BigEndian.Uint32(p[8:12])) && bytes.Contains(p, s.path) {
		s.reads.Add(1)
		s.watches.Add(int64(p[len(p)-1])) // the last byte is 1 if it sets one
	}
	return s.Conn.Write(p)
}

// spied returns a Backend whose reads are counted.
func spied(t *testing.T, server *testserver.ZooKeeperServer, path string, kinds ...uint32) (*zklock.Backend, *counts) {
	t.Helper()
	n := new(counts)
	cfg := config(t, server.Addr())
	cfg.Dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := dial(network, address, timeout)
		return readSpy{conn, []byte(path), kinds, n}, err
	}
	return opened(t, cfg), n
}

// TestWaitersReadTogether: all that wait for a permit have to look at each change, and the client asks once for all
// of them.
func TestWaitersReadTogether(t *testing.T) {
	t.Parallel()
	const permits, waiters = 5, 30
	server := zookeeper()
	b, n := spied(t, server, "/semaphore", getChildren2)
	other := closing(t, server) // looks at the queue without being counted
	id := leasetest.Session(t, b, leasetest.Long, nil)
	ask := func() backend.AcquireRequest {
		req := leasetest.Ask("semaphore", id)
		req.Mode, req.Limit, req.Permits = backend.Shared, permits, 1
		return req
	}
	var held []backend.AcquireRequest
	for range permits {
		held = append(held, ask())
		leasetest.Take(t, b, held[len(held)-1])
	}
	for range waiters {
		leasetest.Start(t, b, ask())
	}
	leasetest.InQueue(t, other, "semaphore", waiters)
	before := n.reads.Load()
	for i, h := range held {
		leasetest.Give(t, b, h)
		leasetest.InQueue(t, other, "semaphore", waiters-1-i)
	}
	if reads := n.reads.Load() - before; reads == 0 || reads > permits*waiters/2 {
		t.Errorf("%d reads for %d releases with %d waiters", reads, permits, waiters)
	}
}

// TestWaitsShareAWatch: many waits for a lock that is held for long set one watch: the client
// library keeps each until it fires. Then the lock is handed over, by that watch.
func TestWaitsShareAWatch(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	other := closing(t, server)
	held := leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil))
	leasetest.Take(t, other, held)
	b, n := spied(t, server, string(held.Lease), exists, getData)
	id := leasetest.Session(t, b, time.Minute, nil)
	const waits = 20
	for i := range int64(waits) {
		req := leasetest.Ask("n", id)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = b.Acquire(ctx, req)
		}()
		leasetest.Eventually(t, "it has read what it waits for", func() bool { return n.reads.Load() > i })
		cancel()
		<-ended
		if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id, Abandon: true}); err != nil {
			t.Fatal(err)
		}
	}
	if watches := n.watches.Load(); watches == 0 || watches > 2 {
		t.Errorf("%d watches for %d waits; want one", watches, waits)
	}
	next := leasetest.Start(t, b, leasetest.Ask("n", id))
	leasetest.Eventually(t, "it has read what it waits for", func() bool { return n.reads.Load() > waits })
	leasetest.Give(t, other, held)
	released := time.Now()
	if a := <-next; a.Err != nil || time.Since(released) > 20*time.Second { // without a watch it reads again 30 s later
		t.Errorf("%+v, after %s", a, time.Since(released))
	}
}
