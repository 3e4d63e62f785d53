package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// batched calls f n times concurrently while the answer to another request is held back, so that
// their writes go in one transaction, once ready has returned.
func batched(t *testing.T, b *zklock.Backend, proxy *chaos.Proxy, id backend.SessionID, n int, f func(i int), ready func()) {
	t.Helper()
	first := leasetest.Ask("first", id)
	leasetest.Take(t, b, first)
	leasetest.Eventually(t, "nothing is under way", func() bool { return !b.Flying(id) })
	proxy.Hold(chaos.Replies)
	var all sync.WaitGroup
	all.Go(func() {
		if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: first.Name, Lease: first.Lease, Session: id}); err != nil && !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("the first release: %v", err)
		}
	})
	leasetest.Eventually(t, "the first release is under way", func() bool { return b.Flying(id) && b.Waiting(id) == 0 })
	for i := range n {
		all.Go(func() { f(i) })
	}
	leasetest.Eventually(t, "all wait for the next transaction", func() bool { return b.Waiting(id) == n })
	ready()
	all.Wait()
}

func requests(id backend.SessionID, n int) []backend.AcquireRequest {
	reqs := make([]backend.AcquireRequest, n)
	for i := range reqs {
		reqs[i] = leasetest.Ask(fmt.Sprintf("n%d", i), id)
	}
	return reqs
}

// together matches a piece sent with the first and the last of the requests.
func together(reqs []backend.AcquireRequest) func(piece []byte) bool {
	return func(piece []byte) bool {
		return bytes.Contains(piece, []byte(reqs[0].Lease)) && bytes.Contains(piece, []byte(reqs[len(reqs)-1].Lease))
	}
}

func empty(t *testing.T, b *zklock.Backend, reqs []backend.AcquireRequest) {
	t.Helper()
	for _, req := range reqs {
		if info, err := b.Inspect(leasetest.Within(t), req.Name); err != nil || len(info.Holders)+len(info.Waiters) != 0 {
			t.Errorf("something is left of %q: %+v, %v", req.Name, info, err)
		}
	}
}

// The answer to a transaction of many is lost: each of them determines its own outcome. There is no
// ghost, and no second grant.
func TestLostBatchReply(t *testing.T) {
	t.Parallel()
	server := installed()
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	id := leasetest.Session(t, b, 5*time.Minute, nil)
	const n = 8
	for _, req := range requests(id, n) { // so that the nodes exist
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	reqs := requests(id, n)
	cut := func() {
		lost := proxy.LoseReply(together(reqs))
		proxy.Release(chaos.Replies)
		<-lost
		proxy.Reset()
	}
	tokens := make([]fence.Token, n)
	batched(t, b, proxy, id, n, func(i int) {
		g, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, reqs[i]) })
		if err != nil {
			t.Errorf("acquire %d: %v", i, err)
		}
		tokens[i] = g.Token
	}, cut)
	for i, req := range reqs {
		info, err := other.Inspect(leasetest.Within(t), req.Name)
		if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 || info.Holders[0].Lease != req.Lease || info.Holders[0].Token != tokens[i] {
			t.Errorf("after the lost reply: %+v, %v; want one holder with token %d", info, err, tokens[i])
		}
	}
	batched(t, b, proxy, id, n, func(i int) { leasetest.InsistGive(t, b, reqs[i]) }, cut)
	empty(t, other, reqs)
}

// One of many that share a transaction is denied: the others are still written.
func TestOneOfABatchIsDenied(t *testing.T) {
	t.Parallel()
	server := installed()
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	id := leasetest.Session(t, b, 5*time.Minute, nil)
	const n, odd = 8, 3
	reqs := requests(id, n)
	for _, req := range reqs {
		leasetest.Take(t, b, req)
	}
	var errs [n]error
	batched(t, b, proxy, id, n, func(i int) {
		errs[i] = b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: reqs[i].Name, Lease: reqs[i].Lease, Session: id})
	}, func() { // another client releases one of them, and this one, which looks after its leases, cannot see it
		if err := other.Release(leasetest.Within(t), backend.ReleaseRequest{Name: reqs[odd].Name, Lease: reqs[odd].Lease, Session: id}); err != nil {
			t.Error(err)
		}
		proxy.Release(chaos.Replies)
	})
	for i, err := range errs {
		if i == odd && !errors.Is(err, backend.ErrLost) || i != odd && err != nil {
			t.Errorf("release %d: %v", i, err)
		}
	}
	empty(t, other, reqs)
	// The node of one of the locks is gone.
	conn := connect(t, server)
	if err := conn.Delete(pathOf(t)+"/locks/"+reqs[odd].Name, -1); err != nil {
		t.Fatal(err)
	}
	reqs = requests(id, n)
	batched(t, b, proxy, id, n, func(i int) {
		if _, err := b.Acquire(leasetest.Within(t), reqs[i]); err != nil {
			t.Errorf("acquire %d: %v", i, err)
		}
	}, func() { proxy.Release(chaos.Replies) })
	for _, req := range reqs {
		leasetest.Give(t, b, req)
	}
	empty(t, other, reqs)
}

// The lock goes to a waiter of the same session, and the answer that reports it is lost.
func TestLostHandOverReply(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	leasetest.LostHandOver(t, through(t, proxy), closing(t, server), proxy)
}

// The waiter was released by another client: the release of the lease before it does not hand the lock to it.
func TestFollowerIsGone(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	leasetest.NextIsGone(t, closing(t, server), closing(t, server))
}

// An uncontended lock is acquired with one transaction, and released with one. No queue is read.
func TestRequestsOfAPair(t *testing.T) {
	t.Parallel()
	b, n := spied(t, installed(), "", getChildren2, multi)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	const pairs = 20
	var before int64
	for i := range pairs + 1 {
		if i == 1 { // the first made the container
			before = n.reads.Load()
		}
		req := leasetest.Ask("n", id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	if got := n.reads.Load() - before; got != 2*pairs {
		t.Errorf("%d transactions and reads for %d pairs", got, pairs)
	}
}

// connect returns a bare connection to the server.
func connect(t *testing.T, server *testserver.ZooKeeperServer) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{server.Addr()}, 30*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// TestAbandonedBeforeItLeft: a lease that was abandoned before its create was sent, and whose
// create then loses its answer, leaves nothing in the queue.
func TestAbandonedBeforeItLeft(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	id := leasetest.Session(t, b, 5*time.Minute, nil)
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, 5*time.Minute, nil)))
	thaw := b.Freeze(id)
	req := leasetest.Ask("n", id)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, req)
		gaveUp <- err
	}()
	leasetest.Eventually(t, "the create waits", func() bool { return b.Waiting(id) == 1 })
	cancel()
	if err := <-gaveUp; err == nil {
		t.Fatal("granted to a caller that had given up")
	}
	if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id, Abandon: true}); err != nil {
		t.Fatal(err)
	}
	// The request before it, to make the container with the entry, is refused: the container exists.
	lost := proxy.LoseReply(func(piece []byte) bool {
		return bytes.Contains(piece, []byte(req.Lease)) && bytes.Count(piece, []byte("/locks/n")) == 2
	})
	thaw()
	<-lost
	leasetest.InQueue(t, other, "n", 1) // it arrived
	proxy.Reset()
	leasetest.InQueue(t, other, "n", 0)
}
