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
		UNION SELECT name FROM @locks WHERE ends <= clock_timestamp() - $1::bigint * interval '1 microsecond' AND lease <> '' AND fat = 0
		UNION SELECT l.name FROM @sessions s JOIN @leases l ON l.session = s.id AND l.session <> '' AND NOT (l.held AND l.timed)
			WHERE s.ends <= clock_timestamp() - $1::bigint * interval '1 microsecond'
		LIMIT $2`
	sweepSessions = `DELETE FROM @sessions WHERE id IN (SELECT s.id FROM @sessions s WHERE s.ends < clock_timestamp() - $1::bigint * interval '1 microsecond'
		AND NOT EXISTS (SELECT FROM @leases l WHERE l.session = s.id AND l.session <> '') LIMIT $2 FOR UPDATE SKIP LOCKED)`
	sweepTombs = `DELETE FROM @tombs WHERE (name, lease) IN (SELECT name, lease FROM @tombs WHERE until < clock_timestamp()
		LIMIT $1 FOR UPDATE SKIP LOCKED)`
	sweepLosses = `DELETE FROM @losses WHERE (session, lease) IN (SELECT session, lease FROM @losses WHERE until < clock_timestamp()
		LIMIT $1 FOR UPDATE SKIP LOCKED)`
	// Locks that were not used for a while, and whether one has a thin lease whose session does not
	// seem to live. Their rows are locked first, and read again then. No lock may ever go back
	// behind the floor.
	oldLocks = `SELECT name, lease <> '' AND fat = 0 AND NOT timed AND NOT EXISTS (SELECT FROM @sessions s WHERE s.id = k.session AND s.cause = '' AND s.ends > clock_timestamp())
		FROM @locks k WHERE name > $1 AND used < clock_timestamp() - $2::bigint * interval '1 microsecond'
		ORDER BY name LIMIT $3 FOR UPDATE SKIP LOCKED`
	// Neither a thin lock nor one with a recent tomb: the next row would not know of the tomb.
	sweepLocks = `WITH swept AS (
			DELETE FROM @locks k WHERE k.name = ANY($1::text[]) AND NOT (k.lease <> '' AND k.fat = 0)
				AND k.buried <= clock_timestamp() + $2::bigint * interval '1 microsecond'
				AND NOT EXISTS (SELECT FROM @leases l WHERE l.name = k.name) RETURNING k.last),
		raised AS (UPDATE @meta SET floor = greatest(floor, (SELECT max(last) FROM swept)) WHERE EXISTS (SELECT FROM swept))
		SELECT count(*) FROM swept`
)

// Dead is one statement.
func (s store) Dead(ctx context.Context, age time.Duration) ([]string, error) {
	var names []string
	err := s.batch(ctx, func(q *pgx.Batch) {
		query(q, func(rows pgx.Rows) error { return scanName(rows, &names) }, s.b.sql(deadLeases), age.Microseconds(), sqllease.SweepAtOnce)
	})
	return names, err
}

// Sweep locks the rows of locks before it deletes them.
func (s store) Sweep(ctx context.Context, after string, age time.Duration) (*sqllease.Swept, error) {
	err := s.batch(ctx, func(q *pgx.Batch) {
		q.Queue(s.b.sql(sweepSessions), age.Microseconds(), sqllease.SweepAtOnce)
		q.Queue(s.b.sql(sweepTombs), sqllease.SweepAtOnce)
		q.Queue(s.b.sql(sweepLosses), sqllease.SweepAtOnce)
	})
	if err != nil {
		return nil, err
	}
	conn, err := s.b.pool.Acquire(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // no caller sees it
	}
	t, q, w := &txn{s, conn}, new(pgx.Batch), new(sqllease.Swept)
	defer t.End(ctx)
	s.queueBegin(q)
	query(q, func(rows pgx.Rows) error {
		var name string
		var dead bool
		err := rows.Scan(&name, &dead)
		if w.Names = append(w.Names, name); dead {
			w.Dead = append(w.Dead, name)
		}
		return err //nolint:wrapcheck // no caller sees it
	}, s.b.sql(oldLocks), after, age.Microseconds(), sqllease.SweepAtOnce)
	if err := conn.SendBatch(ctx, q).Close(); err != nil || len(w.Names) == 0 {
		return w, err //nolint:wrapcheck // no caller sees it
	}
	q = new(pgx.Batch)
	query(q, func(rows pgx.Rows) error { return rows.Scan(&w.Deleted) }, s.b.sql(sweepLocks), w.Names, (sqllease.Remembered - age).Microseconds())
	return w, t.commit(ctx, q)
}
