package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// maxQuick is how many locks are tried together.
const maxQuick = 256

// A thin lock has its lease in its own row, so that one statement decides: a statement that waited
// for the row evaluates its condition again on what is committed then. Of other tables it sees what
// was committed when it began. Each of these may be old without harm:
//
//   - The session. Sessions do not come back to life. If one has ended meanwhile, the lease is
//     dead from the start, or was released before.
//   - The watchers. Whoever begins to watch waits for the statements in progress. A watcher that
//     is late finds that out: hence the time at which the statement arrived.
//   - The floor. The row is one that the statement saw when it began, so it saw a floor that is
//     above all numbers of earlier rows of the lock. A row that is swept meanwhile is not updated.
//   - The tombs. If the row was not buried since the statement began, it saw all of them.
const (
	// Several statements that change several rows would not agree on an order, so the rows are
	// locked first. Missing rows are created. Such a statement may wait for a row that is about to
	// be swept, and insert with an old floor: the statement that follows sees the floor of now.
	lockRows = `SELECT 1 FROM @locks WHERE name = ANY($1::text[]) ORDER BY name FOR NO KEY UPDATE`
	makeRows = `INSERT INTO @locks (name, last, used) SELECT n, floor, clock_timestamp() FROM @meta, unnest($1::text[]) AS n ORDER BY n
		ON CONFLICT (name) DO UPDATE SET used = clock_timestamp()`

	unwatched    = `m.watched <= statement_timestamp()`
	quickAcquire = `UPDATE @locks k SET last = greatest(k.last, m.floor) + 1, token = greatest(k.last, m.floor) + 1, used = clock_timestamp(), since = clock_timestamp(),
			lease = x.lease, session = x.session, mode = x.mode, permits = x.permits, cap = x.cap, owner = x.owner, note = x.note, reentrant = x.reentrant,
			timed = x.timed, ttl = x.ttl, ends = CASE WHEN x.timed THEN clock_timestamp() + x.ttl * interval '1 microsecond' END
		FROM @meta m, unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::integer[], $7::text[], $8::text[], $9::boolean[],
			$10::boolean[], $11::bigint[]) AS x (name, lease, session, mode, permits, cap, owner, note, reentrant, timed, ttl)
		WHERE k.name = x.name AND k.lease = '' AND k.fat = 0 AND ` + unwatched + `
			AND (k.buried <= clock_timestamp() OR k.buried = (SELECT b.buried FROM @locks b WHERE b.name = x.name)
				AND NOT EXISTS (SELECT FROM @tombs t WHERE t.name = x.name AND t.lease = x.lease AND t.until > clock_timestamp()))
			AND (x.session = '' OR EXISTS (SELECT FROM @sessions s WHERE s.id = x.session AND s.cause = '' AND s.ends > clock_timestamp()))
		RETURNING k.name, k.token, k.since`

	noThin       = `lease = '', session = '', owner = '', note = '', ends = NULL`
	quickRelease = `UPDATE @locks k SET ` + noThin + ` FROM @meta m, unnest($1::text[], $2::text[]) AS x (name, lease)
		WHERE k.name = x.name AND k.lease = x.lease AND k.fat = 0 AND ` + unwatched + `
			AND CASE WHEN k.timed THEN k.ends > clock_timestamp()
				ELSE EXISTS (SELECT FROM @sessions s WHERE s.id = k.session AND s.cause = '' AND s.ends > clock_timestamp()) END
		RETURNING k.name`
)

// Quick is one round trip, and one transaction without BEGIN. For one lock whose row is known to exist
// it is one statement.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	var rows leaseRows
	known := true
	for i := range x.Acquire {
		rows.add(&x.Acquire[i])
		known = known && x.Known[x.Acquire[i].Name]
	}
	return s.batch(ctx, func(q *pgx.Batch) {
		switch {
		case !known:
			q.Queue(s.b.sql(makeRows), x.Names)
		case len(x.Names) > 1:
			q.Queue(s.b.sql(lockRows), x.Names)
		}
		if r := &rows; len(x.Acquire) > 0 {
			q.Queue(s.b.sql(quickAcquire), r.names, r.leases, r.sessions, r.modes, r.permits, r.limits, r.owners, r.notes, r.reentrant, r.timed,
				r.ttls).Query(func(rows pgx.Rows) error { return scanGranted(rows, &x.Granted) })
			return
		}
		names, leases := columns(x.Release)
		q.Queue(s.b.sql(quickRelease), names, leases).Query(func(rows pgx.Rows) error { return scanNames(rows, &x.Released) })
	})
}

func scanGranted(rows pgx.Rows, all *[]sqllease.QuickGrant) error {
	return each(rows, func() error {
		var x sqllease.QuickGrant
		err := rows.Scan(&x.Name, &x.Token, &x.Since)
		*all = append(*all, x)
		return err //nolint:wrapcheck // see Unavailable
	})
}

func scanNames(rows pgx.Rows, all *[]string) error {
	return each(rows, func() error {
		var name string
		err := rows.Scan(&name)
		*all = append(*all, name)
		return err //nolint:wrapcheck // see unavailable
	})
}
