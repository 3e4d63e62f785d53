package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	deadLeases = `SELECT name FROM @leases WHERE ends <= $NOW - ?
		UNION SELECT name FROM @locks WHERE ends <= $NOW - ? AND lease <> '' AND fat = 0
		UNION SELECT l.name FROM @sessions s JOIN @leases l ON l.session = s.id AND NOT (l.held AND l.timed) WHERE s.ends <= $NOW - ? LIMIT ?`
	// No lease can be created under a session that has ended, so a read without locks is enough.
	oldSessions = `SELECT s.id FROM @sessions s WHERE s.ends < $NOW - ? AND NOT EXISTS (SELECT 1 FROM @leases l WHERE l.session = s.id) LIMIT ?`
	// Locks that were not used for a while. Their rows are locked first, and read again then. No
	// lock may ever go back behind the floor. Neither a thin lock is swept nor one with a recent
	// tomb: the next row would not know of the tomb.
	oldLocks    = `SELECT name FROM @locks WHERE name > ? AND used < $NOW - ? ORDER BY name LIMIT ? FOR UPDATE SKIP LOCKED`
	unusedLocks = `SELECT k.name, k.last FROM @locks k WHERE k.name IN (?) AND NOT (k.lease <> '' AND k.fat = 0) AND k.buried <= $NOW + ?
		AND NOT EXISTS (SELECT 1 FROM @leases l WHERE l.name = k.name)`
	// Thin leases whose session does not seem to live.
	deadThin = `SELECT k.name FROM @locks k WHERE k.name IN (?) AND k.lease <> '' AND k.fat = 0 AND NOT k.timed
		AND NOT EXISTS (SELECT 1 FROM @sessions s WHERE s.id = k.session AND s.cause = '' AND s.ends > $NOW)`
	raiseFloor = `UPDATE @meta SET last_floor = GREATEST(last_floor, ?) WHERE id = 1`
)

// Dead is one statement.
func (s store) Dead(ctx context.Context, age time.Duration) ([]string, error) {
	us := age.Microseconds()
	return s.strings(ctx, s.b.sql(deadLeases), us, us, us, sqllease.SweepAtOnce)
}

// Sweep locks the rows of locks before it deletes them.
func (s store) Sweep(ctx context.Context, after string, age time.Duration) (*sqllease.Swept, error) {
	ids, err := s.strings(ctx, s.b.sql(oldSessions), age.Microseconds(), sqllease.SweepAtOnce)
	if err != nil {
		return nil, err
	}
	q := new(batch)
	for _, id := range ids {
		q.exec(s.b.sql(`DELETE FROM @sessions WHERE id = ? AND ends < $NOW - ?`), id, age.Microseconds())
	}
	q.exec(s.b.sql(`DELETE FROM @tombs WHERE expires < $NOW LIMIT ?`), sqllease.SweepAtOnce)
	q.exec(s.b.sql(`DELETE FROM @losses WHERE expires < $NOW LIMIT ?`), sqllease.SweepAtOnce)
	if err := q.run(ctx, s.b.db); err != nil {
		return nil, err
	}
	w := new(sqllease.Swept)
	return w, s.within(ctx, func(conn *sql.Conn) error { return s.sweepLocks(ctx, conn, after, age, w) })
}

func (s store) sweepLocks(ctx context.Context, conn *sql.Conn, after string, age time.Duration, w *sqllease.Swept) error {
	q := new(batch)
	q.exec(begin)
	q.query(func(rows *sql.Rows) error { return scanName(rows, &w.Names) }, s.b.sql(oldLocks), after, age.Microseconds(), sqllease.SweepAtOnce)
	if err := q.run(ctx, conn); err != nil {
		return err
	}
	var unused []string
	var floor int64
	if len(w.Names) > 0 {
		q = new(batch)
		q.query(func(rows *sql.Rows) error {
			var name string
			var last int64
			err := rows.Scan(&name, &last)
			unused, floor = append(unused, name), max(floor, last)
			return err //nolint:wrapcheck // no caller sees it
		}, s.b.sql(unusedLocks), in(w.Names), (sqllease.Remembered - age).Microseconds())
		q.query(func(rows *sql.Rows) error { return scanName(rows, &w.Dead) }, s.b.sql(deadThin), in(w.Names))
		if err := q.run(ctx, conn); err != nil {
			return err
		}
	}
	q = new(batch)
	if len(unused) > 0 {
		q.exec(s.b.sql(raiseFloor), floor)
	}
	for _, name := range unused {
		q.exec(s.b.sql(`DELETE FROM @locks WHERE name = ?`), name)
	}
	q.exec(commit)
	w.Deleted = len(unused)
	return q.run(ctx, conn)
}
