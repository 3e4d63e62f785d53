package consullock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestEndAskedTwice: the end of a session does not reach Consul. The retry does: what the session
// held is free then, not only when it expires.
func TestEndAskedTwice(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	b, other := closing(t, proxy.Addr()), closing(t, server.Addr())
	id := session(t, b, nil)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(leasetest.Within(t), 300*time.Millisecond)
	defer cancel()
	if err := b.EndSession(ctx, id); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("end of a session that cannot be told: %v", err)
	}
	proxy.Heal()
	proxy.Reset()
	if err := b.EndSession(leasetest.Within(t), id); err != nil {
		t.Fatalf("the second EndSession: %v", err)
	}
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 0 {
		t.Errorf("the session has ended: %+v, %v", info, err)
	}
}

// TestEndsWhenItCan: a session that could not be renewed in time is ended in Consul as soon as that
// can be reached, not at twice its TTL.
func TestEndsWhenItCan(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	b, other := closing(t, proxy.Addr()), closing(t, server.Addr())
	const ttl = 15 * time.Second
	lost := make(chan backend.Loss, 1)
	id := backend.NewSessionID()
	asked := time.Now() // the TTL counts from here on, at the earliest
	if err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: id, TTL: ttl, Lost: func(l backend.Loss) { lost <- l }}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	leasetest.Take(t, b, leasetest.Ask("n", id))
	proxy.BlackHole()
	<-lost
	time.Sleep(1500 * time.Millisecond) // longer than it takes to give up a request
	proxy.Heal()
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
	if took := time.Since(asked); took < ttl || time.Since(start) > 2*ttl-3*time.Second {
		t.Errorf("free after %s; the TTL is %s", took, ttl)
	}
}

// TestSilentConnection: the answer to the blocking query of a waiter never comes, and the
// connection sends nothing. The waiter still gets the lock, and a holder learns of a break by the
// next renewal.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	b, other := closing(t, proxy.Addr()), closing(t, server.Addr())
	id, theirs := session(t, b, nil), session(t, other, nil)
	first := leasetest.Ask("n", theirs)
	leasetest.Take(t, other, first)
	mine := leasetest.Ask("m", id)
	leasetest.Take(t, b, mine)
	had := leasetest.StartInsisting(t, b, leasetest.Ask("n", id)) // its own connection may be silent, too
	leasetest.InQueue(t, other, "n", 1)
	proxy.DropServerHalf() // the server's ends are gone, and the client's ends are not told
	leasetest.Give(t, other, first)
	if _, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "m", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	var told []backend.Loss
	for answered := 0; len(told) == 0; {
		ctx, cancel := context.WithTimeout(leasetest.Within(t), 5*time.Second) // its connection may be silent, too
		res, err := b.Renew(ctx, backend.RenewRequest{Session: id})
		cancel()
		if told = res.Lost; err == nil {
			answered++
		}
		if answered > 3 {
			t.Fatalf("%d renewals, and none reported the break of %q", answered, "m")
		}
	}
	if told[0].Lease != mine.Lease || told[0].Cause != backend.CauseBroken || told[0].Reason != "why" {
		t.Errorf("told %+v", told[0])
	}
	if a := <-had; a.Err != nil {
		t.Errorf("the waiter: %v", a.Err)
	}
}

// TestRestartsLoseNothing: the server is killed again and again, with all that was written. While
// it starts it does not know yet what it knew: no client may be told that the session is gone.
func TestRestartsLoseNothing(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t, 1)[0]
	b := closing(t, server.Addr())
	lost := make(chan backend.Loss, 10)
	id := session(t, b, func(l backend.Loss) { lost <- l })
	for range 400 { // so that there is something to read
		req := leasetest.Ask("filler", id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	held := leasetest.Ask("n", id)
	last := leasetest.Take(t, b, held)
	next := leasetest.StartInsisting(t, b, leasetest.Ask("n", id))
	leasetest.InQueue(t, b, "n", 1)
	stop := make(chan struct{})
	var renewals sync.WaitGroup
	for range 4 {
		renewals.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id})
				if res.SessionLost || err != nil && !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("renewal: %+v, %v", res, err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range 3 {
		server.Restart()
	}
	close(stop)
	renewals.Wait()
	select {
	case l := <-lost:
		t.Fatalf("told of a loss: %+v", l)
	default:
	}
	info, err := b.Inspect(leasetest.Within(t), "n")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Token != last || len(info.Waiters) != 1 {
		t.Fatalf("after the restarts: %+v, %v; want the holder of token %d", info, err, last)
	}
	leasetest.Give(t, b, held)
	if a := <-next; a.Err != nil || a.Grant.Token <= last {
		t.Errorf("the waiter: %+v after token %d", a, last)
	}
}

// lockDelay is Consul's default.
const lockDelay = 15 * time.Second

// destroyHolder ends the session of a lease as an operator would.
func destroyHolder(t *testing.T, addr string, req backend.AcquireRequest) {
	t.Helper()
	operator := client(t, addr)
	pair, _, err := operator.KV().Get(prefixOf(t)+"/locks/"+req.Name+"/"+string(req.Lease), nil)
	if err == nil && pair == nil {
		err = errors.New("no such key")
	}
	if err == nil {
		_, err = operator.Session().Destroy(pair.Session, nil)
	}
	if err != nil {
		t.Fatalf("destroy the session: %v", err)
	}
}
