package pglock_test

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C5: the server ends a deadlock at the cost of a piece of work which releases leases and tries
// another one of the same lock. The work is repeated, and the session keeps what it holds.
func TestAdvisoryDeadlock(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())+"&application_name=victim")
	id := leasetest.Session(t, b, time.Hour, func(x backend.Loss) { t.Errorf("lost: %+v", x) })
	shared := func() backend.AcquireRequest {
		r := leasetest.Ask("n", id)
		r.Mode = backend.Shared
		return r
	}
	had := []backend.AcquireRequest{shared(), shared(), shared(), shared()}
	slices.SortFunc(had, func(x, y backend.AcquireRequest) int { return cmp.Compare(x.Lease, y.Lease) })
	for _, r := range had {
		leasetest.Take(t, b, r)
	}
	first, other := holding(t, s, had[0].Lease), holding(t, s, had[2].Lease)
	calls := make(chan error, 4) // of the first release, and of those that gather during it
	release := func(r backend.AcquireRequest) {
		calls <- b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Session: id})
	}
	waits := func(what string) {
		leasetest.Eventually(t, what, func() bool {
			return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim' AND wait_event_type = 'Lock'`) == 1
		})
	}
	go release(had[0])
	waits("the first release waits for its row")
	go release(had[1])
	go release(had[2])
	next := shared()
	go func() {
		_, err := b.Acquire(leasetest.Within(t), next)
		calls <- err
	}()
	time.Sleep(100 * time.Millisecond) // they have arrived by then, or the test shows less
	if err := first.Commit(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-calls; err != nil {
		t.Fatalf("the first release: %v", err)
	}
	waits("the others wait")
	const lockRow = `SELECT FROM holdfast_advisory.leases WHERE lease = $1 FOR UPDATE`
	if _, err := other.Exec(leasetest.Within(t), lockRow, string(had[1].Lease)); err != nil { // the server ends the deadlock
		t.Fatal(err)
	}
	if err := other.Commit(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-calls; err != nil {
			t.Error(err)
		}
	}
	leasetest.Give(t, b, had[3])
	leasetest.Give(t, b, next)
}

// holding returns a transaction that has locked the row of a lease. It leaves the detection of
// deadlocks to other transactions.
func holding(t *testing.T, s *testserver.PostgresServer, id backend.LeaseID) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(leasetest.Within(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	tx, err := conn.Begin(leasetest.Within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{`SET deadlock_timeout = '1h'`, `SELECT FROM holdfast_advisory.leases WHERE lease = '` + string(id) + `' FOR UPDATE`} {
		if _, err := tx.Exec(leasetest.Within(t), q); err != nil {
			t.Fatal(err)
		}
	}
	return tx
}
