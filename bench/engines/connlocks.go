package engines

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/bench"
)

// Advisory returns the engine at a URL of pglock.OpenAdvisory: PostgreSQL, with its own locks in
// place of leases in tables.
func Advisory(ctx context.Context, raw string) (*bench.Engine, error) {
	e, err := Postgres(ctx, plainPostgres(raw))
	if err != nil {
		return nil, err
	}
	e.Name, e.URL, e.Contenders = "postgres+advisory", raw, []bench.Contender{Ours(), rawAdvisory()}
	return e, nil
}

func plainPostgres(raw string) string {
	return "postgres" + strings.TrimPrefix(raw, "postgres+advisory")
}

// rawAdvisory is a session advisory lock that waits in the server, on a connection that is taken
// from a pool until the release. It has no token, and each lock and each waiter occupies a
// connection: it is a limit, not a lock.
func rawAdvisory() bench.Contender {
	return bench.Contender{Name: "raw", Kind: bench.KindRaw, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := PostgresPool(ctx, plainPostgres(cfg.URL))
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
