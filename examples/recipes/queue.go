package recipes

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-io/holdfast/rowlock"
)

// Queue is a table of jobs, as this makes it:
//
//	CREATE TABLE jobs (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL);
//	CREATE INDEX jobs_ready ON jobs (state, id);
type Queue struct {
	DB      *sql.DB         // Required.
	Dialect rowlock.Dialect // Required.
}

// Work takes the next jobs that no other worker has, at most batch, does them, and marks them
// as done, in one transaction. It returns how many; 0: there are none for it. No worker waits
// for another: rows that are taken are skipped (SKIP LOCKED). The jobs of a worker that dies
// are taken by the next one.
//
// After an error nothing was done, unless the error is that of the commit: then the outcome is
// unknown. Run Work again where rowlock.Again reports true.
func (q *Queue) Work(ctx context.Context, batch int, do func(ctx context.Context, tx *sql.Tx, job int) error) (int, error) {
	jobs, err := rowlock.New(q.Dialect, rowlock.Config{Table: "jobs", Key: "id"})
	if err != nil {
		return 0, err
	}
	tx, err := q.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to roll back
	var ids []int
	n, err := jobs.Claim(ctx, rowlock.SQL(tx), rowlock.Batch{
		Limit: batch, Where: "state = 'ready'",
		Scan: func(row rowlock.Row) error {
			var id int
			err := row.Scan(&id)
			ids = append(ids, id)
			return err
		},
	})
	for _, id := range ids {
		if err == nil {
			err = do(ctx, tx, id)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, fmt.Sprintf("UPDATE jobs SET state = 'done' WHERE id = %d", id))
		}
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return 0, fmt.Errorf("work: %w", rowlock.Explain(err))
	}
	return n, nil
}
