package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C8: a release wakes the next waiter, which would try by itself a second later.
func TestAdvisoryReleaseWakes(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b, other := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())), openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	id, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	const rounds = 20
	woken := 0
	for range rounds {
		held, waits := leasetest.Ask("n", id), leasetest.Ask("n", theirs)
		leasetest.Take(t, b, held)
		got := leasetest.Start(t, other, waits)
		leasetest.InQueue(t, b, "n", 1)
		leasetest.Give(t, b, held)
		g := <-got
		if g.Err != nil {
			t.Fatal(g.Err)
		}
		if !g.Grant.ByTimer {
			woken++
		}
		leasetest.Give(t, other, waits)
	}
	if woken <= rounds/2 {
		t.Errorf("%d of %d were woken, the others found out by themselves", woken, rounds)
	}
}

// C6: another connection writes the row of the same lease at the same moment. This one has the
// server's lock for an instant, and releases it.
func TestAdvisoryRowOfAnother(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())+"&application_name=late")
	req := leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil))
	conn, err := pgx.Connect(leasetest.Within(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(leasetest.Within(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(leasetest.Within(t), `INSERT INTO holdfast_advisory.leases (name, lease, key, shared, conn, owner, note, token, since)
		VALUES ($1, $2, 0, false, 0, '', '', 1, clock_timestamp())`, req.Name, string(req.Lease))
	if err != nil {
		t.Fatal(err)
	}
	const locks = `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND a.application_name = 'late'`
	before := s.Int(locks)
	got := leasetest.Start(t, b, req)
	leasetest.Eventually(t, "it waits for the row", func() bool {
		return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'late' AND wait_event_type = 'Lock'`) == 1
	})
	if err := errors.Join(tx.Commit(leasetest.Within(t)), conn.Close(leasetest.Within(t))); err != nil {
		t.Fatal(err)
	}
	if g := <-got; !errors.Is(g.Err, backend.ErrLost) {
		t.Errorf("it has %+v", g)
	}
	if now := s.Int(locks); now != 1 || before != 1 {
		t.Errorf("its connection has %d locks, and not only its own", now)
	}
}
