package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// maxQuick is how many locks are tried together.
const maxQuick = 256

// clock is the microseconds of the server's clock when the statement arrived.
const clock = `(extract(epoch FROM statement_timestamp()) * 1000000)::bigint`

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
	// The row may be about to be swept, and this waits for that. It may read an old floor then; the
	// statement that follows sees the floor of now.
	newLock = `INSERT INTO @locks (name, last, used) SELECT $1::text, floor, clock_timestamp() FROM @meta ON CONFLICT (name) DO NOTHING`

	unwatched    = `m.id = 1 AND m.watched <= statement_timestamp()`
	number       = `greatest(k.last, m.floor, ` + clock + `) + 1` // the same wherever the statement has it
	quickAcquire = `UPDATE @locks k SET last = ` + number + `, token = ` + number + `, used = clock_timestamp(), since = clock_timestamp(),
			lease = $2::text, session = $3::text, mode = $4, permits = $5, cap = $6, owner = $7, note = $8, timed = $9::boolean, ttl = $10::bigint,
			ends = CASE WHEN $9::boolean THEN clock_timestamp() + $10::bigint * interval '1 microsecond' END
		FROM @meta m WHERE k.name = $1::text AND k.lease = '' AND k.fat = 0 AND ` + unwatched + `
			AND (k.buried <= clock_timestamp() OR k.buried = (SELECT b.buried FROM @locks b WHERE b.name = $1::text)
				AND NOT EXISTS (SELECT FROM @tombs t WHERE t.name = $1::text AND t.lease = $2::text AND t.until > clock_timestamp()))
			AND ($3::text = '' OR EXISTS (SELECT FROM @sessions s WHERE s.id = $3::text AND s.cause = '' AND s.ends > clock_timestamp()))
		RETURNING k.name, k.token, k.since`

	noThin       = `lease = '', session = '', owner = '', note = '', ends = NULL`
	quickRelease = `UPDATE @locks k SET ` + noThin + ` FROM @meta m
		WHERE k.name = $1::text AND k.lease = $2::text AND k.fat = 0 AND ` + unwatched + `
			AND CASE WHEN k.timed THEN k.ends > clock_timestamp()
				ELSE EXISTS (SELECT FROM @sessions s WHERE s.id = k.session AND s.cause = '' AND s.ends > clock_timestamp()) END
		RETURNING k.name`
)

// Quick is one round trip, and one transaction without BEGIN. It has a statement for each lock, in the
// order of their names, in which rows are locked. Arrays would leave the planner a choice: it reads
// the whole table.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	newLock, acquire, release := s.b.sql(newLock), s.b.sql(quickAcquire), s.b.sql(quickRelease)
	return s.batch(ctx, func(q *pgx.Batch) {
		for i := range x.Acquire {
			l := &x.Acquire[i]
			if !x.Known[l.Name] {
				q.Queue(newLock, l.Name)
			}
			query(q, func(rows pgx.Rows) error {
				var g sqllease.QuickGrant
				err := rows.Scan(&g.Name, &g.Token, &g.Since)
				x.Granted = append(x.Granted, g)
				return err //nolint:wrapcheck // see Unavailable
			}, acquire, l.Name, string(l.Lease), string(l.Session), int16(l.Claim.Mode), int32(l.Claim.Permits), int32(l.Claim.Limit), //nolint:gosec // at most backend.MaxLimit
				l.Owner, l.Note, l.Timed, l.TTL.Microseconds())
		}
		for _, k := range x.Release {
			query(q, func(rows pgx.Rows) error { return scanName(rows, &x.Released) }, release, k.Name, string(k.ID))
		}
	})
}

func scanName(rows pgx.Rows, all *[]string) error {
	var name string
	err := rows.Scan(&name)
	*all = append(*all, name)
	return err //nolint:wrapcheck // see unavailable
}
