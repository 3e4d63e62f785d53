package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// cirelloPglock is cirello.io/pglock without its heartbeats. A release during a heartbeat may
// interrupt it, does not know the version that it wrote, and leaves the lock held for a whole
// lease ("lock is already released"). Its waiters retry after a lease.
func cirelloPglock() bench.Contender {
	return bench.Contender{Name: "cirello pglock", Kind: bench.KindPeer, Can: bench.CanWait, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := engines.PostgresPool(ctx, cfg.URL)
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

// advisoryLoop is what people write by hand: a session advisory lock, retried every 100 ms until
// it is acquired. While it is held it has a connection of its own.
func advisoryLoop() bench.Contender {
	return bench.Contender{Name: "advisory loop", Kind: bench.KindLoop, Can: bench.CanWait, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		pool, err := engines.PostgresPool(ctx, cfg.URL)
		if err != nil {
			return nil, err
		}
		return &advisoryLocker{pool: pool}, nil
	}}
}

type advisoryLocker struct{ pool *pgxpool.Pool }

func (l *advisoryLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return bench.Held{}, context.Cause(ctx)
		}
		held, ok, err := l.try(ctx, name)
		if ok || err != nil {
			return held, err
		}
		timer.Reset(loopPause)
	}
}

func (l *advisoryLocker) try(ctx context.Context, name string) (bench.Held, bool, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return bench.Held{}, false, fmt.Errorf("connection: %w", err)
	}
	var ok bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended($1, 0))`, name).Scan(&ok); err != nil || !ok {
		conn.Release()
		if err != nil {
			err = fmt.Errorf("pg_try_advisory_lock: %w", err)
		}
		return bench.Held{}, false, err
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		defer conn.Release()
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, name); err != nil {
			return fmt.Errorf("pg_advisory_unlock: %w", err)
		}
		return nil
	}}, true, nil
}

func (l *advisoryLocker) Close(context.Context) error {
	l.pool.Close()
	return nil
}
