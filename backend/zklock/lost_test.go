package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// TestLostIsFinal: the reply to an acquire is lost, and an operator breaks the lease. Once the loss
// was reported, the same lease is not granted again: a second break of it would not be reported.
func TestLostIsFinal(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	told, tell := losses()
	id := leasetest.Session(t, b, time.Minute, tell)
	leasetest.Take(t, b, leasetest.Ask("warm", id)) // so that the nodes exist
	req := leasetest.Ask("n", id)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Lease)) })
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, req)
		answered <- err
	}()
	<-lost
	leasetest.Eventually(t, "the lease is held", func() bool {
		info, err := other.Inspect(leasetest.Within(t), "n")
		return err == nil && len(info.Holders) == 1
	})
	cancel()
	if err := <-answered; !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("acquire without a reply: %v", err)
	}
	if res, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"}); err != nil || len(res.Broken) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	proxy.Reset()
	if l := awaitLoss(t, told); l.Lease != req.Lease {
		t.Fatalf("told %+v", l)
	}
	for range 3 {
		if g, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
			t.Fatalf("the lease that was reported as lost: %+v, %v; want ErrLost", g, err)
		}
	}
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, time.Minute, nil)))
}

// TestToldAfterTheNextGrant: the loss of an entry is reported when the lease has another entry by
// then. That one goes, too.
func TestToldAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b, other := closing(t, server), closing(t, server)
	id := leasetest.Session(t, b, time.Minute, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	b.Tell(id, req.Lease, backend.CauseBroken)
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, time.Minute, nil)))
	if g, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("%+v, %v; want ErrLost", g, err)
	}
}

// TestToldDuringTheCreate: the loss of a lease is reported while a create of it is under way. It is
// not granted, and its entry goes.
func TestToldDuringTheCreate(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b, other := closing(t, server), closing(t, server)
	id := leasetest.Session(t, b, time.Minute, nil)
	thaw := b.Freeze(id)
	req := leasetest.Ask("n", id)
	got := leasetest.Start(t, b, req)
	leasetest.Eventually(t, "the create waits", func() bool { return b.Waiting(id) == 1 })
	b.Tell(id, req.Lease, backend.CauseGone)
	thaw()
	if a := <-got; !errors.Is(a.Err, backend.ErrLost) {
		t.Errorf("%+v; want ErrLost", a)
	}
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, time.Minute, nil)))
}
