package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
)

// Files processes files, each once in the fleet.
type Files struct {
	Locks   *holdfast.Client                                       // Required.
	Store   *Store                                                 // Required.
	Process func(ctx context.Context, file string) (string, error) // Required.
}

// Run processes the file, unless that was done or another instance is doing it. It reports
// whether it was done here.
func (f *Files) Run(ctx context.Context, file string) (bool, error) {
	resource, began, here := "file/"+file, false, false
	err := f.Locks.Do(ctx, resource, func(ctx context.Context, lock *holdfast.Lock) error {
		began = true
		// Under the lock: an earlier holder may have done it.
		n, err := number(f.Store.db.QueryRowContext(ctx, "SELECT count(*) FROM results WHERE file = ?", file))
		if err != nil || n > 0 {
			return err
		}
		result, err := f.Process(ctx, file)
		if err != nil {
			return fmt.Errorf("process %s: %w", file, err)
		}
		if err := f.Store.write(ctx, resource, lock.Token(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO results VALUES (?, ?)", file, result)
			return err //nolint:wrapcheck // the guard says what it was for
		}); err != nil {
			return fmt.Errorf("save the result of %s: %w", file, err)
		}
		here = true
		return nil
	}, holdfast.Wait(0))
	if !began && errors.Is(err, holdfast.ErrHeld) {
		return false, nil
	}
	return here, err
}
