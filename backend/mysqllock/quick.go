package mysqllock

import (
	"context"
	"database/sql"
	"encoding/hex"
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
		WHERE %s AND l.token = k.last - ?`
	// The leases that are out, where nobody else has the lock or waits for it: their IDs,
	// as a list that may be searched. What was there before is not.
	quickMay = `SELECT GROUP_CONCAT(HEX(l.lease)) INTO $@holdfast FROM @leases l LEFT JOIN @sessions s ON s.id = l.session
		WHERE %s AND l.held
			AND CASE WHEN l.timed THEN l.ends > $NOW ELSE s.cause = '' AND s.ends > $NOW END
			AND NOT EXISTS (SELECT 1 FROM @leases o WHERE o.name = l.name AND o.lease <> l.lease)`
	quickReleased = `SELECT $@holdfast`
	quickRelease  = `DELETE FROM @leases WHERE %s AND FIND_IN_SET(HEX(lease), $@holdfast)`
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
	if n := len(x.Acquire); n > 0 {
		keys := make([]sqllease.Key, 0, n)
		for i := range x.Acquire {
			keys = append(keys, sqllease.Key{Name: x.Acquire[i].Name, ID: x.Acquire[i].Lease})
		}
		which, args := anyOf("l.", keys)
		q.query(func(rows *sql.Rows) error {
			var g sqllease.QuickGrant
			var since int64
			err := rows.Scan(&g.Name, &g.Token, &since)
			g.Since = time.UnixMicro(since)
			x.Granted = append(x.Granted, g)
			return err //nolint:wrapcheck // see Unavailable
		}, s.b.sql(quickGranted, which), append(args, first)...)
	}
	if len(x.Release) > 0 {
		s.quickRelease(q, x)
	}
	q.exec(commit)
	return s.alone(ctx, q)
}

// quickRelease adds the statements that give leases back. Their IDs have to tell them apart:
// of those that have the same, on different locks, the others go the long way.
func (s store) quickRelease(q *batch, x *sqllease.Quick) {
	names := make(map[string]string, len(x.Release))
	keys := make([]sqllease.Key, 0, len(x.Release))
	for _, k := range x.Release {
		id := strings.ToUpper(hex.EncodeToString([]byte(k.ID)))
		if _, twice := names[id]; !twice {
			names[id] = k.Name
			keys = append(keys, k)
		}
	}
	// The server cuts a list off at so many bytes as its session says. An ID has 64 at
	// most, in twice as many digits, and then comes a comma.
	const each, least = 2*64 + 1, 1024
	q.exec("SET SESSION group_concat_max_len = ?", max(least, each*len(keys)))
	which, args := anyOf("l.", keys)
	q.exec(s.b.sql(quickMay, which), args...)
	which, args = anyOf("", keys)
	q.exec(s.b.sql(quickRelease, which), args...)
	q.query(func(rows *sql.Rows) error {
		var list sql.NullString
		if err := rows.Scan(&list); err != nil {
			return err //nolint:wrapcheck // see Unavailable
		}
		for id := range strings.SplitSeq(list.String, ",") {
			if name, ok := names[id]; ok {
				x.Released = append(x.Released, name)
			}
		}
		return nil
	}, s.b.sql(quickReleased))
}
