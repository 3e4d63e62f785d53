package rowlock

import (
	"context"
	"database/sql"

	"github.com/holdfast-io/holdfast/fence"
)

// Tx is the caller's transaction: of database/sql with SQL, of pgx with Pgx. Locked rows stay
// locked until the caller commits or rolls back.
type Tx struct {
	query func(ctx context.Context, query string, args []any, each func(Row) error) error
}

// Row is a locked row. Scan reads its columns, in the requested order, as sql.Rows.Scan does.
type Row interface {
	Scan(dest ...any) error
}

// SQL returns the Tx of a database/sql transaction. Its driver must report errors of PostgreSQL by
// a method SQLState, as pgx and lib/pq do, or those of MySQL by a field Number, as go-sql-driver
// does. If tx is nil, calls with the Tx return *fence.InvalidError.
func SQL(tx *sql.Tx) Tx {
	if tx == nil {
		return noTx()
	}
	return Tx{query: func(ctx context.Context, query string, args []any, each func(Row) error) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err //nolint:wrapcheck // fail wraps it
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if err := each(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}}
}

// PgxTx is pgx.Tx, restated so that this package need not import pgx. R is pgx.Rows. Commit and
// Rollback are not called. They are required so that no pool or connection is mistaken for a
// transaction: on those a row lock would end with its own statement.
type PgxTx[R PgxRows] interface {
	Query(ctx context.Context, query string, args ...any) (R, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// PgxRows is pgx.Rows.
type PgxRows interface {
	Row
	Next() bool
	Err() error
	Close()
}

// Pgx returns the Tx of a pgx transaction: rowlock.Pgx(tx). If tx is nil, calls with the Tx return
// *fence.InvalidError.
func Pgx[R PgxRows](tx PgxTx[R]) Tx {
	if tx == nil {
		return noTx()
	}
	return Tx{query: func(ctx context.Context, query string, args []any, each func(Row) error) error {
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}}
}

// noTx returns the Tx of no transaction.
func noTx() Tx {
	return Tx{query: func(context.Context, string, []any, func(Row) error) error {
		return &fence.InvalidError{Field: "tx", Value: "nil", Bound: "a transaction"}
	}}
}

// exec runs a statement that returns no rows.
func (tx Tx) exec(ctx context.Context, query string, args ...any) error {
	return tx.query(ctx, query, args, func(Row) error { return nil })
}
