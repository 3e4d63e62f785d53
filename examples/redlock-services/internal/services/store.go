package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // the database of the example

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

// Store is the database that all instances share. Its methods are safe for concurrent use.
type Store struct {
	db    *sql.DB
	guard *sqlfence.Guard
}

// OpenStore opens a file, and creates the tables that do not exist. epoch is that of the locks' store: 0, and one more
// after each move of the locks to another store. The caller closes it.
func OpenStore(ctx context.Context, path string, epoch uint32) (*Store, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	guard, err := sqlfence.New(sqlfence.SQLite, sqlfence.Config{Epoch: epoch})
	if err == nil {
		err = guard.Migrate(ctx, db)
	}
	for _, stmt := range []string{
		"CREATE TABLE IF NOT EXISTS results (file TEXT PRIMARY KEY, result TEXT NOT NULL)",
		"CREATE TABLE IF NOT EXISTS counters (category TEXT PRIMARY KEY, last INTEGER NOT NULL)",
		"CREATE TABLE IF NOT EXISTS invoices (id TEXT NOT NULL, what TEXT NOT NULL)",
		"CREATE TABLE IF NOT EXISTS synced (key TEXT PRIMARY KEY, changes INTEGER NOT NULL)",
		"CREATE TABLE IF NOT EXISTS cursors (source TEXT PRIMARY KEY, seq INTEGER NOT NULL)",
	} {
		if err == nil {
			_, err = db.ExecContext(ctx, stmt)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the database: %w", err), db.Close())
	}
	return &Store{db: db, guard: guard}, nil
}

// DB is the database, for reading.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes the database.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close the database: %w", err)
	}
	return nil
}

// write runs f in a transaction that is refused (fence.ErrStale) where a holder of a greater
// token has written to the resource, or one of a greater epoch (fence.ErrEpoch).
func (s *Store) write(ctx context.Context, resource string, token fence.Token, f func(*sql.Tx) error) error {
	return s.guard.Do(ctx, s.db, resource, token, f)
}

// number reads one number; 0 where there is no row.
func number(row *sql.Row) (int64, error) {
	var n int64
	if err := row.Scan(&n); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("read: %w", err)
	}
	return n, nil
}
