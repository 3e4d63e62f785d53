package engines

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/bench"
)

// postgresConns is the number of connections of pglock, and so of the other contenders here.
const postgresConns = 8

// Postgres returns the engine at a URL of pglock. PostgreSQL does not report how many requests it
// received, unless an extension is loaded at its start.
func Postgres(ctx context.Context, raw string) (*bench.Engine, error) {
	pool, err := PostgresPool(ctx, raw)
	if err != nil {
		return nil, err
	}
	e := &bench.Engine{
		Name: "postgres", URL: raw, Contenders: []bench.Contender{Ours(), rawPostgres()},
		Ping: func(ctx context.Context) error {
			if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
				return fmt.Errorf("select: %w", err)
			}
			return nil
		},
		Close: func() error { pool.Close(); return nil },
	}
	if err := pool.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&e.Version); err != nil {
		pool.Close()
		return nil, &backend.UnavailableError{Backend: "postgres", Op: "ask for its version", Err: err}
	}
	e.Version, _, _ = strings.Cut(e.Version, " ")
	return e, nil
}

// PostgresPool opens a pool to the server of a pglock URL, with as many connections as pglock has.
// The parameters of the URL are ignored.
func PostgresPool(ctx context.Context, raw string) (*pgxpool.Pool, error) {
	bad := &backend.InvalidError{Field: "backend", Value: `"postgres://…"`, Bound: "postgres://user:password@host:port/database"}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, bad
	}
	q := u.Query()
	for _, ours := range []string{"schema", "max_conns", "listen"} {
		q.Del(ours)
	}
	u.RawQuery = q.Encode()
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil { // its error may contain the password
		return nil, bad
	}
	cfg.MaxConns = postgresConns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "postgres", Op: "connect", Err: err}
	}
	return pool, nil
}

// rawPostgres is the minimum that can be called a lock in a table: a row that is inserted and
// deleted, through the client library and with as many connections as pglock has. It has no token
// and no queue, it cannot wait, and nothing ends with its owner: it is a limit, not a lock.
func rawPostgres() bench.Contender {
	return bench.Contender{Name: "raw", Kind: bench.KindRaw, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := PostgresPool(ctx, cfg.URL)
		if err != nil {
			return nil, err
		}
		if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS holdfast_bench (name text PRIMARY KEY, owner text NOT NULL)`); err != nil {
			pool.Close()
			return nil, fmt.Errorf("create: %w", err)
		}
		return &rawPostgresLocker{pool: pool}, nil
	}}
}

type rawPostgresLocker struct{ pool *pgxpool.Pool }

func (l *rawPostgresLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	owner := string(backend.NewLeaseID())
	if _, err := l.pool.Exec(ctx, `INSERT INTO holdfast_bench VALUES ($1, $2)`, name, owner); err != nil {
		return bench.Held{}, fmt.Errorf("insert: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		tag, err := l.pool.Exec(ctx, `DELETE FROM holdfast_bench WHERE name = $1 AND owner = $2`, name, owner)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if tag.RowsAffected() != 1 {
			return errors.New("delete: the row was not there")
		}
		return nil
	}}, nil
}

func (l *rawPostgresLocker) Close(ctx context.Context) error {
	_, err := l.pool.Exec(ctx, `TRUNCATE holdfast_bench`)
	l.pool.Close()
	if err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	return nil
}
