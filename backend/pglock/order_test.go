package pglock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// B: rows are locked in the order of the bytes of their names, whatever the collation of the database and whatever locks them.
// In two orders, transactions deadlock.
func TestOneOrderOfLocks(t *testing.T) {
	t.Parallel()
	const first, last = "B", "a" // a language has "a" before "B"
	s := testserver.Postgres(t)
	if s.Int(`SELECT ('`+last+`' < '`+first+`')::int`) != 1 {
		t.Fatal("the database compares bytes")
	}
	for _, c := range []struct {
		name, table string
		timed, fat  bool
		call        func(context.Context, backend.Backend, []backend.AcquireRequest) error
	}{
		{"end of a session", "locks", false, true, func(ctx context.Context, b backend.Backend, all []backend.AcquireRequest) error {
			return b.EndSession(ctx, all[0].Session)
		}},
		{"renewal of thin leases", "locks", true, false, renewAll},
		{"renewal of leases", "leases", true, true, renewAll},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := s.Database(t, strings.ReplaceAll(c.name, " ", "_"))
			b := open(t, db.URL())
			b.KeepFromSweeping()
			id := leasetest.Session(t, b, time.Hour, nil)
			var all []backend.AcquireRequest
			for _, name := range []string{last, first} {
				req := leasetest.Ask(name, id)
				if req.Timed = c.timed; c.timed {
					req.TTL = time.Hour
				}
				leasetest.Take(t, b, req)
				all = append(all, req)
				if c.fat {
					db.Exec(strings.ReplaceAll(inflate, "$N", name))
				}
			}
			row := ` FROM holdfast.` + c.table + ` WHERE name = `
			conn, err := pgx.Connect(leasetest.Within(t), db.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(t.Context()) }()
			if _, err := conn.Exec(leasetest.Within(t), `BEGIN; SELECT`+row+`'`+last+`' FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- leasetest.InsistOn(t, func(ctx context.Context) error { return c.call(ctx, b, all) }) }()
			leasetest.Eventually(t, "the first row is locked while the last one is waited for", func() bool {
				return db.Int(`SELECT count(*) FROM (SELECT`+row+`'`+first+`' FOR UPDATE SKIP LOCKED) x`) == 0
			})
			if _, err := conn.Exec(leasetest.Within(t), `ROLLBACK`); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func renewAll(ctx context.Context, b backend.Backend, all []backend.AcquireRequest) error {
	var req backend.RenewRequest
	for _, r := range all {
		req.Leases = append(req.Leases, backend.TimedRenewal{Name: r.Name, Lease: r.Lease})
	}
	_, err := b.Renew(ctx, req)
	return err
}
