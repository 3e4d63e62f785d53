package pglock

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Rows are sent as texts, which the server reads as rows of a table: see row. Those of @tombs are for keys, too. Like an array
// of keys, that is planned as ten rows: see settingsOfLeases.
const (
	keys = ` unnest($1::text[]::@tombs[]) AS x `

	killSessions = `INSERT INTO @sessions AS s SELECT x.* FROM unnest($1::text[]::@sessions[]) AS x ORDER BY x.id
		ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, ends = least(s.ends, excluded.ends)`
	cutSessions = `UPDATE @sessions SET ends = least(ends, clock_timestamp() + ttl * interval '1 microsecond') WHERE id = ANY($1::text[]) AND cause = ''`
	cutLeases   = `UPDATE @leases l SET ends = least(l.ends, clock_timestamp() + l.ttl * interval '1 microsecond')
		FROM ` + keys + `WHERE l.name = x.name AND l.lease = x.lease AND l.held AND l.timed`
	deleteLeases = `DELETE FROM @leases l USING ` + keys + `WHERE l.name = x.name AND l.lease = x.lease`
	saveLeases   = `INSERT INTO @leases SELECT x.* FROM unnest($1::text[]::@leases[]) AS x
		ON CONFLICT (name, lease) DO UPDATE SET session = excluded.session, addr = excluded.addr, held = excluded.held, place = excluded.place,
			token = excluded.token, since = excluded.since, ends = excluded.ends`
	updateLocks = `UPDATE @locks l SET last = x.last, used = $3 FROM unnest($1::text[], $2::bigint[]) AS x (name, last) WHERE l.name = x.name`
	freeLocks   = `UPDATE @locks SET fat = 0, ` + noThin + ` WHERE name = ANY($1::text[])`
	buryLocks   = `UPDATE @locks SET buried = greatest(buried + interval '1 microsecond', $2) WHERE name = ANY($1::text[])`
	insertTombs = `INSERT INTO @tombs SELECT x.* FROM ` + keys + `ON CONFLICT (name, lease) DO UPDATE SET until = excluded.until`

	insertLosses = `INSERT INTO @losses SELECT DISTINCT ON (x.session, x.lease) x.* FROM unnest($1::text[]::@losses[]) AS x
		ON CONFLICT (session, lease) DO UPDATE SET cause = excluded.cause, reason = excluded.reason, until = excluded.until`
	notify = `SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (channel, payload, n) ORDER BY n`
)

// row is a row of a table as text, by its columns in their order: strings, numbers, booleans, times, and nil. See section
// 8.16.2 of PostgreSQL's manual.
func row(columns ...any) string {
	texts := make([]string, len(columns))
	for i, c := range columns {
		switch v := c.(type) {
		case nil:
		case string:
			texts[i] = `"` + strings.ReplaceAll(strings.ReplaceAll(v, `\`, `\\`), `"`, `\"`) + `"`
		case time.Time:
			texts[i] = v.UTC().Format(time.RFC3339Nano)
		default:
			texts[i] = fmt.Sprint(v)
		}
	}
	return "(" + strings.Join(texts, ",") + ")"
}

func leaseRow(l sqllease.LeaseRow) string {
	var ends any
	if !l.Ends.IsZero() {
		ends = l.Ends
	}
	return row(l.Name, string(l.Lease), string(l.Session), l.Addr, l.Held, l.Place, int(l.Claim.Mode), l.Claim.Permits, l.Claim.Limit,
		l.Owner, l.Note, l.Timed, l.TTL.Microseconds(), l.Token, l.Asked, l.Since, ends, l.Waited)
}

// save queues a statement for rows, if there are any.
func save[Row any](q *pgx.Batch, statement string, rows []Row, text func(Row) string) {
	if len(rows) == 0 {
		return
	}
	all := make([]string, len(rows))
	for i, r := range rows {
		all[i] = text(r)
	}
	q.Queue(statement, all)
}

// queueSave writes what has changed.
func (s store) queueSave(q *pgx.Batch, c *sqllease.Changes) {
	until := c.Now.Add(sqllease.Remembered)
	key := func(k sqllease.Key) string { return row(k.Name, string(k.ID), until) }
	save(q, s.b.sql(killSessions), c.Killed, func(x sqllease.SessionRow) string { return row(string(x.ID), 0, c.Now, x.Cause, "") })
	if len(c.CutSessions) > 0 {
		q.Queue(s.b.sql(cutSessions), texts(c.CutSessions))
	}
	save(q, s.b.sql(cutLeases), c.CutLeases, key)
	save(q, s.b.sql(deleteLeases), c.Gone, key)
	save(q, s.b.sql(saveLeases), c.Leases, leaseRow)
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
		names, _ := columns(c.Buried)
		q.Queue(s.b.sql(buryLocks), names, until)
	}
	save(q, s.b.sql(insertTombs), c.Buried, key)
	save(q, s.b.sql(insertLosses), c.Losses, func(x sqllease.LossRow) string {
		return row(string(x.Session), string(x.Lease), string(x.Cause), x.Reason, x.Until)
	})
	s.sendNotifications(q, c)
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
