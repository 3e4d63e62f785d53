package consullock_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// closing opens a backend that the test closes.
func closing(t *testing.T, addr string) *consullock.Backend {
	t.Helper()
	return closed(t, open(t, addr))
}

func closed(t *testing.T, b *consullock.Backend) *consullock.Backend {
	t.Helper()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func session(t *testing.T, b *consullock.Backend, lost func(backend.Loss)) backend.SessionID {
	t.Helper()
	return leasetest.Session(t, b, 10*time.Minute, lost)
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	leasetest.LostReply(t, closing(t, proxy.Addr()), closing(t, server.Addr()), proxy, "")
}

// TestSessionIsDestroyed: an operator, or a health check, ends the session in Consul. The holder is told immediately, and the
// next waiter has the lock immediately. The key of the lease may be locked again by another session: Consul's lock-delay
// would only be in the way here.
func TestSessionIsDestroyed(t *testing.T) {
	t.Parallel()
	server := consul()
	a, b := closing(t, server.Addr()), closing(t, server.Addr())
	told := make(chan backend.Loss, 1)
	one := session(t, a, func(l backend.Loss) { told <- l })
	held, next := leasetest.Ask("n", one), leasetest.Ask("n", session(t, b, nil))
	first := leasetest.Take(t, a, held)
	got := leasetest.Start(t, b, next)
	leasetest.InQueue(t, b, "n", 1)
	destroyed := time.Now() // before the delay would begin
	destroyHolder(t, server.Addr(), held)
	if loss := leasetest.Heard(t, told); loss.Session != one || loss.Lease != "" {
		t.Errorf("told %+v", loss)
	}
	if g := <-got; g.Err != nil || g.Grant.Token <= first {
		t.Errorf("the next: %+v after token %d", g, first)
	}
	if err := a.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: one}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("release of a lease that is gone: %v", err)
	}
	leasetest.Give(t, b, next)
	held.Session = session(t, a, nil)
	leasetest.Take(t, a, held)
	if took := time.Since(destroyed); took >= lockDelay {
		t.Errorf("all that took %s: Consul's lock-delay is %s", took, lockDelay)
	}
}

// TestNothingIsLeft: what sessions held and waited for when they ended is gone from Consul, however
// they ended: released, destroyed, or closed with their backend.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t, 1)[0]
	a, b := closing(t, server.Addr()), closing(t, server.Addr())
	one, two := session(t, a, nil), session(t, b, nil)
	held := leasetest.Ask("n", one)
	leasetest.Take(t, a, held)
	go func() { _, _ = b.Acquire(leasetest.Within(t), leasetest.Ask("n", two)) }()
	leasetest.InQueue(t, b, "n", 1)
	destroyHolder(t, server.Addr(), held)
	abandoned := leasetest.Ask("m", two)
	if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "m", Lease: abandoned.Lease, Session: two, Abandon: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.EndSession(leasetest.Within(t), two); err != nil {
		t.Fatal(err)
	}
	three := session(t, b, nil)
	leasetest.Take(t, b, leasetest.Ask("o", three))
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	look := client(t, server.Addr())
	ours := func(e *api.SessionEntry) bool { return e.Name == "holdfast" } // the others are the test server's
	leasetest.Succeeds(t, func() error {
		keys, _, err := look.KV().Keys("", "", nil)
		sessions, _, err2 := look.Session().List(nil)
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if len(keys) > 0 || slices.ContainsFunc(sessions, ours) {
			return fmt.Errorf("left behind: keys %q, %d sessions", keys, len(sessions))
		}
		return nil
	})
}

// client makes a client of Consul.
func client(t *testing.T, addr string) *api.Client {
	t.Helper()
	pool := new(http.Transport)
	t.Cleanup(pool.CloseIdleConnections)
	c, err := api.NewClient(&api.Config{Address: addr, HttpClient: &http.Client{Transport: pool}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNoHerd: two hundred wait, in ten processes. At rest no process sends anything, and a hand-over costs a bounded number of
// requests, of all of them together.
func TestNoHerd(t *testing.T) {
	t.Parallel()
	const processes, each = 10, 20
	server := testserver.StartConsul(t, 1)[0]
	values, taps := make([]*consullock.Backend, processes), make([]*tap, processes)
	for i := range values {
		values[i], taps[i] = tapped(t, server.Addr())
	}
	requests := func() int {
		n := 0
		for _, x := range taps {
			n += int(x.n.Load())
		}
		return n
	}
	rests := func() { // a process may read again, or query again, just then: never each of the waiters
		if n := quiet(requests); n > 3*processes {
			t.Errorf("%d requests in a second by those who wait at rest", n)
		}
	}
	// A release, the query that the release answers, a read of the queue by the process that made the query, and the next query.
	const perHandOver = 6
	leasetest.NoHerd(t, values, each, rests, requests, perHandOver*processes*each)
}

// quiet waits for a second in which few requests are sent, and returns how many more come in
// another.
func quiet(requests func() int) int {
	more := func() int {
		before := requests()
		time.Sleep(time.Second)
		return requests() - before
	}
	for n := 0; n < 30 && more() > 0; n++ {
	}
	return more()
}

func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	servers := testserver.StartConsul(t, 3)
	leader := max(0, slices.IndexFunc(servers, (*testserver.ConsulServer).Leads))
	leasetest.LeaderDown(t, closing(t, servers[(leader+1)%3].Addr()), closing(t, servers[(leader+2)%3].Addr()), servers[leader].Kill)
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	for _, rawURL := range []string{
		"consul://h:0x", "consul://h?what=1", "consul://h?ca=x", "consul://:tok@h:99999", "consul://h/a//b", "consul://h/..", "consul://h/a/./b", "consul://h?min_ttl=-1s",
		"consul://h#f", "consul://h\x00", "http://h", "consuls://h?cert=only",
	} {
		b, err := consullock.Open(t.Context(), rawURL, consullock.Config{})
		if _, ok := errors.AsType[*backend.InvalidError](err); !ok {
			t.Errorf("Open(%q) = %v, %v; want *InvalidError", rawURL, b, err)
		} else if bytes.Contains(fmt.Append(nil, err), []byte("tok")) {
			t.Errorf("%v tells the token", err)
		}
	}
}
