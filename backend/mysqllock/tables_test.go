package mysqllock_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// As the store does it, for the lock $N.
const (
	now     = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	inflate = `UPDATE test.holdfast_locks SET fat = 1 WHERE name = '$N';INSERT INTO test.holdfast_leases SELECT name, lease, session, true, token, mode, permits, cap, owner, note,
		timed, ttl, token, since, since, ends, false FROM test.holdfast_locks WHERE name = '$N'`
)

// TestTables tests what the stores on internal/sqllease have in common.
func TestTables(t *testing.T) {
	t.Parallel()
	leasetest.RunTables(t, func(t *testing.T) *leasetest.Tables {
		t.Helper()
		s := testserver.MariaDB(t)
		return &leasetest.Tables{
			Open: func(url string) leasetest.TablesBackend { return open(t, url) },
			URL:  func(addr string) string { return s.URLOf("root", addr) }, Addr: s.Addr(),
			Clock: func() leasetest.Clock { _, clock := testserver.WithClock(t, s); return clock }, Copy: s.Copy,
			Exec: s.Exec, Int: s.Int, Waits: func() bool { waits, _ := rowWaits(s); return waits > 0 },
			Begin: func(statements ...string) func() { return begin(t, s, statements...) },
			Dialect: strings.NewReplacer("@", "test.holdfast_", "$NOW", now, "$MICROS", now, "$HOUR", "3600000000",
				"$FLOOR", "last_floor", "$ZERO", "0", "$ADDR", "", "$INFLATE", inflate),
		}
	})
}

// rowWaits returns how many statements wait for a row, and how many have waited until now.
func rowWaits(s *testserver.MariaDBServer) (int64, int64) {
	const status = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = "
	return s.Int(status + "'INNODB_ROW_LOCK_CURRENT_WAITS'"), s.Int(status + "'INNODB_ROW_LOCK_WAITS'")
}

// begin executes the statements in a transaction of another client, and returns its commit.
func begin(t *testing.T, s *testserver.MariaDBServer, statements ...string) func() {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(leasetest.Within(t), nil)
	for _, q := range statements {
		if err == nil {
			_, err = tx.ExecContext(leasetest.Within(t), q)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}
