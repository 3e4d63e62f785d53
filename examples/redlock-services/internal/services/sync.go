package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
)

// Change is one of an external source.
type Change struct {
	Seq int64 // grows; never used twice by the source
	Key string
}

// Source is where data comes from.
type Source interface {
	// Since returns the next changes after seq, in their order; none: there are no more.
	Since(ctx context.Context, seq int64) ([]Change, error)
}

// Sync brings the changes of a source into the database.
type Sync struct {
	Locks  *holdfast.Client // Required.
	Store  *Store           // Required.
	Name   string           // of the source. Required.
	Source Source           // Required.
}

// Run synchronises new changes, however long that takes: the lock is renewed. It returns how
// many changes, and whether it ran here: one instance does at a time.
//
// The position is written with the changes, page by page: the next instance continues there,
// also when this one dies half-way.
func (s *Sync) Run(ctx context.Context) (int, bool, error) {
	resource, n, began := "sync/"+s.Name, 0, false
	err := s.Locks.Do(ctx, resource, func(ctx context.Context, lock *holdfast.Lock) error {
		began = true
		for {
			seq, err := number(s.Store.db.QueryRowContext(ctx, "SELECT seq FROM cursors WHERE source = ?", s.Name))
			if err != nil {
				return err
			}
			changes, err := s.Source.Since(ctx, seq)
			if err != nil {
				return fmt.Errorf("read %s after %d: %w", s.Name, seq, err)
			}
			if len(changes) == 0 {
				return nil
			}
			// The context has ended where the lock was lost; the token is for a write that
			// is on its way by then.
			if err := s.Store.write(ctx, resource, lock.Token(), func(tx *sql.Tx) error { return s.apply(ctx, tx, changes) }); err != nil {
				return fmt.Errorf("write %s after %d: %w", s.Name, seq, err)
			}
			n += len(changes)
		}
	}, holdfast.Wait(0))
	if !began && errors.Is(err, holdfast.ErrHeld) {
		return 0, false, nil
	}
	return n, began, err
}

func (s *Sync) apply(ctx context.Context, tx *sql.Tx, changes []Change) error {
	for _, c := range changes {
		if _, err := tx.ExecContext(ctx, "INSERT INTO synced VALUES (?, 1) ON CONFLICT DO UPDATE SET changes = changes + 1", c.Key); err != nil {
			return err //nolint:wrapcheck // Run adds what it was for
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO cursors VALUES (?, ?) ON CONFLICT DO UPDATE SET seq = excluded.seq", s.Name, changes[len(changes)-1].Seq)
	return err //nolint:wrapcheck // as above
}
