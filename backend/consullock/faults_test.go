package consullock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/fence"
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

// TestLostReply: the reply to the acquire is lost: there is no ghost, and a retry with the same
// lease is the same grant.
func TestLostReply(t *testing.T) {
	t.Parallel()
	server := consul()
	proxy := chaos.Start(t, server.Addr())
	b, other := closing(t, proxy.Addr()), closing(t, server.Addr())
	id := session(t, b, nil)
	req := leasetest.Ask("n", id)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Lease)) })
	had := make(chan error, 1)
	var grant backend.Grant
	go func() {
		var err error
		for { // as the client does: under the same lease ID
			if grant, err = b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrUnavailable) {
				break
			}
		}
		had <- err
	}()
	<-lost
	proxy.Reset()
	if err := <-had; err != nil {
		t.Fatal(err)
	}
	info, err := other.Inspect(leasetest.Within(t), "n")
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 || info.Holders[0].Token != grant.Token || info.Holders[0].Lease != req.Lease {
		t.Errorf("after the lost reply: %+v, %v; want one holder with token %d", info, err, grant.Token)
	}
	leasetest.Give(t, b, req)
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders)+len(info.Waiters) != 0 {
		t.Errorf("after the release: %+v, %v; want no holder and no waiter", info, err)
	}
}

// TestSessionIsDestroyed: an operator, or a health check, ends the session in Consul. The holder is
// told immediately, and the next waiter has the lock immediately.
func TestSessionIsDestroyed(t *testing.T) {
	t.Parallel()
	server := consul()
	a, b := closing(t, server.Addr()), closing(t, server.Addr())
	told := make(chan backend.Loss, 1)
	one := session(t, a, func(l backend.Loss) { told <- l })
	two := session(t, b, nil)
	held := leasetest.Ask("n", one)
	first := leasetest.Take(t, a, held)
	next := make(chan fence.Token, 1)
	go func() { next <- leasetest.Take(t, b, leasetest.Ask("n", two)) }()
	leasetest.InQueue(t, b, "n", 1)
	destroyed := time.Now() // before the delay would begin
	destroyHolder(t, server.Addr(), held)
	if loss := leasetest.Heard(t, told); loss.Session != one || loss.Lease != "" {
		t.Errorf("told %+v", loss)
	}
	if token := <-next; token <= first {
		t.Errorf("token %d after token %d", token, first)
	}
	if took := time.Since(destroyed); took >= lockDelay {
		t.Errorf("the next has it after %s: Consul's lock-delay is %s", took, lockDelay)
	}
	if err := a.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: one}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("release of a lease that is gone: %v", err)
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
	look, _ := client(t, server.Addr(), nil)
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

// TestEndsAtItsTTL: a session that is not renewed ends at its TTL as long as its process lives.
// Consul would take twice that.
func TestEndsAtItsTTL(t *testing.T) {
	t.Parallel()
	const short, long = 8 * time.Second, 24 * time.Second
	server := consul()
	a, b := closing(t, server.Addr()), closing(t, server.Addr())
	if took, err := freeAfter(t, a, b, short); err == nil && took <= short*15/8 {
		return
	}
	// The machine may have been slow: the same for so long that it does not matter.
	if took, err := freeAfter(t, a, b, long); err != nil || took > long*15/8 {
		t.Errorf("the next has it %s after the session was opened, whose TTL is %s: %v", took, long, err)
	}
}

// freeAfter returns how long after it was opened the session of a holder in a ends, or why the holder
// could not acquire the lock.
func freeAfter(t *testing.T, a, b *consullock.Backend, ttl time.Duration) (time.Duration, error) {
	t.Helper()
	two := session(t, b, nil)
	told := make(chan backend.Loss, 1)
	asked := time.Now()
	id := leasetest.Session(t, a, ttl, func(l backend.Loss) { told <- l })
	if _, err := a.Acquire(leasetest.Within(t), leasetest.Ask(ttl.String(), id)); err != nil {
		return time.Since(asked), err
	}
	next := leasetest.Ask(ttl.String(), two)
	leasetest.Take(t, b, next)
	took := time.Since(asked)
	if took < ttl {
		t.Errorf("the next has it %s after the session was opened, whose TTL is %s", took, ttl)
	}
	if loss := <-told; loss.Session != id || loss.Cause != backend.CauseExpired {
		t.Errorf("told %+v", loss)
	}
	leasetest.Give(t, b, next)
	return took, nil
}

// counted counts the requests.
type counted struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// client makes a client of Consul whose requests are counted.
func client(t *testing.T, addr string, n *atomic.Int64) (*api.Client, *http.Client) {
	t.Helper()
	if n == nil {
		n = new(atomic.Int64)
	}
	pool := &http.Client{Transport: counted{&http.Transport{MaxIdleConnsPerHost: 100}, n}}
	c, err := api.NewClient(&api.Config{Address: addr, HttpClient: pool})
	if err != nil {
		t.Fatal(err)
	}
	return c, &http.Client{Transport: pool.Transport.(counted).RoundTripper}
}

// TestNoHerd: two hundred wait, in ten processes. They get the lock in order; at rest no process
// sends anything, and a hand-over costs a bounded number of requests, of all of them together.
func TestNoHerd(t *testing.T) {
	t.Parallel()
	const processes, waiters = 10, 20
	server := testserver.StartConsul(t, 1)[0]
	var requests atomic.Int64
	var backends []*consullock.Backend
	var sessions []backend.SessionID
	for range processes {
		c, pool := client(t, server.Addr(), &requests)
		t.Cleanup(pool.CloseIdleConnections)
		b, err := consullock.New(c, consullock.Config{Prefix: prefixOf(t), MinTTL: testserver.ConsulMinTTL})
		if err != nil {
			t.Fatal(err)
		}
		backends = append(backends, closed(t, b))
		sessions = append(sessions, session(t, b, nil))
	}
	held := leasetest.Ask("n", sessions[0])
	last := leasetest.Take(t, backends[0], held)
	type turn struct {
		i     int
		token fence.Token
		req   backend.AcquireRequest
	}
	turns := make(chan turn, processes*waiters)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), leasetest.Long) // for two hundred turns
	defer cancel()
	var wg sync.WaitGroup
	for i := range processes * waiters {
		p := (i * 7) % processes
		req := leasetest.Ask("n", sessions[p])
		wg.Go(func() {
			g, err := backends[p].Acquire(ctx, req)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
			turns <- turn{i, g.Token, req}
		})
		leasetest.InQueue(t, backends[0], "n", i+1)
	}
	atRest := quiet(&requests)
	// A process may read again, or query again, just then: never each of the waiters.
	if atRest > 3*processes {
		t.Errorf("%d requests in a second by those who wait at rest", atRest)
	}
	before := requests.Load()
	leasetest.Give(t, backends[0], held)
	for want := range processes * waiters {
		got := <-turns
		if got.i != want || got.token <= last {
			t.Fatalf("waiter %d has the lock with token %d; it is the turn of %d, and the last was %d", got.i, got.token, want, last)
		}
		last = got.token
		leasetest.Give(t, backends[got.i*7%processes], got.req)
	}
	wg.Wait()
	// A release, the query that the release answers, a read of the queue by the process that made
	// the query, and the next query.
	const perHandOver = 6
	if n := requests.Load() - before; n > perHandOver*processes*waiters {
		t.Errorf("%d requests for %d hand-overs", n, processes*waiters)
	} else {
		t.Logf("%.1f requests for a hand-over", float64(n)/processes/waiters)
	}
}

// quiet waits for a second in which few requests are sent, and returns how many more come in
// another.
func quiet(requests *atomic.Int64) int64 {
	const calm = time.Second
	for range 30 {
		before := requests.Load()
		time.Sleep(calm)
		if requests.Load() == before {
			break
		}
	}
	before := requests.Load()
	time.Sleep(calm)
	return requests.Load() - before
}

// TestLeaderIsKilled: of three servers the leader dies. The holder keeps the lock, and the waiter
// continues to wait and gets it.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	servers := testserver.StartConsul(t, 3)
	leader := 0
	for i, s := range servers {
		if s.Leads() {
			leader = i
		}
	}
	b := closing(t, servers[(leader+1)%3].Addr())
	other := closing(t, servers[(leader+2)%3].Addr())
	lost := make(chan backend.Loss, 4)
	one, two := session(t, b, func(l backend.Loss) { lost <- l }), session(t, other, func(l backend.Loss) { lost <- l })
	held := leasetest.Ask("n", one)
	first := leasetest.Take(t, b, held)
	next := make(chan error, 1)
	req := leasetest.Ask("n", two)
	go func() {
		for {
			_, err := other.Acquire(leasetest.Within(t), req)
			if !errors.Is(err, backend.ErrUnavailable) {
				next <- err
				return
			}
		}
	}()
	leasetest.InQueue(t, b, "n", 1)
	servers[leader].Kill()
	err := leasetest.InsistOn(t, func(ctx context.Context) error {
		return b.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: one})
	})
	if err != nil && !errors.Is(err, backend.ErrLost) { // it was sent twice
		t.Fatalf("release: %v", err)
	}
	select {
	case err := <-next:
		if err != nil {
			t.Fatalf("the waiter: %v", err)
		}
	case <-time.After(leasetest.Patience):
		t.Fatal("the waiter does not get the lock")
	}
	info, err := other.Inspect(leasetest.Within(t), "n")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease || info.Holders[0].Token <= first {
		t.Errorf("%+v, %v; the first token was %d", info, err, first)
	}
	if len(lost) > 0 {
		t.Errorf("told of a loss: %+v", <-lost)
	}
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
