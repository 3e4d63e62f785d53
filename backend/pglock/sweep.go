package pglock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// sweepEvery is how often a value that is in use puts things in order.
	sweepEvery = 20 * time.Second
	// watchEvery is how often one does that somebody watches.
	watchEvery = 500 * time.Millisecond
	// sweepAtOnce is how many rows of each table one sweep looks at.
	sweepAtOnce = 1000
)

const (
	// Who waits for a lock sees to it at once. What nobody waits for is found here.
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
	// Locks that nobody has used for a while. Their rows are locked first, and looked at
	// again then. No lock may ever go back behind the floor.
	oldLocks = `SELECT name FROM @locks WHERE name > $1 AND used < clock_timestamp() - $2::bigint * interval '1 microsecond'
		ORDER BY name LIMIT $3 FOR UPDATE SKIP LOCKED`
	sweepLocks = `WITH swept AS (
			DELETE FROM @locks k WHERE k.name = ANY($1::text[]) AND NOT EXISTS (SELECT FROM @leases l WHERE l.name = k.name) RETURNING k.last)
		UPDATE @meta SET floor = greatest(floor, (SELECT max(last) FROM swept)) WHERE EXISTS (SELECT FROM swept)`
)

// sweepNowAndThen puts things in order while the value is in use. A value that nobody
// uses, and one whose callers only wait, sends nothing.
func (b *Backend) sweepNowAndThen() {
	var cursor string
	for {
		select {
		case <-b.toSweep:
		case <-b.life.Done():
			return
		}
		if b.keepsStill() {
			continue
		}
		pause := sweepEvery/2 + rand.N(sweepEvery)
		if b.watched() {
			pause = watchEvery
			kick(b.toSweep)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.life.Done():
			timer.Stop()
			return
		}
		ctx, cancel := context.WithTimeout(b.life, flightTime)
		b.sweepDead(ctx)
		if pause > watchEvery {
			cursor = b.sweep(ctx, cursor, remembered)
		}
		cancel()
	}
}

func (b *Backend) keepsStill() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.still
}

func (b *Backend) watched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watchers > 0
}

// sweepDead has locks seen to in which something is over.
func (b *Backend) sweepDead(ctx context.Context) {
	late := watchEvery / 2 // those who wait come first
	rows, err := b.pool.Query(ctx, b.sql(deadLeases), late.Microseconds(), sweepAtOnce)
	if err != nil {
		return // another time
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		b.tend(name)
	}
}

// sweep deletes what was over a while ago. It looks at some of the locks, those after
// the name, and gives the name to go on with.
func (b *Backend) sweep(ctx context.Context, after string, age time.Duration) string {
	q := new(pgx.Batch)
	q.Queue(b.sql(sweepSessions), age.Microseconds(), sweepAtOnce)
	q.Queue(b.sql(sweepTombs), sweepAtOnce)
	q.Queue(b.sql(sweepLosses), sweepAtOnce)
	if err := b.pool.SendBatch(ctx, q).Close(); err != nil {
		return after // another time
	}
	var names []string
	err := pgx.BeginTxFunc(ctx, b.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, guardTxn, b.idleLimit, b.lockLimit, true); err != nil {
			return err //nolint:wrapcheck // it is not told
		}
		rows, err := tx.Query(ctx, b.sql(oldLocks), after, age.Microseconds(), sweepAtOnce)
		if err != nil {
			return err //nolint:wrapcheck // it is not told
		}
		if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(names) == 0 {
			return err //nolint:wrapcheck // it is not told
		}
		_, err = tx.Exec(ctx, b.sql(sweepLocks), names)
		return err //nolint:wrapcheck // it is not told
	})
	switch {
	case err != nil:
		return after
	case len(names) < sweepAtOnce:
		return "" // from the start
	}
	kick(b.toSweep)
	return names[len(names)-1]
}
