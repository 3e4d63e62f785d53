package sqlfence

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/fence"
)

// PgxTx is pgx.Tx, restated so that this package need not import pgx. C is pgconn.CommandTag and R is
// pgx.Row. Commit and Rollback are not called. They are required so that no pool or connection is
// mistaken for a transaction: on those the check would end with its own statement.
type PgxTx[C PgxTag, R PgxRow] interface {
	Exec(ctx context.Context, query string, args ...any) (C, error)
	QueryRow(ctx context.Context, query string, args ...any) R
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// PgxTag is pgconn.CommandTag.
type PgxTag interface{ RowsAffected() int64 }

// PgxRow is pgx.Row.
type PgxRow interface{ Scan(dest ...any) error }

// CheckPgx is Guard.Check in a transaction of pgx:
//
//	err := sqlfence.CheckPgx(ctx, guard, tx, "stock:7", lock.Token())
//
// Errors: those of Check; *fence.InvalidError for a guard of another dialect than Postgres.
func CheckPgx[C PgxTag, R PgxRow](ctx context.Context, g *Guard, tx PgxTx[C, R], resource string, t fence.Token) error {
	if err := given("guard", g != nil, "a guard"); err != nil {
		return err
	}
	return CheckStampPgx(ctx, g, tx, resource, fence.Stamp{Epoch: g.epoch, Token: t})
}

// CheckStampPgx is Guard.CheckStamp in a transaction of pgx: see CheckPgx.
func CheckStampPgx[C PgxTag, R PgxRow](ctx context.Context, g *Guard, tx PgxTx[C, R], resource string, s fence.Stamp) error {
	if err := errors.Join(given("guard", g != nil, "a guard"), given("tx", tx != nil, "a transaction")); err != nil {
		return err
	}
	if g.dialect != Postgres {
		return &fence.InvalidError{Field: "dialect", Value: "that of another database", Bound: "Postgres"}
	}
	return g.check(statements{
		exec: func(query string, args ...any) (func() (int64, error), error) {
			tag, err := tx.Exec(ctx, query, args...)
			if err != nil {
				return nil, err
			}
			return func() (int64, error) { return tag.RowsAffected(), nil }, nil
		},
		row: func(query string, args ...any) PgxRow { return tx.QueryRow(ctx, query, args...) },
	}, resource, s)
}
