package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestThin(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	leasetest.Thin(t, b, other, leasetest.Forms{
		Thin:    func() int64 { return s.Int(`SELECT count(*) FROM holdfast.locks WHERE lease <> '' AND fat = 0`) },
		Fat:     func() int64 { return s.Int(`SELECT count(*) FROM holdfast.leases`) },
		OldRows: func() { s.Exec(`UPDATE holdfast.locks SET used = used - interval '1 hour'`) },
		Sweep:   func(ctx context.Context) { other.Sweep(ctx, time.Minute) },
	})
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
	conn := connect(t, s)
	return func(beginning string) bool {
		n := 0
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1`, beginning+"%").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

// begun returns a transaction of another client that has executed the statements.
func begun(t *testing.T, s *testserver.PostgresServer, statements ...string) pgx.Tx {
	t.Helper()
	tx, err := connect(t, s).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range statements {
		if _, err := tx.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	return tx
}

// A statement waits for the row of the lock, and sees of the row what is committed then.
func TestThinWaitsForTheRow(t *testing.T) { //nolint:tparallel // one row
	t.Parallel()
	s := testserver.Postgres(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	id := leasetest.Session(t, b, time.Hour, nil)
	waits := waitsForARow(t, s)
	then := func() {}
	// meanwhile runs the statements in a transaction that holds the row, while call waits for it.
	meanwhile := func(t *testing.T, call func() error, statements ...string) error {
		t.Helper()
		tx := begun(t, s, statements...)
		done := make(chan error, 1)
		go func() { done <- call() }()
		leasetest.Eventually(t, "it waits", func() bool { return waits("") })
		then()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return <-done
	}
	const row = ` WHERE name = 'n'`
	free := func(t *testing.T) backend.AcquireRequest { // the row exists
		t.Helper()
		s.Exec(`DELETE FROM holdfast.leases`, `UPDATE holdfast.locks SET lease = '', fat = 0, buried = '-infinity'`)
		req := leasetest.Ask("n", id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
		return leasetest.Ask("n", id)
	}
	acquire := func(req backend.AcquireRequest) func() error {
		return func() error {
			_, err := b.Acquire(leasetest.Within(t), req)
			return err
		}
	}
	isHeld := func(t *testing.T, by string) {
		t.Helper()
		info, err := b.Inspect(leasetest.Within(t), "n")
		if err != nil || len(info.Holders) != 1 || by != "" && string(info.Holders[0].Lease) != by {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
	}
	t.Run("a waiter comes", func(t *testing.T) { //nolint:paralleltest // one row
		req := free(t)
		leasetest.Take(t, b, req)
		err := meanwhile(t, func() error {
			return b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id})
		}, `WITH k AS (UPDATE holdfast.locks SET fat = 1, last = last + 64`+row+` RETURNING *) INSERT INTO holdfast.leases
			SELECT name, lease, session, '', true, token, mode, permits, cap, owner, note, timed, ttl, token, since, since, ends, false FROM k
			UNION ALL SELECT name, 'Lqqqqqqqqqqqqqqqqqqqqqqqqqq', session, 'nobody', false, last, mode, permits, cap, owner, note, timed, ttl, 0, since, since, NULL, true FROM k`)
		if err != nil {
			t.Errorf("release: %v", err)
		}
		isHeld(t, "Lqqqqqqqqqqqqqqqqqqqqqqqqqq")
	})
	t.Run("another lease is granted", func(t *testing.T) { //nolint:paralleltest // one row
		req := free(t)
		req.Wait = false
		err := meanwhile(t, acquire(req), `UPDATE holdfast.locks SET last = last + 1, token = last + 1, lease = 'Lqqqqqqqqqqqqqqqqqqqqqqqqqq', session = '`+string(id)+`'`+row)
		if err == nil {
			t.Error("both hold it")
		}
		isHeld(t, "Lqqqqqqqqqqqqqqqqqqqqqqqqqq")
	})
	t.Run("it is abandoned", func(t *testing.T) { //nolint:paralleltest // one row
		req := free(t)
		err := meanwhile(t, acquire(req), `UPDATE holdfast.locks SET buried = clock_timestamp() + interval '1 hour'`+row,
			`INSERT INTO holdfast.tombs VALUES ('n', '`+string(req.Lease)+`', clock_timestamp() + interval '1 hour')`)
		if err == nil {
			t.Error("it is granted")
		}
	})
	t.Run("the row is swept, and is made again", func(t *testing.T) { //nolint:paralleltest // one row
		req := free(t)
		token := int64(leasetest.Take(t, b, req))
		leasetest.Give(t, b, req)
		next := leasetest.Ask("n", id)
		err := meanwhile(t, acquire(next), `UPDATE holdfast.meta SET floor = (SELECT last + 3600000000 FROM holdfast.locks`+row+`)`, `DELETE FROM holdfast.locks`+row,
			`INSERT INTO holdfast.locks (name, last, used) VALUES ('n', 1, clock_timestamp())`)
		if err != nil {
			t.Error(err)
		}
		info, err := b.Inspect(leasetest.Within(t), "n")
		if err != nil || int64(info.Token) <= token+time.Hour.Microseconds() {
			t.Errorf("%+v, %v; the floor is an hour of microseconds above %d", info, err, token)
		}
	})
	t.Run("a watcher comes", func(t *testing.T) { //nolint:paralleltest // one row
		req := free(t)
		ctx, stop := context.WithCancel(leasetest.Within(t))
		watching, ended := make(chan struct{}), make(chan error, 1)
		then = func() {
			go func() {
				ended <- b.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) {
					if e.Kind == backend.EventWatching {
						close(watching)
					}
				})
			}()
			leasetest.Eventually(t, "the watcher waits", func() bool {
				select {
				case <-watching:
					return true
				default:
					return waits("LOCK TABLE")
				}
			})
		}
		if err := meanwhile(t, acquire(req), `UPDATE holdfast.locks SET used = clock_timestamp()`+row); err != nil {
			t.Error(err)
		}
		<-watching
		if n := s.Int(`SELECT count(*) FROM holdfast.locks WHERE lease <> '' AND fat = 0`); n != 0 {
			t.Errorf("%d locks are thin while there is a watcher", n)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A server whose default is another isolation: a lease in a row that is made by the same transaction,
// which waited for the sweep of the row before, has a token above the floor of now.
func TestThinIsolation(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t, "default_transaction_isolation=repeatable read")
	b := open(t, s.URL())
	b.KeepFromSweeping()
	id := leasetest.Session(t, b, time.Hour, nil)
	req := leasetest.Ask("n", id)
	last := int64(leasetest.Take(t, b, req))
	leasetest.Give(t, b, req)
	tx := begun(t, s, `UPDATE holdfast.meta SET floor = (SELECT last + 3600000000 FROM holdfast.locks)`, `DELETE FROM holdfast.locks`)
	fresh := open(t, s.URL()) // which does not know that there is a row
	fresh.KeepFromSweeping()
	waits, done := waitsForARow(t, s), make(chan int64, 1)
	go func() {
		g, err := fresh.Acquire(leasetest.Within(t), leasetest.Ask("n", id))
		if err != nil {
			t.Error(err)
		}
		done <- int64(g.Token)
	}()
	leasetest.Eventually(t, "it waits", func() bool { return waits("") })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if token := <-done; token <= last+time.Hour.Microseconds() {
		t.Errorf("token %d; the floor is %d", token, last+time.Hour.Microseconds())
	}
}
