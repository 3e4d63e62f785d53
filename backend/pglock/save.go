package pglock

import (
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Rows are sent as arrays, which are planned as ten rows: see settingsOfLeases.
const (
	keyRows = ` unnest($1::text[], $2::text[]) AS x (name, lease) `

	killSessions = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		SELECT id, 0, $3, cause, '' FROM unnest($1::text[], $2::text[]) AS x (id, cause) ORDER BY id COLLATE "C"
		ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, ends = least(s.ends, excluded.ends)`
	cutSessions = `UPDATE @sessions SET ends = least(ends, clock_timestamp() + ttl * interval '1 microsecond') WHERE id = ANY($1::text[]) AND cause = ''`
	cutLeases   = `UPDATE @leases l SET ends = least(l.ends, clock_timestamp() + l.ttl * interval '1 microsecond')
		FROM ` + keyRows + `WHERE l.name = x.name AND l.lease = x.lease AND l.held AND l.timed`
	deleteLeases = `DELETE FROM @leases l USING ` + keyRows + `WHERE l.name = x.name AND l.lease = x.lease`
	// The columns of a lease are the lines of a text. As JSON or as 18 arrays they take longer: see docs/performance/sql.md.
	saveLeases = `INSERT INTO @leases (name, lease, session, addr, held, place, mode, permits, cap, owner, note, timed, ttl,
			token, asked, since, ends, waited)
		SELECT a[1], a[2], a[3], a[4], a[5]::boolean, a[6]::bigint, a[7]::smallint, a[8]::integer, a[9]::integer, a[10], a[11], a[12]::boolean,
			a[13]::bigint, a[14]::bigint, a[15]::timestamptz, a[16]::timestamptz, nullif(a[17], '')::timestamptz, a[18]::boolean
		FROM (SELECT string_to_array(lines, chr(10)) AS a FROM unnest($1::text[]) AS lines OFFSET 0) AS x
		ON CONFLICT (name, lease) DO UPDATE SET session = excluded.session, addr = excluded.addr, held = excluded.held, place = excluded.place,
			token = excluded.token, since = excluded.since, ends = excluded.ends`
	updateLocks = `UPDATE @locks l SET last = x.last, used = $3 FROM unnest($1::text[], $2::bigint[]) AS x (name, last) WHERE l.name = x.name`
	freeLocks   = `UPDATE @locks SET fat = 0, ` + noThin + ` WHERE name = ANY($1::text[])`
	buryLocks   = `UPDATE @locks SET buried = greatest(buried + interval '1 microsecond', $2) WHERE name = ANY($1::text[])`
	insertTombs = `INSERT INTO @tombs (name, lease, until) SELECT x.name, x.lease, $3 FROM ` + keyRows + `
		ON CONFLICT (name, lease) DO UPDATE SET until = excluded.until`
	insertLosses = `INSERT INTO @losses (session, lease, cause, reason, until)
		SELECT DISTINCT ON (session, lease) * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[]) AS x (session, lease, cause, reason, until)
		ON CONFLICT (session, lease) DO UPDATE SET cause = excluded.cause, reason = excluded.reason, until = excluded.until`
	notify = `SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (channel, payload, n) ORDER BY n`
)

// queueSave writes what has changed.
func (s store) queueSave(q *pgx.Batch, c *sqllease.Changes) {
	until := c.Now.Add(sqllease.Remembered)
	if len(c.Killed) > 0 {
		var ids, causes []string
		for _, x := range c.Killed {
			ids, causes = append(ids, string(x.ID)), append(causes, x.Cause)
		}
		q.Queue(s.b.sql(killSessions), ids, causes, c.Now)
	}
	if len(c.CutSessions) > 0 {
		q.Queue(s.b.sql(cutSessions), texts(c.CutSessions))
	}
	if len(c.CutLeases) > 0 {
		names, leases := columns(c.CutLeases)
		q.Queue(s.b.sql(cutLeases), names, leases)
	}
	if len(c.Gone) > 0 {
		names, leases := columns(c.Gone)
		q.Queue(s.b.sql(deleteLeases), names, leases)
	}
	if len(c.Leases) > 0 {
		var all []string
		for i := range c.Leases {
			all = append(all, linesOf(&c.Leases[i]))
		}
		q.Queue(s.b.sql(saveLeases), all)
	}
	if len(c.Lasts) > 0 {
		var names []string
		var lasts []int64
		for _, x := range c.Lasts {
			names, lasts = append(names, x.Name), append(lasts, x.Last)
		}
		q.Queue(s.b.sql(updateLocks), names, lasts, c.Now)
	}
	if len(c.Free) > 0 {
		q.Queue(s.b.sql(freeLocks), c.Free)
	}
	if len(c.Buried) > 0 {
		names, leases := columns(c.Buried)
		q.Queue(s.b.sql(buryLocks), names, until)
		q.Queue(s.b.sql(insertTombs), names, leases, until)
	}
	if len(c.Losses) > 0 {
		var sessions, leases, causes, reasons []string
		var untils []time.Time
		for _, x := range c.Losses {
			sessions, leases = append(sessions, string(x.Session)), append(leases, string(x.Lease))
			causes, reasons, untils = append(causes, string(x.Cause)), append(reasons, x.Reason), append(untils, x.Until)
		}
		q.Queue(s.b.sql(insertLosses), sessions, leases, causes, reasons, untils)
	}
	s.sendNotifications(q, c)
}

// linesOf returns the columns of a lease, a line each. No text has a line break: see backend.ValidateText.
func linesOf(l *sqllease.LeaseRow) string {
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	instant := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	ends := ""
	if !l.Ends.IsZero() {
		ends = instant(l.Ends)
	}
	return strings.Join([]string{
		l.Name, string(l.Lease), string(l.Session), l.Addr, strconv.FormatBool(l.Held), decimal(l.Place),
		decimal(int64(l.Claim.Mode)), decimal(int64(l.Claim.Permits)), decimal(int64(l.Claim.Limit)), l.Owner, l.Note,
		strconv.FormatBool(l.Timed), decimal(l.TTL.Microseconds()), decimal(l.Token), instant(l.Asked), instant(l.Since), ends,
		strconv.FormatBool(l.Waited),
	}, "\n")
}

// sendNotifications sends the notifications for other values, which arrive if and only if it commits.
func (s store) sendNotifications(q *pgx.Batch, c *sqllease.Changes) {
	if !s.b.notifier.sends() {
		return
	}
	var channels, payloads []string
	for _, l := range c.Notifications {
		channels, payloads = append(channels, l.Addr), append(payloads, l.Payload)
	}
	for i, e := range c.Events {
		channels, payloads = append(channels, s.b.eventChannel), append(payloads, encodeEvent(i, e))
	}
	if len(channels) > 0 {
		q.Queue(notify, channels, payloads)
	}
}
