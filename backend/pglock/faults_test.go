package pglock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// open opens a backend that the test closes.
func open(t *testing.T, url string) *pglock.Backend {
	t.Helper()
	b, err := pglock.Open(t.Context(), url, pglock.Config{})
	return leasetest.Opened(t, b, err)
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
