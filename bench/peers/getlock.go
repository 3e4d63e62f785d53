package main

import (
	"context"
	"crypto/sha1" //nolint:gosec // it makes a long name short; nothing rests on its strength
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// getLockLoop is what people write by hand on MySQL and MariaDB: GET_LOCK, which waits in the
// server, repeated until the lock is acquired. From then until its release each lock has a
// connection of its own. A name has at most 64 characters, so longer ones are hashed. The server
// decides which waiter is next.
func getLockLoop() bench.Contender {
	return bench.Contender{Name: "GET_LOCK loop", Kind: bench.KindLoop, Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		db, err := engines.MySQLPool(cfg.URL, min(max(cfg.Parallel, 1), mostGetLocks))
		if err != nil {
			return nil, err
		}
		return &getLocker{db: db}, nil
	}}
}

const (
	// mostGetLocks bounds the connections: servers allow 151 by default, and ours are
	// started with room for 300. A caller that finds none waits for one.
	mostGetLocks = 128
	getLockWait  = 10 // seconds
)

type getLocker struct{ db *sql.DB }

func (l *getLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return bench.Held{}, fmt.Errorf("connection: %w", err)
	}
	sum := sha1.Sum([]byte(name)) //nolint:gosec // see the import
	key := hex.EncodeToString(sum[:])
	for {
		var got sql.NullInt64
		err := conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, ?)`, key, getLockWait).Scan(&got)
		switch {
		case err != nil:
			return bench.Held{}, errors.Join(fmt.Errorf("GET_LOCK: %w", err), hangUp(conn))
		case got.Int64 == 1:
			return bench.Held{Unlock: func(ctx context.Context) error { return unlock(ctx, conn, key) }}, nil
		}
	}
}

func unlock(ctx context.Context, conn *sql.Conn, key string) error {
	var was sql.NullInt64
	if err := conn.QueryRowContext(ctx, `SELECT RELEASE_LOCK(?)`, key).Scan(&was); err != nil {
		return errors.Join(fmt.Errorf("RELEASE_LOCK: %w", err), hangUp(conn))
	}
	if was.Int64 != 1 {
		return errors.Join(errors.New("RELEASE_LOCK: it was not held any more"), hangUp(conn))
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("return the connection to the pool: %w", err)
	}
	return nil
}

// hangUp ends a connection that may hold the lock, instead of returning it to the pool.
func hangUp(conn *sql.Conn) error {
	err := conn.Raw(func(any) error { return driver.ErrBadConn })
	if err != nil && !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, sql.ErrConnDone) {
		return fmt.Errorf("hang up: %w", err)
	}
	return nil
}

func (l *getLocker) Close(context.Context) error {
	if err := l.db.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
