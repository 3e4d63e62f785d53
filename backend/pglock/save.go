package pglock

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Rows are sent column by column. An array is planned as ten rows: see settingsOfLeases.
const (
	keys = ` unnest($1::text[], $2::text[]) AS x (name, lease) `

	killSessions = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		SELECT id, 0, $3, cause, '' FROM unnest($1::text[], $2::text[]) AS x (id, cause) ORDER BY id COLLATE "C"
		ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, ends = least(s.ends, excluded.ends)`
	cutSessions = `UPDATE @sessions SET ends = least(ends, clock_timestamp() + ttl * interval '1 microsecond') WHERE id = ANY($1::text[]) AND cause = ''`
	cutLeases   = `UPDATE @leases l SET ends = least(l.ends, clock_timestamp() + l.ttl * interval '1 microsecond')
		FROM ` + keys + `WHERE l.name = x.name AND l.lease = x.lease AND l.held AND l.timed`
	deleteLeases = `DELETE FROM @leases l USING ` + keys + `WHERE l.name = x.name AND l.lease = x.lease`
	saveLeases   = `INSERT INTO @leases (name, lease, session, addr, held, place, mode, permits, cap, owner, note, timed, ttl,
			token, asked, since, ends, waited)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::text[], $11::text[], $12::boolean[], $13::bigint[], $14::bigint[], $15::timestamptz[], $16::timestamptz[],
			$17::timestamptz[], $18::boolean[])
		ON CONFLICT (name, lease) DO UPDATE SET session = excluded.session, addr = excluded.addr, held = excluded.held, place = excluded.place,
			token = excluded.token, since = excluded.since, ends = excluded.ends`
	updateLocks = `UPDATE @locks l SET last = x.last, used = $3 FROM unnest($1::text[], $2::bigint[]) AS x (name, last) WHERE l.name = x.name`
	freeLocks   = `UPDATE @locks SET fat = 0, ` + noThin + ` WHERE name = ANY($1::text[])`
	buryLocks   = `UPDATE @locks SET buried = greatest(buried + interval '1 microsecond', $2) WHERE name = ANY($1::text[])`
	insertTombs = `INSERT INTO @tombs (name, lease, until) SELECT x.name, x.lease, $3 FROM ` + keys + `
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
		q.Queue(s.b.sql(saveLeases), columnsOfLeases(c.Leases)...)
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

// columnsOfLeases returns the arguments of saveLeases.
func columnsOfLeases(rows []sqllease.LeaseRow) []any {
	var names, leases, sessions, addrs, owners, notes []string
	var held, timed, waited []bool
	var places, modes, permits, limits, ttls, tokens []int64
	var asked, since []time.Time
	var ends []*time.Time
	for i := range rows {
		l := &rows[i]
		names, leases, sessions = append(names, l.Name), append(leases, string(l.Lease)), append(sessions, string(l.Session))
		addrs, owners, notes = append(addrs, l.Addr), append(owners, l.Owner), append(notes, l.Note)
		held, timed, waited = append(held, l.Held), append(timed, l.Timed), append(waited, l.Waited)
		places, ttls, tokens = append(places, l.Place), append(ttls, l.TTL.Microseconds()), append(tokens, l.Token)
		modes, permits, limits = append(modes, int64(l.Claim.Mode)), append(permits, int64(l.Claim.Permits)), append(limits, int64(l.Claim.Limit))
		asked, since = append(asked, l.Asked), append(since, l.Since)
		end := &l.Ends
		if l.Ends.IsZero() {
			end = nil
		}
		ends = append(ends, end)
	}
	return []any{
		names, leases, sessions, addrs, held, places, modes, permits, limits, owners, notes, timed, ttls, tokens, asked, since, ends, waited,
	}
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
