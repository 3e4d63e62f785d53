package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	// A waiter tends its lock immediately. What has no waiter is found here.
	deadLeases = `SELECT name FROM @leases WHERE ends <= clock_timestamp() - $1::bigint * interval '1 microsecond'
		UNION SELECT l.name FROM @sessions s JOIN @leases l ON l.session = s.id AND l.session <> '' AND NOT (l.held AND l.timed)
			WHERE s.ends <= clock_timestamp() - $1::bigint * interval '1 microsecond'
		LIMIT $2`
	sweepSessions = `DELETE FROM @sessions WHERE id IN (SELECT s.id FROM @sessions s WHERE s.ends < clock_timestamp() - $1::bigint * interval '1 microsecond'
		AND NOT EXISTS (SELECT FROM @leases l WHERE l.session = s.id AND l.session <> '') LIMIT $2 FOR UPDATE SKIP LOCKED)`
	sweepTombs = `DELETE FROM @tombs WHERE (name, lease) IN (SELECT name, lease FROM @tombs WHERE until < clock_timestamp()
		LIMIT $1 FOR UPDATE SKIP LOCKED)`
	sweepLosses = `DELETE FROM @losses WHERE (session, lease) IN (SELECT session, lease FROM @losses WHERE until < clock_timestamp()
		LIMIT $1 FOR UPDATE SKIP LOCKED)`
	// Locks that were not used for a while. Their rows are locked first, and read again then. No
	// lock may ever go back behind the floor.
	oldLocks = `SELECT name FROM @locks WHERE name > $1 AND used < clock_timestamp() - $2::bigint * interval '1 microsecond'
		ORDER BY name LIMIT $3 FOR UPDATE SKIP LOCKED`
	sweepLocks = `WITH swept AS (
			DELETE FROM @locks k WHERE k.name = ANY($1::text[]) AND NOT EXISTS (SELECT FROM @leases l WHERE l.name = k.name) RETURNING k.last)
		UPDATE @meta SET floor = greatest(floor, (SELECT max(last) FROM swept)) WHERE EXISTS (SELECT FROM swept)`
)

// Dead is one statement.
func (s store) Dead(ctx context.Context, age time.Duration) ([]string, error) {
	var names []string
	err := s.batch(ctx, func(q *pgx.Batch) {
		q.Queue(s.b.sql(deadLeases), age.Microseconds(), sqllease.SweepAtOnce).Query(func(rows pgx.Rows) error { return scanNames(rows, &names) })
	})
	return names, err
}

// Sweep locks the rows of locks before it deletes them.
func (s store) Sweep(ctx context.Context, after string, age time.Duration) string {
	b := s.b
	q := new(pgx.Batch)
	q.Queue(b.sql(sweepSessions), age.Microseconds(), sqllease.SweepAtOnce)
	q.Queue(b.sql(sweepTombs), sqllease.SweepAtOnce)
	q.Queue(b.sql(sweepLosses), sqllease.SweepAtOnce)
	if err := b.pool.SendBatch(ctx, q).Close(); err != nil {
		return after // until the next time
	}
	var names []string
	err := pgx.BeginTxFunc(ctx, b.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, guardTxn, b.idleLimit, b.lockLimit, true); err != nil {
			return err //nolint:wrapcheck // no caller sees it
		}
		rows, err := tx.Query(ctx, b.sql(oldLocks), after, age.Microseconds(), sqllease.SweepAtOnce)
		if err != nil {
			return err //nolint:wrapcheck // no caller sees it
		}
		if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(names) == 0 {
			return err //nolint:wrapcheck // no caller sees it
		}
		_, err = tx.Exec(ctx, b.sql(sweepLocks), names)
		return err //nolint:wrapcheck // no caller sees it
	})
	switch {
	case err != nil:
		return after
	case len(names) < sqllease.SweepAtOnce:
		return "" // from the start
	}
	return names[len(names)-1]
}
