package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F23, B19: a pooler gives every transaction any connection that is free. No lock lives in a
// connection, so that nothing changes except how a waiter learns of its grant: there are no notifications.
func TestConformanceBehindAPooler(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := testserver.Postgres(t)
	addr := testserver.PgBouncer(t, server, "transaction")
	server.Database(t, "locks").Hostile("postgres")
	url := strings.Replace(server.URLOf("postgres", addr), "/postgres?", "/locks?", 1) + "&listen=false"
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := pglock.Open(t.Context(), url, pglock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		NoRestart: "the server itself is restarted by TestConformance",
		Only: append(leasetest.Transport(),
			"C3/many-in-queue", "C3/many-permits-are-not-overtaken", "C3/the-queue-moves-as-far-as-it-fits", "C3/writer-does-not-pass-readers",
			"C4/a-grant-to-a-dead-waiter-ends", "C6/acquire-twice-in-queue", "C6/the-end-of-an-adopted-place", "C6/the-grant-of-an-adopted-place",
			"C7/abandoned-head-lets-the-queue-move", "C7/abandon-races-the-grant", "C7/many-give-up",
			"C8/a-dead-waiter-is-passed", "C8/a-hand-over-never-stalls", "C8/a-session-end-hands-over", "C8/every-waiter-is-woken",
			"C10/a-lost-session-is-told", "C10/the-next-in-queue-is-granted", "C12/a-wait-ends-with-its-context",
		),
	})
}

// B19: with PgBouncer's default settings, a value without listen=false gets an error before
// anything is done.
func TestPoolerIsRefused(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	for _, mode := range []string{"session", "transaction"} {
		b := open(t, server.URLOf("postgres", testserver.PgBouncer(t, server, mode)))
		err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		if !errors.Is(err, pglock.ErrPooler) || !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v", mode, err)
		}
	}
	if n := server.Int("SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'"); n != 0 {
		t.Error("something was done")
	}
}

// B19: a pooler that lets us connect is detected, and the locks are as good, whatever happens to
// the notifications.
func TestPoolerIsSeen(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	addr := testserver.PgBouncer(t, server, "session", "ignore_startup_parameters = plan_cache_mode")
	b := open(t, server.URLOf("postgres", addr))
	found, err := b.Examine(leasetest.Within(t))
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Text, "pooler") {
		t.Errorf("it found %v, %v", found, err)
	}
	id := leasetest.Session(t, b, leasetest.Long, nil)
	first, second := leasetest.Ask("n", id), leasetest.Ask("n", id)
	before := leasetest.Take(t, b, first)
	got := leasetest.Start(t, b, second)
	leasetest.InQueue(t, b, "n", 1)
	leasetest.Give(t, b, first)
	if g := <-got; g.Err != nil || g.Grant.Token <= before {
		t.Errorf("token %d after %d, %v", g.Grant.Token, before, g.Err)
	}
	leasetest.Give(t, b, second)
}

// B: the server behind a pooler becomes a standby. The pooler keeps our connections, over which
// nothing works any more: the other server of the URL is found all the same.
func TestPoolerOfAStandbyIsLeft(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	first, second := testserver.Postgres(t), testserver.Postgres(t)
	if err := open(t, second.URL()).Migrate(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	addr := testserver.PgBouncer(t, first, "transaction")
	b := open(t, first.URLOf("postgres", addr+","+second.Addr())+"&listen=false")
	b.KeepFromSweeping() // that would make a second connection some time
	ask := func(ctx context.Context) (backend.Grant, error) {
		return b.Acquire(ctx, backend.AcquireRequest{Name: string(backend.NewLeaseID()), Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour})
	}
	if _, err := ask(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	first.Demote()
	if _, err := leasetest.Insist(t, ask); err != nil {
		t.Fatal(err)
	}
	if n := second.Int(`SELECT count(*) FROM holdfast.leases`); n != 1 {
		t.Errorf("%d leases on the new primary", n)
	}
}

// B: the server's end of a pooler's connection breaks while a reply is in transit. The pooler
// reports that in the words of a server that ends a connection; but the request may still be in
// transit to the server.
func TestPoolerLosesTheServer(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	proxy := chaos.Start(t, server.Addr())
	_, port, _ := strings.Cut(proxy.Addr(), ":")
	addr := testserver.PgBouncer(t, server, "transaction", "[databases]", "postgres = host=127.0.0.1 port="+port)
	leasetest.LostRenewalReply(t, open(t, server.URLOf("postgres", addr)+"&listen=false"), proxy)
}

// B20, B22: a server that ends idle connections, and a pool that has replaced all its
// connections, release no lock, and a waiter learns of its grant all the same.
func TestIdleConnectionsAreEnded(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := testserver.Postgres(t, "idle_session_timeout=2s")
	b, other := open(t, server.URL()), open(t, server.URL())
	lost := make(chan backend.Loss, 1)
	id := leasetest.Session(t, b, leasetest.Long, func(l backend.Loss) { lost <- l })
	holder := leasetest.Ask("n", id)
	leasetest.Take(t, b, holder)
	got := leasetest.Start(t, other, leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil)))
	leasetest.InQueue(t, b, "n", 1)
	for range 3 {
		if info, err := b.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != holder.Lease {
			t.Fatalf("the lock is %+v, %v", info, err)
		}
		time.Sleep(2500 * time.Millisecond) // longer than the server lets a connection idle
	}
	leasetest.Give(t, b, holder)
	if g := <-got; g.Err != nil || g.Grant.ByTimer {
		t.Errorf("the waiter has %+v", g)
	}
	select {
	case l := <-lost:
		t.Errorf("the session was told %+v", l)
	default:
	}
}
