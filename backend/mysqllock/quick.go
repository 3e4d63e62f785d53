package mysqllock

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// An INSERT reads what it selects from without locks, under READ COMMITTED. A DELETE would
// lock what it reads beside, as the row of the session, and wait for renewals: so what
// decides is read before it, into a variable.
const (
	// The lock has no leases at all, dead or alive. The statement is not that which locks
	// the row, so it sees what was committed while the row was waited for.
	quickAcquire = `INSERT INTO @leases (name, lease, session, held, place, mode, permits, cap, owner, note, reentrant, timed, ttl, token, asked,
			since, ends, waited, joined)
		SELECT x.name, x.lease, x.session, TRUE, k.last - ?, x.mode, x.permits, x.cap, x.owner, x.note, x.reentrant, x.timed, x.ttl, k.last - ?, $NOW,
			$NOW, CASE WHEN x.timed THEN $NOW + x.ttl END, FALSE, FALSE
		FROM (%s) x JOIN @locks k ON k.name = x.name JOIN @meta m ON m.id = 1
		WHERE k.last - ? > m.last_floor
			AND NOT EXISTS (SELECT 1 FROM @leases o WHERE o.name = x.name)
			AND NOT EXISTS (SELECT 1 FROM @tombs t WHERE t.name = x.name AND t.lease = x.lease AND t.expires > $NOW)
			AND (x.session = '' OR EXISTS (SELECT 1 FROM @sessions s WHERE s.id = x.session AND s.cause = '' AND s.ends > $NOW))`
	quickRow = `SELECT ? AS name, ? AS lease, ? AS session, ? AS mode, ? AS permits, ? AS cap, ? AS owner, ? AS note, ? AS reentrant, ? AS timed, ? AS ttl`
	// A lease that was out before has another token.
	quickGranted = `SELECT l.name, l.token, l.since FROM @leases l JOIN @locks k ON k.name = l.name
		WHERE l.name = ? AND l.lease = ? AND l.token = k.last - ?`
	// The lease is out, and nobody else has the lock or waits for it.
	quickMay = `SELECT COUNT(*) INTO $@holdfast FROM @leases l LEFT JOIN @sessions s ON s.id = l.session
		WHERE l.name = ? AND l.lease = ? AND l.held
			AND CASE WHEN l.timed THEN l.ends > $NOW ELSE s.cause = '' AND s.ends > $NOW END
			AND NOT EXISTS (SELECT 1 FROM @leases o WHERE o.name = l.name AND o.lease <> l.lease)`
	quickRelease  = `DELETE FROM @leases WHERE name = ? AND lease = ? AND $@holdfast = 1`
	quickReleased = `SELECT ? FROM DUAL WHERE $@holdfast = 1`
)

// Quick is one round trip.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	q := new(batch)
	q.exec(begin)
	s.lock(q, x.Names, &sqllease.View{Taken: make(map[string]int64)})
	const first = sqllease.Reserve - 1
	if n := len(x.Acquire); n > 0 {
		args := []any{first, first}
		for i := range x.Acquire {
			l := &x.Acquire[i]
			args = append(args, l.Name, string(l.Lease), string(l.Session), int64(l.Claim.Mode), l.Claim.Permits, l.Claim.Limit, l.Claim.Owner, l.Note,
				l.Claim.Reentrant, l.Timed, l.TTL.Microseconds())
		}
		rows := strings.TrimSuffix(strings.Repeat(quickRow+" UNION ALL ", n), " UNION ALL ")
		q.exec(s.b.sql(quickAcquire, rows), append(args, first)...)
	}
	for i := range x.Acquire {
		q.query(func(rows *sql.Rows) error {
			var g sqllease.QuickGrant
			var since int64
			err := rows.Scan(&g.Name, &g.Token, &since)
			g.Since = time.UnixMicro(since)
			x.Granted = append(x.Granted, g)
			return err //nolint:wrapcheck // see Unavailable
		}, s.b.sql(quickGranted), x.Acquire[i].Name, string(x.Acquire[i].Lease), first)
	}
	for _, k := range x.Release {
		q.exec(s.b.sql(quickMay), k.Name, string(k.ID))
		q.exec(s.b.sql(quickRelease), k.Name, string(k.ID))
		q.query(func(rows *sql.Rows) error {
			var name string
			err := rows.Scan(&name)
			x.Released = append(x.Released, name)
			return err //nolint:wrapcheck // see Unavailable
		}, s.b.sql(quickReleased), k.Name)
	}
	q.exec(commit)
	return s.alone(ctx, q)
}
