package rowlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/rowlock"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// recorder is a database without data that records the statements it gets.
type recorder struct{ queries []string }

func (r *recorder) Connect(context.Context) (driver.Conn, error) { return &recorderConn{r}, nil }
func (r *recorder) Driver() driver.Driver                        { return nil }

type recorderConn struct{ r *recorder }

func (c *recorderConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no") }
func (c *recorderConn) Close() error                        { return nil }
func (c *recorderConn) Begin() (driver.Tx, error)           { return c, nil }
func (c *recorderConn) Commit() error                       { return nil }
func (c *recorderConn) Rollback() error                     { return nil }

func (c *recorderConn) QueryContext(_ context.Context, q string, _ []driver.NamedValue) (driver.Rows, error) {
	c.r.queries = append(c.r.queries, q)
	return &noRows{left: strings.Count(q, "@@")}, nil
}

// noRows is a result without rows, or with a setting.
type noRows struct{ left int }

func (*noRows) Columns() []string { return []string{"a"} }
func (*noRows) Close() error      { return nil }
func (n *noRows) Next(dest []driver.Value) error {
	if n.left == 0 {
		return io.EOF
	}
	n.left--
	dest[0] = int64(50)
	return nil
}

// recorded returns the statements that a locker sends.
func recorded(t *testing.T, d rowlock.Dialect, cfg rowlock.Config, f func(*rowlock.Locker, rowlock.Tx) error) (string, error) {
	t.Helper()
	r := &recorder{}
	db := sql.OpenDB(r)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	l, err := rowlock.New(d, cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = f(l, rowlock.SQL(tx))
	return strings.Join(r.queries, "; "), err
}

// TestStatements checks the statements of MySQL, for which there is no server here, and of the
// others.
func TestStatements(t *testing.T) {
	t.Parallel()
	cfg := rowlock.Config{Schema: "bar", Table: "mesa", Key: "id"}
	const mine, pg = "SELECT `id` FROM `bar`.`mesa` WHERE `id` IN (?) ORDER BY `id` LIMIT 18446744073709551615 ", `SELECT "id" FROM "bar"."mesa" WHERE "id" IN ($1) ORDER BY "id" `
	for _, c := range []struct {
		d    rowlock.Dialect
		r    rowlock.Request
		want string
	}{
		{rowlock.MySQL, rowlock.Request{}, mine + "FOR UPDATE"},
		{rowlock.MySQL, rowlock.Request{Shared: true}, mine + "FOR SHARE"},
		{rowlock.MySQL, rowlock.Request{Shared: true, Busy: rowlock.SkipLocked}, mine + "FOR SHARE SKIP LOCKED"},
		{rowlock.MySQL, rowlock.Request{Busy: rowlock.NoWait}, "SAVEPOINT holdfast_rowlock; " + mine + "FOR UPDATE NOWAIT; RELEASE SAVEPOINT holdfast_rowlock"},
		{rowlock.MySQL, rowlock.Request{Timeout: time.Second}, "SAVEPOINT holdfast_rowlock; SELECT @@SESSION.innodb_lock_wait_timeout; SET SESSION innodb_lock_wait_timeout = ?; " +
			mine + "FOR UPDATE; SET SESSION innodb_lock_wait_timeout = ?; RELEASE SAVEPOINT holdfast_rowlock"},
		{rowlock.MariaDB, rowlock.Request{Shared: true, Timeout: 1001 * time.Millisecond}, "SAVEPOINT holdfast_rowlock; " + mine + "LOCK IN SHARE MODE WAIT 2; RELEASE SAVEPOINT holdfast_rowlock"},
		{rowlock.Postgres, rowlock.Request{Shared: true}, pg + "FOR SHARE"},
	} {
		c.r.Keys = []any{1}
		got, err := recorded(t, c.d, cfg, func(l *rowlock.Locker, tx rowlock.Tx) error {
			_, err := l.Lock(t.Context(), tx, c.r)
			return err
		})
		if got != c.want || c.r.Busy != rowlock.SkipLocked && !errors.Is(err, rowlock.ErrMissing) {
			t.Errorf("%+v:\ngot  %s\nwant %s\n%v", c.r, got, c.want, err)
		}
	}
	got, err := recorded(t, rowlock.MySQL, cfg, func(l *rowlock.Locker, tx rowlock.Tx) error {
		_, err := l.Claim(t.Context(), tx, rowlock.Batch{Where: "a = ? OR b", Args: []any{1}, Order: []string{"x", "y"}, Columns: []string{"c"}, Limit: 1, Scan: func(rowlock.Row) error { return nil }})
		return err
	})
	if want := "SELECT `c` FROM `bar`.`mesa` WHERE (a = ? OR b) ORDER BY `x`, `y` LIMIT ? FOR UPDATE SKIP LOCKED"; got != want || err != nil {
		t.Errorf("got  %s\nwant %s\n%v", got, want, err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	good := rowlock.Config{Table: "mesa", Key: "id"}
	long := strings.Repeat("x", 64)
	for field, c := range map[string]struct {
		d   rowlock.Dialect
		cfg rowlock.Config
	}{
		"dialect": {0, good}, "table": {rowlock.Postgres, rowlock.Config{Key: "id"}}, "key": {rowlock.MySQL, rowlock.Config{Table: "mesa", Key: "a\x00"}},
		"schema": {rowlock.MariaDB, rowlock.Config{Schema: long, Table: "mesa", Key: "id"}},
	} {
		var bad *fence.InvalidError
		if _, err := rowlock.New(c.d, c.cfg); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	one := []any{1}
	scan := func(rowlock.Row) error { return nil }
	lock := func(r rowlock.Request) func(*rowlock.Locker, rowlock.Tx) error {
		return func(l *rowlock.Locker, tx rowlock.Tx) error { _, err := l.Lock(t.Context(), tx, r); return err }
	}
	claim := func(b rowlock.Batch) func(*rowlock.Locker, rowlock.Tx) error {
		return func(l *rowlock.Locker, tx rowlock.Tx) error { _, err := l.Claim(t.Context(), tx, b); return err }
	}
	for _, c := range []struct {
		field string
		do    func(*rowlock.Locker, rowlock.Tx) error
	}{
		{"keys", lock(rowlock.Request{})},
		{"keys", lock(rowlock.Request{Keys: make([]any, rowlock.MaxKeys+1)})},
		{"keys[2]", lock(rowlock.Request{Keys: []any{1, []byte{1}, 1}})},
		{"busy", lock(rowlock.Request{Keys: one, Busy: 3})},
		{"timeout", lock(rowlock.Request{Keys: one, Timeout: -1})},
		{"timeout", lock(rowlock.Request{Keys: one, Timeout: time.Microsecond})},
		{"timeout", lock(rowlock.Request{Keys: one, Timeout: rowlock.MaxTimeout + 1})},
		{"timeout", lock(rowlock.Request{Keys: one, Timeout: time.Second, Busy: rowlock.NoWait})},
		{"columns", lock(rowlock.Request{Keys: one, Columns: []string{""}})},
		{"limit", claim(rowlock.Batch{Scan: scan})},
		{"limit", claim(rowlock.Batch{Limit: rowlock.MaxKeys + 1, Scan: scan})},
		{"args", claim(rowlock.Batch{Limit: 1, Args: one, Scan: scan})},
		{"args", claim(rowlock.Batch{Limit: 1, Where: "x", Args: make([]any, rowlock.MaxArgs+1), Scan: scan})},
		{"scan", claim(rowlock.Batch{Limit: 1})},
		{"order", claim(rowlock.Batch{Limit: 1, Scan: scan, Order: []string{"\xff"}})},
		{"columns", claim(rowlock.Batch{Limit: 1, Scan: scan, Columns: []string{long}})},
	} {
		var bad *fence.InvalidError
		sent, err := recorded(t, rowlock.Postgres, good, c.do)
		if !errors.As(err, &bad) || bad.Field != c.field || sent != "" {
			t.Errorf("%s: %v; sent %q", c.field, err, sent)
		}
	}
}

func TestExplainLeavesAlone(t *testing.T) {
	t.Parallel()
	if err := rowlock.Explain(nil); err != nil {
		t.Errorf("nil is %v", err)
	}
	busy := &rowlock.LockError{Kind: rowlock.ErrBusy, Table: "mesa", Err: errors.New("its own")}
	if err := rowlock.Explain(busy); !errors.Is(err, busy) || err.Error() != busy.Error() {
		t.Errorf("an error that was explained already is %#v", err)
	}
	if rowlock.Again(nil) || rowlock.Again(errors.New("x")) {
		t.Error("nothing is worth doing again")
	}
}
