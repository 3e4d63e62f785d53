package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestTables tests what the stores on internal/sqllease have in common.
func TestTables(t *testing.T) {
	t.Parallel()
	leasetest.RunTables(t, func(t *testing.T) *leasetest.Tables {
		t.Helper()
		return tablesOf(t, testserver.Postgres(t))
	})
}

// A transaction whose default is a snapshot does not see what was committed while it waited for a row, unless ours says otherwise.
func TestTablesOfSnapshots(t *testing.T) {
	t.Parallel()
	leasetest.WaitsForTheRow(t, tablesOf(t, testserver.Postgres(t, "default_transaction_isolation=repeatable read")))
}

// As the store does it, for the lock $N.
const inflate = `WITH k AS (UPDATE holdfast.locks SET fat = 1 WHERE name = '$N' RETURNING *)
	INSERT INTO holdfast.leases SELECT name, lease, session, '', true, token, mode, permits, cap, owner, note, timed, ttl, token, since, since, ends, false FROM k`

func tablesOf(t *testing.T, s *testserver.PostgresServer) *leasetest.Tables {
	t.Helper()
	waits := waitsForARow(t, s)
	return &leasetest.Tables{
		Open: func(url string) leasetest.TablesBackend { return open(t, url) },
		URL:  func(addr string) string { return s.URLOf("postgres", addr) }, Addr: s.Addr(),
		Clock: func() leasetest.Clock { _, clock := testserver.WithClock(t, s); return clock }, Copy: s.Copy,
		Exec: s.Exec, Int: s.Int, Waits: func() bool { return waits("") },
		Begin: func(statements ...string) func() { return begun(t, s, statements...) },
		Dialect: strings.NewReplacer("@", "holdfast.", "$NOW", "clock_timestamp()", "$MICROS", "(1000000 * extract(epoch FROM clock_timestamp()))::bigint",
			"$HOUR", "interval '1 hour'", "$FLOOR", "floor", "$ZERO", "1", "$ADDR", "'nobody', ", "$INFLATE", inflate),
	}
}

// connect returns a connection that ends with the test.
func connect(t *testing.T, s *testserver.PostgresServer) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// waitsForARow returns what reports whether a statement that begins like this waits for a row, or a table, in less time than
// any waits. A busy machine may be slower: then the request has begun the long way, and waits there.
func waitsForARow(t *testing.T, s *testserver.PostgresServer) func(beginning string) bool {
	t.Helper()
	var conn *pgx.Conn
	return func(beginning string) bool {
		if conn == nil {
			conn = connect(t, s)
		}
		n := 0
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1`, beginning+"%").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

// begun executes the statements in a transaction of another client, and returns its commit.
func begun(t *testing.T, s *testserver.PostgresServer, statements ...string) func() {
	t.Helper()
	tx, err := connect(t, s).Begin(t.Context())
	for _, q := range statements {
		if err == nil {
			_, err = tx.Exec(t.Context(), q)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Commit(leasetest.Within(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// began begins a Watch, and returns its events after the first, its end, and what ends it.
func began(t *testing.T, b *pglock.Backend) (<-chan backend.Event, <-chan error, func()) {
	t.Helper()
	ctx, stop := context.WithCancel(leasetest.Within(t))
	events, ended := make(chan backend.Event, 16), make(chan error, 1)
	go func() { ended <- b.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) { events <- e }) }()
	return events, ended, func() {
		t.Helper()
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// next waits for the next event of a Watch.
func next(t *testing.T, events <-chan backend.Event, ended <-chan error, want backend.EventKind) {
	t.Helper()
	select {
	case e := <-events:
		if e.Kind != want {
			t.Fatalf("%+v, not %s", e, want)
		}
	case err := <-ended:
		t.Fatalf("watch: %v", err)
	case <-leasetest.Within(t).Done():
		t.Fatalf("no event %s", want)
	}
}

// C10: a watcher waits for the statement of a free lock that has begun, and no lock is thin any more.
func TestWatcherComesMeanwhile(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	id := leasetest.Session(t, b, leasetest.Long, nil)
	first := leasetest.Ask("n", id)
	leasetest.Take(t, b, first)
	leasetest.Give(t, b, first)
	waits := waitsForARow(t, s)
	commit := begun(t, s, `UPDATE holdfast.locks SET used = clock_timestamp()`)
	got := leasetest.Start(t, b, leasetest.Ask("n", id))
	leasetest.Eventually(t, "it waits", func() bool { return waits("") })
	events, ended, stop := began(t, b)
	leasetest.Eventually(t, "the watcher waits", func() bool { return len(events) > 0 || waits("LOCK TABLE") })
	commit()
	if g := <-got; g.Err != nil {
		t.Error(g.Err)
	}
	next(t, events, ended, backend.EventWatching)
	if n := s.Int(`SELECT count(*) FROM holdfast.locks WHERE lease <> '' AND fat = 0`); n != 0 {
		t.Errorf("%d locks are thin while there is a watcher", n)
	}
	stop()
}

// C10: a watcher gets the events of uncontended locks, also of those that were acquired before.
func TestWatchOfFreeLocks(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b, watcher := open(t, s.URL()), open(t, s.URL())
	id, ends := leasetest.Session(t, b, leasetest.Long, nil), leasetest.Session(t, b, leasetest.Long, nil)
	req := leasetest.Ask("before", id)
	leasetest.Take(t, b, req)
	leasetest.Take(t, b, leasetest.Ask("ends", ends))
	events, ended, stop := began(t, watcher)
	next(t, events, ended, backend.EventWatching)
	leasetest.Give(t, b, req)
	next(t, events, ended, backend.EventReleased)
	if err := b.EndSession(leasetest.Within(t), ends); err != nil {
		t.Fatal(err)
	}
	next(t, events, ended, backend.EventReleased)
	leasetest.Take(t, b, leasetest.Ask("after", id))
	next(t, events, ended, backend.EventAcquired)
	stop()
}
