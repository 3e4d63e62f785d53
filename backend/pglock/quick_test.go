package pglock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// B12: an uncontended lock costs one statement that decides, in one round trip, each way. A lock
// that was contended is that cheap again when it is free. A waiter at rest costs nothing.
func TestOneRoundTripForFreeLocks(t *testing.T) {
	t.Parallel()
	const pairs = 20
	s := testserver.Postgres(t, "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_utility=on")
	s.Exec(`CREATE EXTENSION pg_stat_statements`)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	id, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	count := func(what, where string) int64 {
		return s.Int(`SELECT coalesce(sum(` + what + `), 0)::bigint FROM pg_stat_statements WHERE query ` + where)
	}
	all := func() int64 { return count("calls", `NOT LIKE '%pg_stat_statements%'`) }
	// The plans are made for a table of one row, which then grows.
	s.Exec(`INSERT INTO holdfast.locks (name, last, used) VALUES ('other', 0, clock_timestamp())`, `ANALYZE holdfast.locks`)
	held := leasetest.Ask("n", id)
	leasetest.Take(t, b, held)
	waits := leasetest.Start(t, other, leasetest.Ask("n", theirs))
	leasetest.InQueue(t, b, "n", 1)
	leasetest.Eventually(t, "nothing is sent", func() bool {
		s.Exec(`SELECT pg_stat_statements_reset()`)
		time.Sleep(time.Second)
		return all() == 0
	})
	leasetest.Give(t, b, held)
	if g := <-waits; g.Err != nil {
		t.Fatal(g.Err)
	}
	if err := other.EndSession(leasetest.Within(t), theirs); err != nil {
		t.Fatal(err)
	}
	pair := func(req backend.AcquireRequest, timed bool) {
		if req.Timed = timed; timed {
			req.TTL = time.Minute
		}
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	pair(leasetest.Ask("n", id), false) // finds that it is not contended any more
	s.Exec(`INSERT INTO holdfast.locks (name, last, used) SELECT 'other' || n, 0, clock_timestamp() FROM generate_series(1, 20000) AS n`)
	var long, thin, sent, pages int64
	for range 3 { // a request may be repeated after a stall
		began := time.Now()
		s.Exec(`SELECT pg_stat_statements_reset()`)
		for n := range pairs {
			pair(leasetest.Ask("n", id), n%2 == 0)
		}
		pair(backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID()}, true)
		const short = `LIKE 'UPDATE "holdfast".locks%'`
		long, thin, sent = count("calls", `LIKE '%l.place, l.mode, l.permits%'`), count("calls", short), all()
		pages = count("shared_blks_hit + shared_blks_read", short)
		if time.Since(began) < 5*time.Second || long == 0 && thin == 2*pairs+2 && sent == thin {
			break
		}
	}
	if pages > 40*thin {
		t.Errorf("%d statements read %d pages: they do not use the indexes", thin, pages)
	}
	if long != 0 || thin != 2*pairs+2 || sent != thin {
		t.Errorf("%d pairs and one are %d statements, of which %d change the row and %d read the leases", pairs, sent, thin, long)
	}
}
