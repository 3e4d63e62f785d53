package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	_ "modernc.org/sqlite" // the driver that sqlitelock has

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// sqliteEngine returns the engine at a URL of sqlitelock. What the others write is beside that file.
func sqliteEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	b, err := connect(ctx, raw)
	if err != nil {
		return nil, err
	}
	if err := b.Close(); err != nil {
		return nil, err
	}
	return &bench.Engine{Name: "sqlite", URL: raw, Contenders: []bench.Contender{ours(), rawSQLite()}}, nil
}

// besideSQLite returns the path of a file beside that of a sqlitelock URL.
func besideSQLite(raw, suffix string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Path == "" {
		return "", &backend.InvalidError{Field: "backend", Value: `"sqlite://…"`, Bound: "sqlite:///path"}
	}
	return u.Path + suffix, nil
}

// rawSQLite is the minimum that can be called a lock in a table: a row that is inserted and deleted,
// with the journal and the syncs that sqlitelock has for leases of a session: a WAL that is synced
// at checkpoints alone. One connection serves all goroutines, because SQLite has one writer at a
// time. It has no token and no queue, and nothing ends with its owner: it is a limit, not a lock.
func rawSQLite() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		path, err := besideSQLite(cfg.URL, "-bench.db")
		if err != nil {
			return nil, err
		}
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
		if err != nil {
			return nil, fmt.Errorf("open: %w", err)
		}
		db.SetMaxOpenConns(1)
		l := &rawSQLiteLocker{db: db}
		if err := l.prepare(ctx); err != nil {
			return nil, errors.Join(err, db.Close())
		}
		return l, nil
	}}
}

type rawSQLiteLocker struct {
	db           *sql.DB
	insert, free *sql.Stmt
}

func (l *rawSQLiteLocker) prepare(ctx context.Context) error {
	if _, err := l.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS holdfast_bench (name TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID`); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	var err1, err2 error
	l.insert, err1 = l.db.PrepareContext(ctx, `INSERT INTO holdfast_bench VALUES (?, ?)`)
	l.free, err2 = l.db.PrepareContext(ctx, `DELETE FROM holdfast_bench WHERE name = ? AND owner = ?`)
	return errors.Join(err1, err2)
}

func (l *rawSQLiteLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	owner := string(backend.NewLeaseID())
	if _, err := l.insert.ExecContext(ctx, name, owner); err != nil {
		return bench.Held{}, fmt.Errorf("insert: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		result, err := l.free.ExecContext(ctx, name, owner)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return errors.Join(errors.New("delete: the row was not there"), err)
		}
		return nil
	}}, nil
}

func (l *rawSQLiteLocker) Close(context.Context) error {
	return errors.Join(l.insert.Close(), l.free.Close(), l.db.Close())
}
