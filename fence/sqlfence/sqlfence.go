// Package sqlfence refuses stale fencing tokens in the transaction that writes, on PostgreSQL,
// MySQL, MariaDB and SQLite, through database/sql and any driver.
//
//	guard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{})
//	err = guard.Do(ctx, db, "stock:7", lock.Token(), func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 7")
//		return err
//	})
//	// errors.Is(err, fence.ErrStale): the lock has been granted to another client since; nothing was written
//	// errors.Is(err, fence.ErrEpoch): the locks have moved to another store: see fence.Stamp
//
// The guard keeps the greatest token of each resource in a table of its own. The check writes that
// row, so the database itself makes the next check wait until the transaction has ended: no other
// write comes between the check and the commit.
package sqlfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast/fence"
)

// Dialect is the SQL dialect of the database.
type Dialect uint8

// The dialects.
const (
	Postgres Dialect = iota + 1
	MySQL            // MariaDB too
	SQLite
)

// DefaultTable is the table of the tokens when Config.Table is empty.
const DefaultTable = "holdfast_fence"

// Config configures a Guard. The zero value is ready to use.
type Config struct {
	// Table is the name of the table, after its schema if it has one. Default: DefaultTable.
	// Optional.
	Table string
	// Epoch is for the tokens of another lock store: see fence.Guard. Default: 0. Optional.
	Epoch uint32
}

// Guard refuses stale tokens. Its methods are safe for concurrent use.
type Guard struct {
	dialect Dialect
	table   string
	epoch   uint32
}

// New returns a guard. It sends nothing. The table is created by Migrate, or by running the
// statement of Schema.
//
// Errors: *fence.InvalidError for an invalid dialect or table.
func New(d Dialect, cfg Config) (*Guard, error) {
	if d < Postgres || d > SQLite {
		return nil, &fence.InvalidError{Field: "dialect", Value: strconv.Itoa(int(d)), Bound: "Postgres, MySQL or SQLite"}
	}
	table := cmp.Or(cfg.Table, DefaultTable)
	if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`).MatchString(table) {
		return nil, &fence.InvalidError{Field: "table", Value: strconv.QuoteToASCII(table[:min(len(table), 64)]), Bound: "name or schema.name, of letters, digits and _"}
	}
	return &Guard{dialect: d, table: table, epoch: cfg.Epoch}, nil
}

// Schema returns the statement that creates the table if it does not exist.
func (g *Guard) Schema() string {
	key, options := "TEXT", ""
	if g.dialect == MySQL {
		key, options = "VARBINARY(512)", " ENGINE=InnoDB"
	}
	return "CREATE TABLE IF NOT EXISTS " + g.table + " (resource " + key + " NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, token BIGINT NOT NULL)" + options
}

// Execer is a *sql.DB, *sql.Tx or *sql.Conn.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Migrate creates the table if it does not exist. Errors: *fence.InvalidError without db; the database's.
func (g *Guard) Migrate(ctx context.Context, db Execer) error {
	if err := given("db", db != nil, "a database"); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, g.Schema()); err != nil {
		return fmt.Errorf("make the table of fencing tokens: %w", err)
	}
	return nil
}

// Tx is a *sql.Tx, or a *sql.Conn in a transaction.
type Tx interface {
	Execer
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Do runs write in a transaction of its own, after Check, and commits it. Another write of the same
// resource waits until then.
//
// Errors: *fence.StaleError, *fence.EpochError and *fence.InvalidError: nothing was written; what
// write returned: nothing was written; the database's. As with every commit, after an error of the
// commit the outcome may be either.
func (g *Guard) Do(ctx context.Context, db *sql.DB, resource string, t fence.Token, write func(*sql.Tx) error) error {
	return g.DoStamp(ctx, db, resource, fence.Stamp{Epoch: g.epoch, Token: t}, write)
}

// DoStamp is Do for a token that was presented with its epoch. Another epoch than that of the
// guard is *fence.EpochError, and nothing is sent.
func (g *Guard) DoStamp(ctx context.Context, db *sql.DB, resource string, s fence.Stamp, write func(*sql.Tx) error) error {
	if err := fence.ValidateStamp(resource, s, g.epoch); err != nil {
		return err
	}
	if err := errors.Join(given("ctx", ctx != nil, "a context"), given("db", db != nil, "a database"), given("write", write != nil, "a function")); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a fenced write of %q: %w", resource, err)
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	if err := g.CheckStamp(ctx, tx, resource, s); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit a fenced write of %q: %w", resource, err)
	}
	return nil
}

// Check refuses a stale token, and remembers this one when the transaction is committed. Call it
// before the first write, and roll back if it returns an error.
//
// At isolation repeatable read or above, the database may fail it because another transaction was
// committed in the meantime. Then retry the transaction, as for any write.
//
// Errors: *fence.StaleError, *fence.EpochError, *fence.InvalidError, the database's.
func (g *Guard) Check(ctx context.Context, tx Tx, resource string, t fence.Token) error {
	return g.CheckStamp(ctx, tx, resource, fence.Stamp{Epoch: g.epoch, Token: t})
}

// CheckStamp is Check for a token that was presented with its epoch. Another epoch than that
// of the guard is *fence.EpochError, and nothing is sent.
func (g *Guard) CheckStamp(ctx context.Context, tx Tx, resource string, s fence.Stamp) error {
	if err := given("tx", tx != nil, "a transaction"); err != nil {
		return err
	}
	return g.check(statements{
		exec: func(query string, args ...any) (func() (int64, error), error) {
			res, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return nil, err
			}
			return res.RowsAffected, nil
		},
		row: func(query string, args ...any) PgxRow { return tx.QueryRowContext(ctx, query, args...) },
	}, resource, s)
}

// given returns the error for an argument that is nil.
func given(field string, ok bool, bound string) error {
	if ok {
		return nil
	}
	return &fence.InvalidError{Field: field, Value: "nil", Bound: bound}
}

// statements runs statements in a transaction.
type statements struct {
	exec func(query string, args ...any) (rows func() (int64, error), err error)
	row  func(query string, args ...any) PgxRow
}

func (g *Guard) check(tx statements, resource string, s fence.Stamp) error {
	if err := fence.ValidateStamp(resource, s, g.epoch); err != nil {
		return err
	}
	rows, err := tx.exec(g.upsert(), g.key(resource), int64(s.Epoch), int64(s.Token)) //nolint:gosec // valid tokens fit
	if err != nil {
		return g.checkError(resource, err)
	}
	if g.dialect != MySQL {
		n, err := rows()
		if err != nil {
			return g.checkError(resource, err)
		}
		if n > 0 {
			return nil
		}
	}
	// The row is locked by now, so the values read cannot change.
	var newest fence.Stamp
	if err := tx.row(g.lookup(), g.key(resource)).Scan(&newest.Epoch, &newest.Token); err != nil {
		return g.checkError(resource, err)
	}
	if newest == s {
		return nil
	}
	return fence.Refusal(resource, s, newest)
}

func (g *Guard) checkError(resource string, err error) error {
	return fmt.Errorf("check the fencing token of %q in the table %s, which Migrate creates: %w", resource, g.table, err)
}

// key returns the resource as the table stores it. MySQL compares text by its collation, and bytes
// exactly.
func (g *Guard) key(resource string) any {
	if g.dialect == MySQL {
		return []byte(resource)
	}
	return resource
}

// upsert returns the statement that writes the greater stamp. MySQL assigns from left to right, so
// the token, which needs the old epoch, comes first.
func (g *Guard) upsert() string {
	switch g.dialect {
	case MySQL:
		return "INSERT INTO " + g.table + " (resource, epoch, token) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE" +
			" token = IF(VALUES(epoch) > epoch OR VALUES(epoch) = epoch AND VALUES(token) > token, VALUES(token), token)," +
			" epoch = GREATEST(epoch, VALUES(epoch))"
	case SQLite:
		return g.standard("?, ?, ?")
	case Postgres:
	}
	return g.standard("$1, $2, $3")
}

func (g *Guard) standard(values string) string {
	return "INSERT INTO " + g.table + " AS f (resource, epoch, token) VALUES (" + values + ") ON CONFLICT (resource) DO UPDATE" +
		" SET epoch = excluded.epoch, token = excluded.token" +
		" WHERE (f.epoch, f.token) <= (excluded.epoch, excluded.token)"
}

func (g *Guard) lookup() string {
	q := "SELECT epoch, token FROM " + g.table + " WHERE resource = "
	switch g.dialect {
	case MySQL:
		return q + "? FOR UPDATE"
	case SQLite:
		return q + "?"
	case Postgres:
	}
	return q + "$1"
}

// Exec guards a single statement, for a row that has a column for its token:
//
//	sqlfence.Exec(ctx, db, "stock:7", lock.Token(),
//		"UPDATE stock SET n = n - 1, token = $1 WHERE id = $2 AND token <= $1", lock.Token(), 7)
//
// The statement itself compares and writes. If it wrote no row, the token was stale or there is no
// such row; both are *fence.StaleError. It has no epoch: if the locks may move to another store,
// use a Guard. With MySQL the connection needs CLIENT_FOUND_ROWS (clientFoundRows=true): without it
// a row that is written with unchanged values does not count.
//
// Errors: *fence.StaleError, *fence.InvalidError, the database's.
func Exec(ctx context.Context, db Execer, resource string, t fence.Token, query string, args ...any) (sql.Result, error) {
	if err := fence.Validate(resource, t); err != nil {
		return nil, err
	}
	if !strings.Contains(strings.ToUpper(query), "WHERE") {
		return nil, &fence.InvalidError{Field: "query", Value: strconv.Quote(query[:min(len(query), 64)]), Bound: "a statement that compares the token in its WHERE"}
	}
	res, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("fenced statement on %q: %w", resource, err)
	}
	n, err := res.RowsAffected()
	switch {
	case err != nil:
		return res, fmt.Errorf("fenced statement on %q: %w", resource, errors.Join(err, errUncounted))
	case n == 0:
		return res, &fence.StaleError{Resource: resource, Token: t}
	}
	return res, nil
}

var errUncounted = errors.New("the driver does not count rows: it was executed, and whether it was refused is not known")
