package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// B12: an uncontended lock costs one statement that decides, in one round trip, each way. A lock
// that was contended is that cheap again when it is free.
func TestOneRoundTripForFreeLocks(t *testing.T) {
	t.Parallel()
	const pairs = 20
	s := testserver.Postgres(t, "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_utility=on")
	s.Exec(`CREATE EXTENSION pg_stat_statements`)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	id, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	// The plans are made for a table of one row, which then grows.
	s.Exec(`INSERT INTO holdfast.locks (name, last, used) VALUES ('other', 0, clock_timestamp())`, `ANALYZE holdfast.locks`)
	held := leasetest.Ask("n", id)
	leasetest.Take(t, b, held)
	waits := leasetest.Start(t, other, leasetest.Ask("n", theirs))
	leasetest.InQueue(t, b, "n", 1)
	leasetest.Give(t, b, held)
	if g := <-waits; g.Err != nil {
		t.Fatal(g.Err)
	}
	if err := other.EndSession(leasetest.Within(t), theirs); err != nil {
		t.Fatal(err)
	}
	pair := func(timed bool) {
		req := leasetest.Ask("n", id)
		if req.Timed = timed; timed {
			req.TTL = time.Minute
		}
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	pair(false) // finds that it is not contended any more
	s.Exec(`INSERT INTO holdfast.locks (name, last, used) SELECT 'other' || n, 0, clock_timestamp() FROM generate_series(1, 20000) AS n`)
	var long, thin, all, pages int64
	for range 3 { // a request may be repeated after a stall
		began := time.Now()
		s.Exec(`SELECT pg_stat_statements_reset()`)
		for n := range pairs {
			pair(n%2 == 0)
		}
		alone := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
		leasetest.Take(t, b, alone)
		leasetest.Give(t, b, alone)
		long = s.Int(`SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query LIKE '%l.place, l.mode, l.permits%'`)
		thin = s.Int(`SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query LIKE 'UPDATE "holdfast".locks%'`)
		all = s.Int(`SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'`)
		pages = s.Int(`SELECT sum(shared_blks_hit + shared_blks_read)::bigint FROM pg_stat_statements WHERE query LIKE 'UPDATE "holdfast".locks%'`)
		if time.Since(began) < 5*time.Second || long == 0 && thin == 2*pairs+2 && all == thin {
			break
		}
	}
	if pages > 40*thin {
		t.Errorf("%d statements read %d pages: they do not use the indexes", thin, pages)
	}
	if long != 0 || thin != 2*pairs+2 || all != thin {
		t.Errorf("%d pairs and one are %d statements, of which %d change the row and %d read the leases", pairs, all, thin, long)
	}
}

// As the store does it, for the lock $N.
const (
	inflate = `WITH k AS (UPDATE holdfast.locks SET fat = 1 WHERE name = '$N' RETURNING *)
		INSERT INTO holdfast.leases SELECT name, lease, session, '', true, token, mode, permits, cap, owner, note, timed, ttl, token, since, since, ends, false FROM k`
	bury = `INSERT INTO holdfast.locks (name, last, used, buried) SELECT '$N', floor, clock_timestamp(), clock_timestamp() + interval '1 hour' FROM holdfast.meta`
)

// database returns what the tests of the quick statements need of a server.
func database(s *testserver.PostgresServer) leasetest.Database {
	return leasetest.Database{
		Exec:    func(q string) { s.Exec(q) },
		Int:     func(q string) int64 { return s.Int(q) },
		Numbers: 1,
		Dialect: strings.NewReplacer("$INFLATE", inflate, "$BURIED", bury, "$THIN", "locks", "@", "holdfast.", "$FUTURE", "clock_timestamp() + interval '1 hour'", "$PAST", "clock_timestamp() - interval '1 hour'", "$FLOOR", "floor", "$ADDR", "'nobody', "),
	}
}

// Where the conditions of the quick statements do not hold, that is found, and the long way
// taken.
func TestQuickConditions(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	leasetest.QuickConditions(t, b, database(s))
}

func TestQuickTokenAboveFloor(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	leasetest.QuickTokenAboveFloor(t, open(t, s.URL()), database(s))
}

// C13: a watcher gets the events of uncontended locks.
func TestWatchOfFreeLocks(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b, watcher := open(t, s.URL()), open(t, s.URL())
	id := leasetest.Session(t, b, time.Hour, nil)
	req := leasetest.Ask("before", id)
	leasetest.Take(t, b, req)
	ends := leasetest.Session(t, b, time.Hour, nil)
	leasetest.Take(t, b, leasetest.Ask("ends", ends))
	ctx, stop := context.WithCancel(leasetest.Within(t))
	defer stop()
	events := make(chan backend.Event, 16)
	done := make(chan error, 1)
	go func() {
		done <- watcher.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) { events <- e })
	}()
	next := func(want backend.EventKind) {
		t.Helper()
		select {
		case e := <-events:
			if e.Kind != want {
				t.Fatalf("%+v, not %s", e, want)
			}
		case err := <-done:
			t.Fatalf("watch: %v", err)
		case <-time.After(leasetest.Patience):
			t.Fatalf("no event %s", want)
		}
	}
	next(backend.EventWatching)
	leasetest.Give(t, b, req)
	next(backend.EventReleased)
	if err := b.EndSession(leasetest.Within(t), ends); err != nil {
		t.Fatal(err)
	}
	next(backend.EventReleased)
	req = leasetest.Ask("after", id)
	leasetest.Take(t, b, req)
	next(backend.EventAcquired)
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// B: the connection breaks before the reply is here. The request may still be in transit, and
// grant the lease once more after its release: the caller gets the error, and abandons the lease.
func TestQuickReplyLost(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	b, other := open(t, s.URLOf("postgres", proxy.Addr())), open(t, s.URL())
	id, theirs := leasetest.Session(t, b, leasetest.Long, nil), leasetest.Session(t, other, time.Minute, nil)
	for range 2 { // the statements are prepared
		req := leasetest.Ask("n", id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	lose := func(what string, call func() error) {
		t.Helper()
		lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(what)) })
		done := make(chan error, 1)
		go func() { done <- call() }()
		<-lost
		proxy.Reset()
		var away *backend.UnavailableError
		if err := <-done; !errors.As(err, &away) || !away.MayHold {
			t.Errorf("%v; it has to say that it may have been done", err)
		}
	}
	req := leasetest.Ask("n", id)
	lose(string(req.Lease), func() error {
		_, err := b.Acquire(leasetest.Within(t), req)
		return err
	})
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 1 {
		t.Fatalf("Inspect: %+v, %v; the lease is held", info, err)
	}
	leasetest.Take(t, b, req)
	waits := leasetest.Ask("n", theirs)
	got := leasetest.Start(t, other, waits)
	leasetest.InQueue(t, other, "n", 1)
	lose(string(req.Lease), func() error {
		return b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id})
	})
	if g := <-got; g.Err != nil {
		t.Errorf("the one in the queue: %v", g.Err)
	}
	leasetest.Give(t, other, waits)
}
