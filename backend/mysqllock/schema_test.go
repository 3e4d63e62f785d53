package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Many processes use an empty database concurrently.
func TestMadeAtOnce(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	leasetest.MadeAtOnce(t, func() backend.Backend { return open(t, s.URL()) })
}

// C2: the rows of unused locks are deleted, while clients use other locks.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	sweeper := open(t, s.URL())
	leasetest.Sweep(t, func() backend.Backend { return open(t, s.URL()) }, func(ctx context.Context) { sweeper.Sweep(ctx, 0) }, func() int64 {
		return s.Int("SELECT (SELECT count(*) FROM test.holdfast_locks) + (SELECT count(*) FROM test.holdfast_leases)")
	})
	if n := s.Int("SELECT count(*) FROM test.holdfast_sessions"); n != 1 { // the live one
		t.Errorf("%d sessions are left", n)
	}
}

func openSession(t *testing.T, b backend.Backend) error {
	t.Helper()
	return b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
}

// A user who may only use the tables: another user creates them.
func TestUserWhoMayOnlyUse(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	s.Exec("CREATE USER app@'127.0.0.1'", "GRANT SELECT ON test.* TO app@'127.0.0.1'")
	app, admin := open(t, s.URLOf("app", s.Addr())), open(t, s.URL())
	if err := openSession(t, app); !errors.Is(err, mysqllock.ErrNoSchema) || !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("without tables: %v; it has to be ErrNoSchema", err)
	}
	for range 2 {
		if err := admin.Migrate(leasetest.Within(t)); err != nil {
			t.Fatal(err)
		}
	}
	s.Exec("REVOKE ALL ON test.* FROM app@'127.0.0.1'")
	for _, table := range []string{"meta", "locks", "sessions", "leases", "tombs", "losses"} {
		s.Exec("GRANT SELECT, INSERT, UPDATE, DELETE ON test.holdfast_" + table + " TO app@'127.0.0.1'")
	}
	id, mine := leasetest.Session(t, app, leasetest.Long, nil), leasetest.Session(t, admin, time.Minute, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, app, req)
	got := leasetest.Start(t, admin, leasetest.Ask("n", mine))
	leasetest.InQueue(t, app, "n", 1)
	leasetest.Give(t, app, req)
	if g := <-got; g.Err != nil {
		t.Error(g.Err)
	}
	app.Sweep(leasetest.Within(t), 0)
	if err := app.EndSession(leasetest.Within(t), id); err != nil {
		t.Error(err)
	}
}

// Tables of a later version, a replica, also for users who may write there, and a server that
// forgets are refused. So is one that refuses READ COMMITTED, with a code that is not known to pass.
func TestRefusedServers(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t, "log-bin")
	refused(t, s, "test.holdfast_meta", func() backend.Backend { return open(t, s.URL()) })
}

// refused puts the server, and the table with the version, into states in which the backends that
// are opened refuse them, and back.
func refused(t *testing.T, s *testserver.MariaDBServer, meta string, opened func() backend.Backend) {
	t.Helper()
	for _, c := range []struct {
		name, before, after string
		want, kind          error
	}{
		{"fine", "SELECT 1", "SELECT 1", nil, nil},
		{
			"a later version", "UPDATE " + meta + " SET version = version + 1", "UPDATE " + meta + " SET version = version - 1",
			mysqllock.ErrNewer, backend.ErrUnsupported,
		},
		{
			"an earlier version", "UPDATE " + meta + " SET version = version - 1", "UPDATE " + meta + " SET version = version + 1",
			mysqllock.ErrOlder, backend.ErrUnsupported,
		},
		{"a replica", "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", mysqllock.ErrReadOnly, backend.ErrUnavailable},
		{
			"forgetful", "SET GLOBAL innodb_flush_log_at_trx_commit = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
			mysqllock.ErrForgetful, backend.ErrUnsupported,
		},
		{
			"a binary log of statements", "SET GLOBAL binlog_format = STATEMENT", "SET GLOBAL binlog_format = MIXED",
			backend.ErrRefused, backend.ErrUnavailable,
		},
	} {
		s.Exec(c.before)
		err := openSession(t, opened())
		if !errors.Is(err, c.want) || !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", c.name, err)
		}
		s.Exec(c.after)
	}
}

// The conditions in the statements decide: in each case the state is made behind the back of the
// value, as it is in the moment before the statement. No transaction has seen yet what has
// expired.
func TestConditions(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	const hour = "3600000000"
	ends := func(id backend.SessionID) int64 {
		return s.Int("SELECT ends FROM test.holdfast_sessions WHERE id = ?", string(id))
	}
	for what, set := range map[string]string{
		"ran out": "ends = " + now + " - " + hour, "was ended": "cause = 'session', ends = " + now + " + " + hour,
	} {
		id := leasetest.Session(t, b, leasetest.Long, nil)
		s.Exec("UPDATE test.holdfast_sessions SET " + set + " WHERE id = '" + string(id) + "'")
		before := ends(id)
		if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || !res.SessionLost {
			t.Errorf("renewal of a session that %s: %+v, %v", what, res, err)
		}
		if err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: id, TTL: time.Hour}); !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("opening a session that %s: %v", what, err)
		}
		if after := ends(id); after != before {
			t.Errorf("a session that %s ends at %d, and not at %d", what, after, before)
		}
	}

	id := leasetest.Session(t, b, leasetest.Long, nil)
	renew := func(what string, req backend.AcquireRequest, want error) {
		t.Helper()
		res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: time.Hour}}})
		if err != nil || !errors.Is(res.Leases[0].Err, want) {
			t.Errorf("renewal of %s: %+v, %v", what, res, err)
		}
	}
	timed := leasetest.Ask("timed", id)
	timed.Timed, timed.TTL = true, time.Minute
	leasetest.Take(t, b, timed)
	renew("a timed lease", timed, nil)
	s.Exec("UPDATE test.holdfast_locks SET ends = " + now + " - 1 WHERE name = 'timed'")
	renew("one that ran out", timed, backend.ErrLost)
	if left := s.Int("SELECT ends - " + now + " FROM test.holdfast_locks WHERE name = 'timed'"); left > 0 {
		t.Errorf("one that ran out has %d µs left", left)
	}
	plain := leasetest.Ask("plain", id)
	leasetest.Take(t, b, plain)
	renew("a lease of a session", plain, backend.ErrLost)

	for expires, want := range map[string]error{"-": nil, "+": backend.ErrLost} {
		req := leasetest.Ask("tomb"+expires, id)
		s.Exec("INSERT INTO test.holdfast_tombs VALUES ('" + req.Name + "', '" + string(req.Lease) + "', " + now + expires + hour + ")")
		if _, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, want) {
			t.Errorf("Acquire of what was abandoned: %v, not %v", err, want)
		}
	}

	s.Exec("INSERT INTO test.holdfast_losses VALUES ('" + string(id) + "', 'old', 'broken', '', " + now + " - 1), ('" +
		string(id) + "', 'new', 'broken', 'why', " + now + " + " + hour + ")")
	res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id})
	if err != nil || len(res.Lost) != 1 || res.Lost[0].Lease != "new" || res.Lost[0].Reason != "why" {
		t.Errorf("losses: %+v, %v", res, err)
	}
}

// Statements that are sent together have a clock each: what is read after a wait for a row is not
// as old as the wait.
func TestClockAfterWait(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	id := leasetest.Session(t, b, leasetest.Long, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	leasetest.Give(t, b, req)
	db, err := sql.Open("mysql", "root@tcp("+s.Addr()+")/test")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(leasetest.Within(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var last int64
	if err := tx.QueryRowContext(leasetest.Within(t), "SELECT last FROM holdfast_locks WHERE name = 'n' FOR UPDATE").Scan(&last); err != nil {
		t.Fatal(err)
	}
	got := leasetest.Start(t, b, leasetest.Ask("n", id))
	leasetest.Eventually(t, "it waits for the row", func() bool {
		return transactions(s, "trx_state = 'LOCK WAIT'") > 0
	})
	waited := s.Int("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if g := <-got; g.Err != nil || g.Grant.Since.UnixMicro() < waited {
		t.Errorf("%+v; another transaction had the row locked until %d", g, waited)
	}
}

// Settings that weaken the guarantees are reported.
func TestExamine(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	var _ backend.Examiner = b
	found, err := b.Examine(leasetest.Within(t))
	if err != nil || len(found) != 0 {
		t.Errorf("a server as it comes: %v, %v", found, err)
	}
	s.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL read_only = 1")
	found, err = b.Examine(leasetest.Within(t))
	if err != nil || len(found) != 2 || !strings.Contains(found[0].Text, "innodb_flush_log_at_trx_commit is 2") || !strings.Contains(found[1].Text, "read-only") {
		t.Errorf("%v, %v", found, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Examine(leasetest.Within(t)); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A lock that is swept does not lower the floor, below which are the tokens that were issued for
// locks that no longer exist.
func TestFloorOnlyRises(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	req := leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long, nil))
	leasetest.Take(t, b, req)
	leasetest.Give(t, b, req)
	const floor = 1 << 52
	s.Exec("UPDATE test.holdfast_meta SET last_floor = 4503599627370496")
	leasetest.Eventually(t, "the lock is swept", func() bool {
		b.Sweep(leasetest.Within(t), 0)
		return s.Int("SELECT count(*) FROM test.holdfast_locks") == 0
	})
	if got := s.Int("SELECT last_floor FROM test.holdfast_meta"); got != floor {
		t.Errorf("the floor is %d, and was %d", got, floor)
	}
}

// A session that has expired has ended, also where no client has noticed: its renewal and its
// opening come too late.
func TestSessionThatRanOut(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	id := backend.NewSessionID()
	ask := backend.SessionRequest{ID: id, TTL: b.Capabilities().MinTTL}
	if err := b.OpenSession(leasetest.Within(t), ask); err != nil {
		t.Fatal(err)
	}
	const over = `SELECT count(*) FROM test.holdfast_sessions
		WHERE cause = '' AND ends < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`
	leasetest.Eventually(t, "the session has run out", func() bool { return s.Int(over) == 1 })
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || !res.SessionLost {
		t.Errorf("renewed after its end: %+v, %v", res, err)
	}
	if n := s.Int(over); n != 1 {
		t.Errorf("the renewal updated a session that had ended: %d unmarked ended sessions, want 1", n)
	}
	if err := b.OpenSession(leasetest.Within(t), ask); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("opened after its end: %v; want ErrSessionLost", err)
	}
}
