package pglock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// NewPool returns a backend on the database of a program's pool. It makes connections of its own with the
// pool's configuration, BeforeConnect and AfterConnect, so that the program's statements never keep a
// renewal waiting. It sends nothing yet, and does not use or close the pool. cfg.Conn, BeforeConnect and
// AfterConnect are ignored. Errors: those of New; *backend.InvalidError if pool is nil.
func NewPool(pool *pgxpool.Pool, cfg Config) (*Backend, error) {
	if pool == nil {
		return nil, &backend.InvalidError{Field: "pool", Value: "nil", Bound: "given"}
	}
	from := pool.Config()
	cfg.Conn, cfg.BeforeConnect, cfg.AfterConnect = from.ConnConfig, from.BeforeConnect, from.AfterConnect
	return New(cfg)
}

// NewDB returns a backend on the database of a program that uses pgx through database/sql. It makes
// connections of its own, with the configuration of one connection of db, which it borrows for that, and
// listens to no notifications: see Config.Deaf. A password that changes needs New with a BeforeConnect.
// cfg.Conn is ignored.
//
// Errors: those of New; *backend.InvalidError if db is nil or has another driver than pgx;
// *backend.UnavailableError if there is no connection; ctx's cause.
func NewDB(ctx context.Context, db *sql.DB, cfg Config) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	if db == nil {
		return nil, &backend.InvalidError{Field: "db", Value: "nil", Bound: "given"}
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, unavailable("open", false, err)
	}
	err = conn.Raw(func(made any) error {
		c, ok := made.(*stdlib.Conn)
		if !ok {
			return &backend.InvalidError{Field: "db", Value: fmt.Sprintf("with a %T", made), Bound: "with the driver of pgx, github.com/jackc/pgx/v5/stdlib"}
		}
		cfg.Conn, cfg.Deaf = c.Conn().Config(), true
		return nil
	})
	_ = conn.Close() // it returns to db
	if err != nil {
		return nil, err //nolint:wrapcheck // it is ours
	}
	return New(cfg)
}

// connHooks are what a program does with each connection, and then our settings of it; empty: there are none.
type connHooks struct {
	before   func(context.Context, *pgx.ConnConfig) error
	after    func(context.Context, *pgx.Conn) error
	settings string
}

// connect establishes a connection outside of the pool, whose statements wait for rows as long as it takes.
func (h connHooks) connect(ctx context.Context, conf *pgx.ConnConfig) (*pgx.Conn, error) {
	if h.before != nil {
		conf = conf.Copy()
		if err := h.before(ctx, conf); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	if err := h.then(noLimit)(ctx, conn); err != nil {
		hangUp(conn)
		return nil, err
	}
	return conn, nil
}

// then returns an AfterConnect of the pool. lockLimit is how long a statement waits for a row.
func (h connHooks) then(lockLimit string) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		if h.after != nil {
			if err := h.after(ctx, conn); err != nil {
				return err
			}
		}
		if h.settings == "" {
			return nil
		}
		_, err := conn.Exec(ctx, h.settings, pgx.QueryExecModeExec, idleLimit, lockLimit, false) // a pooler may have prepared it for another client
		return err                                                                               //nolint:wrapcheck // see unavailable
	}
}
