package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// postgresConns is the number of connections of pglock, and so of the other contenders here.
const postgresConns = 8

// postgresEngine returns the engine at a URL of pglock. PostgreSQL does not report how many requests it
// received, unless an extension is loaded at its start.
func postgresEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	pool, err := postgresPool(ctx, raw)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	e := &bench.Engine{Name: "postgres", URL: raw, Contenders: []bench.Contender{ours(), rawPostgres(), cirelloPglock()}}
	if err := pool.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&e.Version); err != nil {
		return nil, &backend.UnavailableError{Backend: "postgres", Op: "ask for its version", Err: err}
	}
	e.Version, _, _ = strings.Cut(e.Version, " ")
	return e, nil
}

// postgresPool opens a pool to the server of a pglock URL, with as many connections as pglock has.
// The parameters of the URL are ignored.
func postgresPool(ctx context.Context, raw string) (*pgxpool.Pool, error) {
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
	return bench.Contender{Name: "raw", Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := postgresPool(ctx, cfg.URL)
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

// cirelloPglock is cirello.io/pglock without its heartbeats. A release during a heartbeat may
// interrupt it, does not know the version that it wrote, and leaves the lock held for a whole
// lease ("lock is already released"). Its waiters retry after a lease.
func cirelloPglock() bench.Contender {
	return bench.Contender{Name: "cirello pglock", Can: bench.CanWait, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := postgresPool(ctx, cfg.URL)
		if err != nil {
			return nil, err
		}
		l := &cirelloLocker{pool: pool, db: stdlib.OpenDBFromPool(pool)}
		client, err := pglock.UnsafeNew(l.db, pglock.WithLeaseDuration(cfg.TTL), pglock.WithHeartbeatFrequency(0))
		if err == nil {
			err = client.TryCreateTable()
		}
		if err != nil {
			_ = l.Close(ctx)
			return nil, fmt.Errorf("client: %w", err)
		}
		l.client = client
		return l, nil
	}}
}

type cirelloLocker struct {
	pool   *pgxpool.Pool
	db     *sql.DB
	client *pglock.Client
}

func (l *cirelloLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	lock, err := l.client.AcquireContext(ctx, name)
	if err != nil {
		return bench.Held{}, fmt.Errorf("acquire: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error { return l.client.ReleaseContext(ctx, lock) }}, nil
}

func (l *cirelloLocker) Close(context.Context) error {
	defer l.pool.Close()
	if err := l.db.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// advisoryEngine returns the engine at a URL of pglock.OpenAdvisory: PostgreSQL, with its own locks in
// place of leases in tables.
func advisoryEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	e, err := postgresEngine(ctx, plainPostgres(raw))
	if err != nil {
		return nil, err
	}
	e.Name, e.URL, e.Contenders = "postgres+advisory", raw, []bench.Contender{ours(), rawAdvisory()}
	return e, nil
}

func plainPostgres(raw string) string {
	return "postgres" + strings.TrimPrefix(raw, "postgres+advisory")
}

// rawAdvisory is a session advisory lock that waits in the server, on a connection that is taken
// from a pool until the release. It has no token, and each lock and each waiter occupies a
// connection: it is a limit, not a lock.
func rawAdvisory() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := postgresPool(ctx, plainPostgres(cfg.URL))
		if err != nil {
			return nil, err
		}
		return &rawAdvisoryLocker{pool: pool}, nil
	}}
}

type rawAdvisoryLocker struct{ pool *pgxpool.Pool }

func (l *rawAdvisoryLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return bench.Held{}, fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, name); err != nil {
		conn.Release()
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		defer conn.Release()
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, name); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		return nil
	}}, nil
}

func (l *rawAdvisoryLocker) Close(context.Context) error {
	l.pool.Close()
	return nil
}
