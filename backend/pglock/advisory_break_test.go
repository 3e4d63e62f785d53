package pglock_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C10: a break meets a holder whose row is not committed. A trigger delays the commit while the
// test holds another lock.
func TestAdvisoryBreakBesideAGrant(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	other := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())+"&application_name=breaker")
	if err := b.Migrate(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	s.Exec(
		`CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1, 1); RETURN NEW; END'`,
		`CREATE TRIGGER gate BEFORE INSERT ON holdfast_advisory.leases FOR EACH ROW WHEN (NEW.name = 'n') EXECUTE FUNCTION gate()`,
	)
	gate, err := pgx.Connect(leasetest.Within(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gate.Close(context.WithoutCancel(t.Context())) })
	do := func(query string) func() {
		return func() {
			if _, err := gate.Exec(leasetest.Within(t), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	var asked, last int64
	leasetest.BreakBesideAGrant(t, b, other, leasetest.Gate{
		Shut: do(`SELECT pg_advisory_lock(1, 1)`), Open: do(`SELECT pg_advisory_unlock(1, 1)`),
		Reached: func() bool {
			return s.Int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`) == 1
		},
		Asked: func() int64 {
			now := s.Int(`SELECT (extract(epoch FROM max(query_start)) * 1000000)::bigint FROM pg_stat_activity WHERE application_name = 'breaker'`)
			if now != last {
				asked, last = asked+1, now
			}
			return asked
		},
	})
}
