package zklock_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// readSpy counts the reads of a node, and those of them that set a watch.
type readSpy struct {
	net.Conn
	node           []byte
	reads, watches *atomic.Int64
}

func (s readSpy) Write(p []byte) (int, error) {
	const exists, getData = 3, 4
	if len(p) < 12 || !bytes.Contains(p, s.node) {
		return s.Conn.Write(p)
	}
	if kind := binary.BigEndian.Uint32(p[8:12]); kind == exists || kind == getData {
		s.reads.Add(1)
		s.watches.Add(int64(p[len(p)-1])) // the last byte is 1 if it sets one
	}
	return s.Conn.Write(p)
}

// TestWaitsShareAWatch: many waits for a lock that is held for long set one watch: the client
// library keeps each until it fires. Then the lock is handed over, by that watch.
func TestWaitsShareAWatch(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	other := closing(t, server)
	held := leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil))
	leasetest.Take(t, other, held)
	var reads, watches atomic.Int64
	b, err := zklock.New(zklock.Config{
		Servers: []string{server.Addr()}, Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession,
		Dial: func(network, address string, timeout time.Duration) (net.Conn, error) {
			conn, err := dial(network, address, timeout)
			return readSpy{conn, []byte(held.Lease), &reads, &watches}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := leasetest.Session(t, closed(t, b), time.Minute, nil)
	const waits = 20
	for i := range int64(waits) {
		req := leasetest.Ask("n", id)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = b.Acquire(ctx, req)
		}()
		leasetest.Eventually(t, "it has read what it waits for", func() bool { return reads.Load() > i })
		cancel()
		<-ended
		if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id, Abandon: true}); err != nil {
			t.Fatal(err)
		}
	}
	if n := watches.Load(); n == 0 || n > 2 {
		t.Errorf("%d watches for %d waits; want one", n, waits)
	}
	next := leasetest.Start(t, b, leasetest.Ask("n", id))
	leasetest.Eventually(t, "it has read what it waits for", func() bool { return reads.Load() > waits })
	leasetest.Give(t, other, held)
	released := time.Now()
	if a := <-next; a.Err != nil || time.Since(released) > 10*time.Second {
		t.Errorf("%+v, after %s", a, time.Since(released))
	}
}
