package e2e_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/rowlock"
)

// testNames: any character is allowed in a name, on the real databases.
func testNames(e rowEngine) {
	t := e.t
	mark := "`"
	if e.dialect == rowlock.Postgres {
		mark = `"`
	}
	name := "Me\"s`a'; DROP TABLE mesa; --"
	column := "I\"d`"
	quote := func(s string) string { return mark + strings.ReplaceAll(s, mark, mark+mark) + mark }
	e.exec("CREATE TABLE " + quote(name) + " (" + quote(column) + " VARCHAR(50) PRIMARY KEY)")
	value := "x'; DROP TABLE mesa; --"
	e.exec("INSERT INTO " + quote(name) + " VALUES ('" + strings.ReplaceAll(value, "'", "''") + "')")
	l, err := rowlock.New(e.dialect, rowlock.Config{Table: name, Key: column})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	n, err := l.Lock(t.Context(), e.tx().Tx, rowlock.Request{Keys: []any{value}, Columns: []string{column}, Scan: func(row rowlock.Row) error { return row.Scan(&got) }})
	if err != nil || n != 1 || got != value {
		t.Errorf("%d rows, %q, %v", n, got, err)
	}
	if s := e.text("SELECT COUNT(*) FROM mesa"); s != "4" {
		t.Errorf("the other table has %s rows", s)
	}
}

// testScanError: the error of Scan is the result.
func testScanError(e rowEngine) {
	own := errors.New("its own")
	for _, busy := range []rowlock.Busy{rowlock.Wait, rowlock.NoWait} {
		tx := e.tx()
		_, err := e.tables().Lock(e.t.Context(), tx.Tx, rowlock.Request{Keys: []any{1}, Busy: busy, Scan: func(rowlock.Row) error { return own }})
		err = errors.Join(err, tx.rollback(e.t.Context()))
		if !errors.Is(err, own) {
			e.t.Errorf("%v", err)
		}
	}
}

// testExplain: the deadlock occurs in the caller's own statements.
func testExplain(e rowEngine) {
	t := e.t
	one, other := e.tx(), e.tx()
	first := errors.Join(one.exec(t.Context(), "UPDATE mesa SET reserved = 1 WHERE id = 1"), other.exec(t.Context(), "UPDATE mesa SET reserved = 2 WHERE id = 2"))
	if first != nil {
		t.Fatal(first)
	}
	results := make(chan error, 2)
	ask := func(tx rowTransaction, q string) {
		err := rowlock.Explain(tx.exec(t.Context(), q))
		_ = tx.rollback(t.Context())
		results <- err
	}
	go ask(one, "UPDATE mesa SET reserved = 1 WHERE id = 2")
	go ask(other, "UPDATE mesa SET reserved = 2 WHERE id = 1")
	err := errors.Join(soon(t, results), soon(t, results))
	var failed *rowlock.LockError
	if !errors.Is(err, rowlock.ErrDeadlock) || !errors.As(err, &failed) || !failed.Over || !rowlock.Again(err) {
		t.Errorf("two updates that wait for each other: %v", err)
	}
	tx := e.tx()
	err = tx.exec(t.Context(), "SELECT nothing FROM nowhere")
	if got := rowlock.Explain(err); err == nil || !errors.Is(got, err) || errors.As(got, new(*rowlock.LockError)) || rowlock.Again(err) {
		t.Errorf("an error that is none of ours: %v", got)
	}
}

// TestRollbackOnTimeout: a server that rolls back everything when a row is busy. Continuing would
// write outside of any transaction, so the error says that the transaction has ended.
func TestRollbackOnTimeout(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t, "innodb-rollback-on-timeout=ON")
	e := openSQL(t, rowlock.MariaDB, "mysql", s.DSN())
	e.t = t
	e.exec("CREATE TABLE mesa (id INT PRIMARY KEY, reserved INT NOT NULL)")
	e.exec("INSERT INTO mesa VALUES (1, 0)")
	e.lock(e.tx(), rowlock.Request{Keys: []any{1}})
	_, err := e.tables().Lock(t.Context(), e.tx().Tx, rowlock.Request{Keys: []any{1}, Timeout: time.Second})
	var failed *rowlock.LockError
	if !errors.As(err, &failed) || !errors.Is(err, rowlock.ErrBusy) || !failed.Over {
		t.Errorf("the transaction is gone: %v", err)
	}
}
