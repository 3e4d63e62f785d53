package pglock

import (
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Rows are sent as JSON, a text each, so that the fields of a row are named here and nowhere else. Like an array of keys,
// that is planned as ten rows: see settingsOfLeases.
const (
	rowsOf    = ` unnest($1::text[]) WITH ORDINALITY AS j (body, n), jsonb_to_record(j.body::jsonb) AS x `
	keyRows   = rowsOf + `("Name" text, "ID" text) `
	leaseRows = rowsOf + `("Name" text, "Lease" text, "Session" text, "Addr" text, "Held" boolean, "Place" bigint, "Claim" jsonb, "Owner" text, "Note" text,
			"Timed" boolean, "TTL" bigint, "Token" bigint, "Asked" timestamptz, "Since" timestamptz, "Ends" timestamptz, "Waited" boolean) `
	// Only a timed lease that is held has an end.
	endOfLease = `nullif(x."Ends", '0001-01-01T00:00:00Z')`

	killSessions = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		SELECT x."ID", 0, $2, x."Cause", '' FROM ` + rowsOf + `("ID" text, "Cause" text) ORDER BY x."ID" COLLATE "C"
		ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, ends = least(s.ends, excluded.ends)`
	cutSessions = `UPDATE @sessions SET ends = least(ends, clock_timestamp() + ttl * interval '1 microsecond') WHERE id = ANY($1::text[]) AND cause = ''`
	cutLeases   = `UPDATE @leases l SET ends = least(l.ends, clock_timestamp() + l.ttl * interval '1 microsecond')
		FROM ` + keyRows + `WHERE l.name = x."Name" AND l.lease = x."ID" AND l.held AND l.timed`
	deleteLeases = `DELETE FROM @leases l USING ` + keyRows + `WHERE l.name = x."Name" AND l.lease = x."ID"`
	saveLeases   = `INSERT INTO @leases (name, lease, session, addr, held, place, mode, permits, cap, owner, note, timed, ttl,
			token, asked, since, ends, waited)
		SELECT "Name", "Lease", "Session", "Addr", "Held", "Place", ("Claim"->'Mode')::smallint, ("Claim"->'Permits')::integer, ("Claim"->'Limit')::integer,
			"Owner", "Note", "Timed", "TTL" / 1000, "Token", "Asked", "Since", ` + endOfLease + `, "Waited" FROM ` + leaseRows + `
		ON CONFLICT (name, lease) DO UPDATE SET session = excluded.session, addr = excluded.addr, held = excluded.held, place = excluded.place,
			token = excluded.token, since = excluded.since, ends = excluded.ends`
	updateLocks = `UPDATE @locks l SET last = x."Last", used = $2 FROM ` + rowsOf + `("Name" text, "Last" bigint) WHERE l.name = x."Name"`
	freeLocks   = `UPDATE @locks SET fat = 0, ` + noThin + ` WHERE name = ANY($1::text[])`
	buryLocks   = `UPDATE @locks SET buried = greatest(buried + interval '1 microsecond', $2) WHERE name = ANY($1::text[])`
	insertTombs = `INSERT INTO @tombs (name, lease, until) SELECT x."Name", x."ID", $2 FROM ` + keyRows + `
		ON CONFLICT (name, lease) DO UPDATE SET until = excluded.until`
	insertLosses = `INSERT INTO @losses (session, lease, cause, reason, until) SELECT DISTINCT ON ("Session", "Lease") "Session", "Lease", "Cause", "Reason", "Until"
		FROM ` + rowsOf + `("Session" text, "Lease" text, "Cause" text, "Reason" text, "Until" timestamptz)
		ON CONFLICT (session, lease) DO UPDATE SET cause = excluded.cause, reason = excluded.reason, until = excluded.until`
	notify = `SELECT pg_notify(x."Addr", x."Payload") FROM ` + rowsOf + `("Addr" text, "Payload" text) ORDER BY j.n`
)

// save queues a statement for rows, if there are any.
func save[Row any](q *pgx.Batch, statement string, rows []Row, args ...any) {
	if len(rows) == 0 {
		return
	}
	texts := make([]string, len(rows))
	for i := range rows {
		text, _ := json.Marshal(&rows[i]) // it cannot fail
		texts[i] = string(text)
	}
	q.Queue(statement, append([]any{texts}, args...)...)
}

// queueSave writes what has changed.
func (s store) queueSave(q *pgx.Batch, c *sqllease.Changes) {
	until := c.Now.Add(sqllease.Remembered)
	save(q, s.b.sql(killSessions), c.Killed, c.Now)
	if len(c.CutSessions) > 0 {
		q.Queue(s.b.sql(cutSessions), texts(c.CutSessions))
	}
	save(q, s.b.sql(cutLeases), c.CutLeases)
	save(q, s.b.sql(deleteLeases), c.Gone)
	save(q, s.b.sql(saveLeases), c.Leases)
	save(q, s.b.sql(updateLocks), c.Lasts, c.Now)
	if len(c.Free) > 0 {
		q.Queue(s.b.sql(freeLocks), c.Free)
	}
	if len(c.Buried) > 0 {
		names, _ := columns(c.Buried)
		q.Queue(s.b.sql(buryLocks), names, until)
	}
	save(q, s.b.sql(insertTombs), c.Buried, until)
	save(q, s.b.sql(insertLosses), c.Losses)
	s.sendNotifications(q, c)
}

// sendNotifications sends the notifications for other values, which arrive if and only if it commits.
func (s store) sendNotifications(q *pgx.Batch, c *sqllease.Changes) {
	if !s.b.notifier.sends() {
		return
	}
	all := slices.Clone(c.Notifications)
	for i, e := range c.Events {
		all = append(all, sqllease.Notification{Addr: s.b.eventChannel, Payload: encodeEvent(i, e)})
	}
	save(q, notify, all)
}
