package services

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-io/holdfast"
)

// IDs returns IDs of a category, "NF-000001", "NF-000002", without gaps.
type IDs struct {
	Locks *holdfast.Client // Required.
	Store *Store           // Required.
}

// Next passes the next ID to use, which writes its record with that ID in the same transaction
// as the counter. When use fails, or the instance dies, neither is written, and the next caller
// gets the same ID. Callers wait in turn, for as long as ctx lets them.
func (g *IDs) Next(ctx context.Context, category string, use func(ctx context.Context, tx *sql.Tx, id string) error) (string, error) {
	resource, id := "ids/"+category, ""
	err := g.Locks.Do(ctx, resource, func(ctx context.Context, lock *holdfast.Lock) error {
		return g.Store.write(ctx, resource, lock.Token(), func(tx *sql.Tx) error {
			last, err := number(tx.QueryRowContext(ctx, "SELECT last FROM counters WHERE category = ?", category))
			if err != nil {
				return err
			}
			id = fmt.Sprintf("%s-%06d", category, last+1)
			if _, err := tx.ExecContext(ctx, "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET last = excluded.last", category, last+1); err != nil {
				return fmt.Errorf("count: %w", err)
			}
			return use(ctx, tx, id)
		})
	})
	if err != nil {
		return "", err
	}
	return id, nil
}
