package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/rowlock"
)

// rowEngine is a database, and a driver for it, on which the same tests run.
type rowEngine struct {
	t       *testing.T
	dialect rowlock.Dialect
	begin   func(ctx context.Context, isolation sql.IsolationLevel) (rowTransaction, error)
}

// rowTransaction is one of database/sql or of pgx.
type rowTransaction struct {
	rowlock.Tx
	exec     func(ctx context.Context, query string) error
	text     func(ctx context.Context, query string) (string, error)
	commit   func(context.Context) error
	rollback func(context.Context) error
}

// TestEngines runs every case on every engine, each in a database of its own with a table of four
// rows, none of them reserved. The MySQL dialect runs on MariaDB, for the syntax that both have.
func TestEngines(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) rowEngine{
		"postgres": startPostgres, "pgx": startPgx,
		"mariadb": startMariaDB(rowlock.MariaDB), "mysql": startMariaDB(rowlock.MySQL),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, test := range rowCases() {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					e := start(t)
					e.t = t
					e.exec("CREATE TABLE mesa (id INT PRIMARY KEY, reserved INT NOT NULL)")
					e.exec("INSERT INTO mesa VALUES (1, 0), (2, 0), (3, 0), (4, 0)")
					test(e)
				})
			}
		})
	}
}

func rowCases() map[string]func(rowEngine) {
	return map[string]func(rowEngine){
		"Waits":               testWaits,
		"Busy":                testBusy,
		"Shared":              testShared,
		"TheTimeoutIsSetBack": testTheTimeoutIsSetBack,
		"Missing":             testMissing,
		"Deadlock":            testDeadlock,
		"OneOrder":            testOneOrder,
		"Explain":             testExplain,
		"Names":               testNames,
		"ScanError":           testScanError,
		"ClaimOrder":          testClaimOrder,
		"ClaimAll":            testClaimAll,
		"Conflict":            testConflict,
		"Name":                testName,
	}
}

func startPostgres(t *testing.T) rowEngine {
	t.Helper()
	return openSQL(t, rowlock.Postgres, "pgx", postgresDatabase(t))
}

func startMariaDB(d rowlock.Dialect) func(*testing.T) rowEngine {
	return func(t *testing.T) rowEngine {
		t.Helper()
		return openSQL(t, d, "mysql", mariaDatabase()+"?sql_select_limit=1")
	}
}

func openSQL(t *testing.T, d rowlock.Dialect, driver, dsn string) rowEngine {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return rowEngine{dialect: d, begin: func(ctx context.Context, isolation sql.IsolationLevel) (rowTransaction, error) {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: isolation})
		if err != nil {
			return rowTransaction{}, err
		}
		return rowTransaction{
			Tx: rowlock.SQL(tx),
			exec: func(ctx context.Context, query string) error {
				_, err := tx.ExecContext(ctx, query)
				return err
			},
			text: func(ctx context.Context, query string) (string, error) {
				var s string
				err := tx.QueryRowContext(ctx, query).Scan(&s)
				return s, err
			},
			commit:   func(context.Context) error { return tx.Commit() },
			rollback: func(context.Context) error { return tx.Rollback() },
		}, nil
	}}
}

func startPgx(t *testing.T) rowEngine {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), postgresDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	levels := map[sql.IsolationLevel]pgx.TxIsoLevel{sql.LevelDefault: "", sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelReadCommitted: pgx.ReadCommitted}
	return rowEngine{dialect: rowlock.Postgres, begin: func(ctx context.Context, isolation sql.IsolationLevel) (rowTransaction, error) {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: levels[isolation]})
		if err != nil {
			return rowTransaction{}, err
		}
		return rowTransaction{
			Tx: rowlock.Pgx(tx),
			exec: func(ctx context.Context, query string) error {
				_, err := tx.Exec(ctx, query)
				return err
			},
			text: func(ctx context.Context, query string) (string, error) {
				var s string
				err := tx.QueryRow(ctx, query).Scan(&s)
				return s, err
			},
			commit: tx.Commit, rollback: tx.Rollback,
		}, nil
	}}
}

// tx begins a transaction that ends with the test.
func (e rowEngine) tx() rowTransaction {
	return e.isolated(sql.LevelDefault)
}

func (e rowEngine) isolated(isolation sql.IsolationLevel) rowTransaction {
	t := e.t
	t.Helper()
	tx, err := e.begin(t.Context(), isolation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// exec runs a statement in a transaction of its own.
func (e rowEngine) exec(query string) {
	t := e.t
	t.Helper()
	tx := e.tx()
	if err := errors.Join(tx.exec(t.Context(), query), tx.commit(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// text returns the result of a query of one value in a transaction of its own.
func (e rowEngine) text(query string) string {
	t := e.t
	t.Helper()
	tx := e.tx()
	s, err := tx.text(t.Context(), query)
	if err := errors.Join(err, tx.commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	return s
}

func (e rowEngine) tables() *rowlock.Locker {
	t := e.t
	t.Helper()
	l, err := rowlock.New(e.dialect, rowlock.Config{Table: "mesa", Key: "id"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lock locks rows and fails the test when that fails.
func (e rowEngine) lock(tx rowTransaction, r rowlock.Request) int {
	t := e.t
	t.Helper()
	n, err := e.tables().Lock(t.Context(), tx.Tx, r)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// soon returns what arrives within a minute.
func soon[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("not reached")
	}
}

// testWaits: a transaction that locks a row of another waits until that one commits, and then reads
// what it wrote.
func testWaits(e rowEngine) {
	t := e.t
	first, second := e.tx(), e.tx()
	e.lock(first, rowlock.Request{Keys: []any{1}})
	had := make(chan int, 1)
	go func() {
		var reserved int
		_, err := e.tables().Lock(t.Context(), second.Tx, rowlock.Request{
			Keys: []any{1}, Columns: []string{"reserved"}, Scan: func(row rowlock.Row) error { return row.Scan(&reserved) },
		})
		if err != nil {
			t.Error(err)
		}
		had <- reserved
	}()
	select {
	case <-had:
		t.Fatal("two have the row")
	case <-time.After(200 * time.Millisecond):
	}
	if err := errors.Join(first.exec(t.Context(), "UPDATE mesa SET reserved = 7 WHERE id = 1"), first.commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	if n := soon(t, had); n != 7 {
		t.Errorf("the one that waited read %d, and has to read what the first wrote, 7", n)
	}
}

// testBusy: every way to bound the wait, and the transaction can continue.
func testBusy(e rowEngine) {
	t := e.t
	holder, tx := e.tx(), e.tx()
	e.lock(holder, rowlock.Request{Keys: []any{2}})
	if err := tx.exec(t.Context(), "UPDATE mesa SET reserved = 5 WHERE id = 4"); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]rowlock.Request{
		"nowait":  {Keys: []any{1, 2, 3}, Busy: rowlock.NoWait},
		"timeout": {Keys: []any{1, 2, 3}, Timeout: 300 * time.Millisecond},
	} {
		before := time.Now()
		_, err := e.tables().Lock(t.Context(), tx.Tx, r)
		var failed *rowlock.LockError
		if !errors.Is(err, rowlock.ErrBusy) || !errors.As(err, &failed) || failed.Over || failed.Table != "mesa" || rowlock.Again(err) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(before); r.Timeout > d {
			t.Errorf("%s: gave up after %s", name, d)
		}
	}
	var got []int
	n := e.lock(tx, rowlock.Request{Keys: []any{3, 2, 1}, Busy: rowlock.SkipLocked, Scan: func(row rowlock.Row) error {
		got = append(got, 0)
		return row.Scan(&got[len(got)-1])
	}})
	if n != 2 || len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("skipping gave %d rows, %v; 1 and 3 are free", n, got)
	}
	if err := tx.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := e.text("SELECT reserved FROM mesa WHERE id = 4"); s != "5" {
		t.Errorf("what the transaction wrote before it met a busy row is %s", s)
	}
}

// testShared: shared locks are compatible with shared ones and not with exclusive ones.
func testShared(e rowEngine) {
	t := e.t
	if e.dialect == rowlock.MySQL {
		return // MariaDB has no FOR SHARE; TestStatements checks its syntax
	}
	one, other := e.tx(), e.tx()
	e.lock(one, rowlock.Request{Keys: []any{1}, Shared: true})
	for _, r := range []rowlock.Request{
		{Shared: true},
		{Shared: true, Busy: rowlock.NoWait},
		{Shared: true, Timeout: time.Second},
		{Shared: true, Busy: rowlock.SkipLocked},
	} {
		r.Keys = []any{1}
		if n := e.lock(other, r); n != 1 {
			t.Errorf("a second one shared: %d rows", n)
		}
	}
	third := e.tx()
	for _, r := range []rowlock.Request{{Busy: rowlock.NoWait}, {Timeout: time.Millisecond}} {
		r.Keys = []any{1}
		if _, err := e.tables().Lock(t.Context(), third.Tx, r); !errors.Is(err, rowlock.ErrBusy) {
			t.Errorf("exclusive while it is shared: %v", err)
		}
	}
}

// testTheTimeoutIsSetBack: the time-out is restored after success and after failure.
func testTheTimeoutIsSetBack(e rowEngine) {
	t := e.t
	look, set := "SELECT @@SESSION.innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = 33"
	if e.dialect == rowlock.Postgres {
		look, set = "SELECT current_setting('lock_timeout')", "SET lock_timeout = '33s'"
	}
	holder, tx := e.tx(), e.tx()
	if err := tx.exec(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	was, err := tx.text(t.Context(), look)
	if err != nil {
		t.Fatal(err)
	}
	e.lock(holder, rowlock.Request{Keys: []any{1}})
	for _, key := range []any{2, 1, 3} {
		_, err := e.tables().Lock(t.Context(), tx.Tx, rowlock.Request{Keys: []any{key}, Timeout: time.Millisecond})
		if errors.Is(err, rowlock.ErrBusy) != (key == 1) {
			t.Errorf("row %v: %v", key, err)
		}
		if is, err := tx.text(t.Context(), look); err != nil || is != was {
			t.Errorf("after row %v the time-out is %s (%v), and was %s", key, is, err, was)
		}
	}
}

// testMissing: a key without a row locks nothing, and the error says so.
func testMissing(e rowEngine) {
	t := e.t
	n, err := e.tables().Lock(t.Context(), e.tx().Tx, rowlock.Request{Keys: []any{1, 99, 2}})
	var missing *rowlock.MissingError
	if !errors.As(err, &missing) || !errors.Is(err, rowlock.ErrMissing) || missing.Asked != 3 || missing.Locked != 2 || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
}

// testDeadlock: of two transactions that wait for each other one gets the error, and can run again.
func testDeadlock(e rowEngine) {
	t := e.t
	one, other := e.tx(), e.tx()
	e.lock(one, rowlock.Request{Keys: []any{1}})
	e.lock(other, rowlock.Request{Keys: []any{2}})
	results := make(chan error, 2)
	ask := func(tx rowTransaction, key int) {
		_, err := e.tables().Lock(t.Context(), tx.Tx, rowlock.Request{Keys: []any{key}})
		err = errors.Join(err, tx.rollback(t.Context()))
		results <- err
	}
	go ask(one, 2)
	go ask(other, 1)
	err := errors.Join(soon(t, results), soon(t, results))
	var failed *rowlock.LockError
	if !errors.Is(err, rowlock.ErrDeadlock) || !errors.As(err, &failed) || !failed.Over || !rowlock.Again(err) {
		t.Errorf("two that wait for each other: %v", err)
	}
	if n := e.lock(e.tx(), rowlock.Request{Keys: []any{1, 2}, Busy: rowlock.NoWait}); n != 2 {
		t.Errorf("afterwards %d rows are free", n)
	}
}

// testOneOrder: many transactions that lock the same rows, each with another order of keys, never
// wait for each other in a cycle.
func testOneOrder(e rowEngine) {
	t := e.t
	orders := [][]any{{1, 2, 3, 4}, {4, 3, 2, 1}, {2, 4, 1, 3}, {3, 1, 4, 2}}
	results := make(chan error, len(orders))
	for _, keys := range orders {
		go func() {
			for range 10 {
				tx, err := e.begin(t.Context(), sql.LevelDefault)
				if err == nil {
					_, err = e.tables().Lock(t.Context(), tx.Tx, rowlock.Request{Keys: keys})
					err = errors.Join(err, tx.exec(t.Context(), "UPDATE mesa SET reserved = reserved + 1"), tx.commit(t.Context()))
				}
				if err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for range orders {
		if err := soon(t, results); err != nil {
			t.Error(err)
		}
	}
	if s := e.text("SELECT MIN(reserved) FROM mesa"); s != "40" {
		t.Errorf("%s of 40 updates are there", s)
	}
}

// testConflict: a row has changed since a transaction at repeatable read began. MySQL reads its
// current state; PostgreSQL returns an error.
func testConflict(e rowEngine) {
	t := e.t
	tx := e.isolated(sql.LevelRepeatableRead)
	if _, err := tx.text(t.Context(), "SELECT reserved FROM mesa WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	e.exec("UPDATE mesa SET reserved = 7 WHERE id = 1")
	var reserved int
	_, err := e.tables().Lock(t.Context(), tx.Tx, rowlock.Request{
		Keys: []any{1}, Columns: []string{"reserved"}, Scan: func(row rowlock.Row) error { return row.Scan(&reserved) },
	})
	if e.dialect == rowlock.Postgres {
		var failed *rowlock.LockError
		if !errors.Is(err, rowlock.ErrConflict) || !errors.As(err, &failed) || !failed.Over || !rowlock.Again(err) {
			t.Errorf("the row has changed: %v", err)
		}
		return
	}
	if err != nil || reserved != 7 {
		t.Errorf("the row is read as %d, %v", reserved, err)
	}
}
