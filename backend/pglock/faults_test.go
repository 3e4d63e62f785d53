package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// open opens a backend that the test closes.
func open(t *testing.T, url string) *pglock.Backend {
	t.Helper()
	b, err := pglock.Open(t.Context(), url, pglock.Config{})
	return leasetest.Opened(t, b, err)
}

// C14, K6: the replies are delayed for longer than the lease lives. It is not granted.
func TestHeldReplies(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	server := testserver.Postgres(t)
	proxy := chaos.Start(t, server.Addr())
	b, other := open(t, server.URLOf("postgres", proxy.Addr())), open(t, server.URL())
	leasetest.Session(t, b, leasetest.Long, nil) // the tables exist, and a connection
	proxy.Hold(chaos.Replies)
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: ttl}
	got := leasetest.Start(t, b, req)
	if err := proxy.Wait(leasetest.Within(t), func(s chaos.Stats) bool { return s.Replies.Kept > 0 }); err != nil { // it was asked
		t.Fatal(err)
	}
	<-time.After(2 * ttl)
	proxy.Release(chaos.Replies)
	if g := <-got; !errors.Is(g.Err, backend.ErrLost) {
		t.Errorf("granted after %s: %+v, %v", 2*ttl, g.Grant, g.Err)
	}
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 0 {
		leasetest.Eventually(t, "the lease ends", func() bool {
			info, err = other.Inspect(leasetest.Within(t), "n")
			return err == nil && len(info.Holders) == 0
		})
	}
}

// B: the reply to the commit is lost.
func TestLostCommitReply(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.LostCommitReply(t, open(t, s.URLOf("postgres", proxy.Addr())), open(t, s.URL()), proxy)
}

// B: the reply to a renewal is lost.
func TestLostRenewalReply(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.LostRenewalReply(t, open(t, s.URLOf("postgres", proxy.Addr())), proxy)
}

// F10: an operator terminates all our connections, including the one that listens. A waiter gets
// its lock, and no other call returns an error.
func TestConnectionsTerminated(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	holder, b := open(t, s.URL()), open(t, s.URL()+"&application_name=victim")
	lost := make(chan backend.Loss, 1)
	mine, theirs := leasetest.Session(t, holder, time.Hour, nil), leasetest.Session(t, b, time.Hour, func(x backend.Loss) { lost <- x })
	kept := leasetest.Ask("kept", theirs)
	leasetest.Take(t, b, kept)
	held := leasetest.Ask("n", mine)
	leasetest.Take(t, holder, held)
	for range 3 {
		waits := leasetest.Ask("n", theirs)
		got := leasetest.Start(t, b, waits)
		leasetest.InQueue(t, holder, "n", 1)
		leasetest.Eventually(t, "it listens", func() bool {
			return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim' AND query LIKE 'LISTEN%' AND state = 'idle'`) == 1
		})
		if n := s.Int(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim'`); n < 1 {
			t.Fatalf("%d connections of the victim", n)
		}
		from := time.Now()
		leasetest.Give(t, holder, held)
		if g := <-got; g.Err != nil {
			t.Fatal(g.Err)
		}
		if took := time.Since(from); took > 20*time.Second { // the timer takes 30
			t.Fatalf("the hand-over took %s", took)
		}
		held = leasetest.Ask("n", mine)
		next := leasetest.Start(t, holder, held)
		leasetest.Give(t, b, waits)
		if g := <-next; g.Err != nil {
			t.Fatal(g.Err)
		}
	}
	// What is notified while nothing listens is found all the same.
	s.Int(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim'`)
	if _, err := holder.Break(leasetest.Within(t), backend.BreakRequest{Name: "kept", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	select {
	case x := <-lost:
		if x.Lease != kept.Lease || x.Reason != "why" {
			t.Errorf("told %+v", x)
		}
	case <-time.After(leasetest.Patience):
		t.Error("the loss was not told")
	}
}

// F8: a process sleeps in the middle of a transaction, with the rows of its locks locked. The
// server ends its connection, and the other clients continue.
func TestSleeperInTransaction(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	sleeper, b := open(t, s.URLOf("postgres", proxy.Addr())), open(t, s.URL())
	leasetest.Session(t, sleeper, leasetest.Long, nil)
	awake := leasetest.Session(t, b, leasetest.Long, nil)
	leasetest.Give(t, b, func() backend.AcquireRequest { r := leasetest.Ask("n", awake); leasetest.Take(t, b, r); return r }())

	// Its transaction waits for the row, and when it gets that its client is gone.
	tx := begun(t, s, `SELECT FROM holdfast.locks WHERE name = 'n' FOR UPDATE`)
	waits, got := waitsForARow(t, s), make(chan error, 1)
	ctx, began := leasetest.Within(t), time.Now()
	go func() {
		got <- sleeper.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: backend.NewLeaseID(), Abandon: true})
	}()
	leasetest.Eventually(t, "the transaction waits", func() bool { return waits("") })
	proxy.Hold(chaos.Replies)
	if err := tx.Rollback(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	// On a busy machine the server may have ended it by now.
	leasetest.Eventually(t, "it sleeps with the row locked", func() bool { return !waits("") })
	from := time.Now()
	leasetest.Take(t, b, leasetest.Ask("another", awake))
	mine := leasetest.Ask("n", awake)
	leasetest.Take(t, b, mine)
	t.Logf("acquiring the lock took %s", time.Since(from))
	proxy.Heal()
	proxy.Reset()
	const longest = 10 * time.Second // of a request; a busy machine may take more
	if err := <-got; err != nil && (time.Since(began) < longest || !errors.Is(err, backend.ErrUnavailable)) {
		t.Errorf("it is to be retried: %v", err)
	}
	leasetest.Give(t, b, mine)
}

// C12: the server is gone.
func TestServerGone(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.ServerGone(t, open(t, s.URLOf("postgres", proxy.Addr())), proxy)
}

// F9: the server is killed again and again under load, and its default is a snapshot for each
// transaction, which does not see what was committed while the transaction waited for a row.
func TestKilledUnderLoadWithSnapshots(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t, "default_transaction_isolation=repeatable read")
	leasetest.KilledUnderLoad(t, func() backend.Backend { return open(t, s.URL()) }, s.Restart)
}

func TestRenewalOnItsWay(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	leasetest.RenewalOnItsWay(t, open(t, s.URL()), func(id backend.SessionID) func() {
		tx := begun(t, s, `UPDATE holdfast.sessions SET ends = clock_timestamp() + interval '1 hour', ttl = 3600000000 WHERE ends > clock_timestamp() AND id = '`+string(id)+`'`)
		return func() {
			if err := tx.Commit(leasetest.Within(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
