package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestManyWatchesComeBack: a session with more watches than the library's buffer for requests would
// hold is still notified of a break after its connection broke.
func TestManyWatchesComeBack(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	told, tell := losses()
	id, others := leasetest.Session(t, b, 5*time.Minute, tell), leasetest.Session(t, other, 5*time.Minute, nil)
	held := leasetest.Ask("held", id)
	leasetest.Take(t, b, held)
	ctx, cancel := context.WithCancel(t.Context())
	const waits = 150 // twice 300 bytes for each
	waiters := make(chan error, waits)
	for n := range waits {
		name := fmt.Sprint(strings.Repeat("n", 200), n)
		leasetest.Take(t, other, leasetest.Ask(name, others))
		go func() {
			_, err := b.Acquire(ctx, leasetest.Ask(name, id))
			waiters <- err
		}()
	}
	defer func() {
		cancel()
		for range waits {
			if err := <-waiters; err == nil {
				t.Error("granted what another session holds")
			}
		}
	}()
	const notices = 2
	leasetest.Eventually(t, "all watch", func() bool { return server.Count("zk_watch_count") == 2*waits+notices })
	proxy.Reset()
	leasetest.Eventually(t, "it is connected again", func() bool {
		_, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id})
		return err == nil
	})
	if _, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "held"}); err != nil {
		t.Fatal(err)
	}
	if l := leasetest.Heard(t, told); l.Lease != held.Lease {
		t.Errorf("told %+v, and %s was broken", l, held.Lease)
	}
}

// TestEmptiedServer: a server that comes back with fewer changes than a client has seen refuses that client without an
// answer. What belongs to no session is answered again all the same.
func TestEmptiedServer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b := closing(t, server)
	const changes = 50 // more than the client makes afterwards
	id := leasetest.Session(t, b, 5*time.Minute, nil)
	for range changes {
		req := leasetest.Ask("n", id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	list := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.List(ctx, backend.ListRequest{})
		return err
	}
	leasetest.Succeeds(t, list)
	server.Kill()
	if err := os.RemoveAll(server.Path("data/version-2")); err != nil {
		t.Fatal(err)
	}
	server.Start()
	leasetest.Succeeds(t, list)
}

// TestLessTime: a server that gives sessions less time than this one needs ends it, and the holder
// is told immediately: renewals would be good for less than its TTL.
func TestLessTime(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b := closing(t, server)
	told, tell := losses()
	id := leasetest.Session(t, b, 5*time.Minute, tell)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	server.Kill()
	server.SetMaxSession(10 * time.Second)
	server.Start()
	if l := leasetest.Heard(t, told); l.Lease != "" || l.Session != id {
		t.Errorf("told %+v; want the end of the session", l)
	}
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || !res.SessionLost {
		t.Errorf("a renewal: %+v, %v", res, err)
	}
}

// TestOddTTL: a TTL that is not in whole milliseconds works like any other.
func TestOddTTL(t *testing.T) {
	t.Parallel()
	b := closing(t, zookeeper())
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long/7, nil)))
}

// TestUserWhenAway: a connection that was made while the ensemble was unreachable still
// authenticates its user.
func TestUserWhenAway(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	cfg := config(t, server.Addr())
	cfg.User, cfg.Password = "u", "secret"
	there := opened(t, cfg)
	leasetest.Take(t, there, leasetest.Ask("n", leasetest.Session(t, there, 5*time.Minute, nil)))
	cfg.Servers = []string{proxy.Addr()}
	b := opened(t, cfg)
	proxy.Refuse()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // the library has tried twice by then
	defer cancel()
	if _, err := b.Inspect(ctx, "n"); err == nil {
		t.Fatal("an answer without a server")
	}
	proxy.Heal()
	leasetest.Eventually(t, "it may look", func() bool {
		info, err := b.Inspect(leasetest.Within(t), "n")
		if err != nil {
			t.Log(err)
		}
		return err == nil && len(info.Holders) == 1
	})
}

// tornConn is a connection that breaks when a request of that type is sent, as soon as it is armed.
type tornConn struct {
	net.Conn
	kind  []byte
	armed *atomic.Bool
}

func (c *tornConn) Write(p []byte) (int, error) {
	if len(p) > 12 && bytes.Equal(p[8:12], c.kind) && c.armed.Swap(false) {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// TestCredentialsNotSent: a connection breaks when a user's credentials are repeated on it. The next one has them, and the
// backend can be closed.
func TestCredentialsNotSent(t *testing.T) {
	t.Parallel()
	proxy := chaos.Start(t, zookeeper().Addr())
	cfg := config(t, proxy.Addr())
	cfg.User, cfg.Password = "u", "secret"
	var armed atomic.Bool
	cfg.Dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := dial(network, address, timeout)
		if err != nil {
			return nil, err
		}
		return &tornConn{conn, []byte{0, 0, 0, 100}, &armed}, nil
	}
	b := opened(t, cfg)
	if _, err := b.Inspect(leasetest.Within(t), "n"); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	proxy.Reset()
	leasetest.Eventually(t, "it reads again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.Inspect(ctx, "n")
		return err == nil && !armed.Load()
	})
}

// TestServerGone: a server that hangs does not keep calls, nor a backend from being closed.
func TestServerGone(t *testing.T) {
	t.Parallel()
	proxy := chaos.Start(t, zookeeper().Addr())
	leasetest.ServerGone(t, through(t, proxy), proxy)
}

// TestRenewedAndCutOff: a session that was silent for a while, as one whose process was stopped, is
// renewed through a server that dies right after: the leader had heard nothing of the session since
// before. The time that the renewal reports holds.
func TestRenewedAndCutOff(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	servers := testserver.StartZooKeeper(t, 3)
	var follower *testserver.ZooKeeperServer
	var rest []*testserver.ZooKeeperServer
	for _, s := range servers {
		if follower == nil && !s.Leads() {
			follower = s
		} else {
			rest = append(rest, s)
		}
	}
	proxy := chaos.Start(t, follower.Addr())
	b, other := through(t, proxy), closing(t, rest...)
	const ttl, silent = 20 * time.Second, 5 * time.Second
	id := leasetest.Session(t, b, ttl, nil)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	had := make(chan time.Time, 1)
	next := leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil))
	go func() {
		if _, err := other.Acquire(leasetest.Within(t), next); err != nil {
			t.Errorf("the next: %v", err)
		}
		had <- time.Now()
	}()
	leasetest.InQueue(t, other, "n", 1)
	proxy.Hold(chaos.Requests)
	<-time.After(silent) // only the silence matters
	before := time.Now()
	proxy.Release(chaos.Requests)
	res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id})
	follower.Kill()
	proxy.BlackHole()
	if err != nil || res.SessionLost {
		t.Fatalf("%+v, %v", res, err)
	}
	if early := before.Add(ttl).Sub(<-had); early > 0 {
		t.Errorf("granted %s before the TTL had elapsed", early)
	}
}

// TestEndWhileReconnecting: a session that is ended while its connection is being made again
// releases what it holds.
func TestEndWhileReconnecting(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	for _, end := range []struct {
		how string
		f   func(*zklock.Backend, backend.SessionID) error
	}{
		{"EndSession", func(b *zklock.Backend, id backend.SessionID) error { return b.EndSession(leasetest.Within(t), id) }},
		{"Close", func(b *zklock.Backend, _ backend.SessionID) error { return b.Close() }},
	} {
		proxy := chaos.Start(t, server.Addr())
		b, other := through(t, proxy), closing(t, server)
		id := leasetest.Session(t, b, 5*time.Minute, nil)
		leasetest.Take(t, b, leasetest.Ask(end.how, id))
		proxy.Reset()
		if err := end.f(b, id); err != nil {
			t.Errorf("%s: %v", end.how, err)
		}
		leasetest.Eventually(t, "the lock is released by "+end.how, func() bool {
			info, err := other.Inspect(leasetest.Within(t), end.how)
			return err == nil && len(info.Holders) == 0
		})
	}
}

// TestEndIsNotConfirmed: the network is down when a session is ended. EndSession says that the
// leases may be held, until the session has expired in the ensemble.
func TestEndIsNotConfirmed(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	id := leasetest.Session(t, b, 10*time.Second, nil)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	proxy.Refuse()
	proxy.Reset()
	err := b.EndSession(leasetest.Within(t), id)
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Fatalf("the end of a session that the ensemble did not hear of: %v; want an UnavailableError with MayHold", err)
	}
	proxy.Heal()
	leasetest.Eventually(t, "the end is confirmed", func() bool {
		err := b.EndSession(leasetest.Within(t), id)
		info, failed := other.Inspect(leasetest.Within(t), "n")
		switch {
		case errors.Is(failed, backend.ErrUnavailable): // on a busy machine
			return false
		case failed != nil:
			t.Fatal(failed)
		case err == nil && len(info.Holders) > 0:
			t.Fatalf("the session has ended, and has the lock: %+v", info.Holders)
		case err != nil && !errors.Is(err, backend.ErrUnavailable):
			t.Fatal(err)
		}
		return err == nil
	})
}
