package pglock

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	killSessions = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		SELECT id, 0, $1, cause, '' FROM unnest($2::text[], $3::text[]) AS x (id, cause) ORDER BY id COLLATE "C"
		ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, ends = least(s.ends, excluded.ends)`
	cutSessions = `UPDATE @sessions SET ends = least(ends, clock_timestamp() + ttl * interval '1 microsecond') WHERE id = ANY($1::text[]) AND cause = ''`
	cutLeases   = `UPDATE @leases l SET ends = least(l.ends, clock_timestamp() + l.ttl * interval '1 microsecond')
		FROM unnest($1::text[], $2::text[]) AS x (name, lease) WHERE l.name = x.name AND l.lease = x.lease AND l.held AND l.timed`
	deleteLeases = `DELETE FROM @leases l USING unnest($1::text[], $2::text[]) AS x (name, lease) WHERE l.name = x.name AND l.lease = x.lease`
	insertLeases = `INSERT INTO @leases (name, lease, session, addr, held, place, mode, permits, cap, owner, note, timed, ttl,
			token, asked, since, ends, waited)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::smallint[], $8::integer[], $9::integer[],
			$10::text[], $11::text[], $12::boolean[], $13::bigint[], $14::bigint[], $15::timestamptz[], $16::timestamptz[],
			$17::timestamptz[], $18::boolean[])`
	updateLeases = `UPDATE @leases l SET session = x.session, addr = x.addr, held = x.held, place = x.place, token = x.token, since = x.since,
			ends = x.ends
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::bigint[], $8::timestamptz[], $9::timestamptz[])
			AS x (name, lease, session, addr, held, place, token, since, ends)
		WHERE l.name = x.name AND l.lease = x.lease`
	updateLocks = `UPDATE @locks l SET last = x.last, used = $3 FROM unnest($1::text[], $2::bigint[]) AS x (name, last) WHERE l.name = x.name`
	freeLocks   = `UPDATE @locks SET fat = 0, ` + noThin + ` WHERE name = ANY($1::text[])`
	buryLocks   = `UPDATE @locks SET buried = greatest(buried + interval '1 microsecond', $2) WHERE name = ANY($1::text[])`
	insertTombs = `INSERT INTO @tombs (name, lease, until) SELECT name, lease, $3 FROM unnest($1::text[], $2::text[]) AS x (name, lease)
		ON CONFLICT (name, lease) DO UPDATE SET until = excluded.until`
	insertLosses = `INSERT INTO @losses (session, lease, cause, reason, until)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
		ON CONFLICT (session, lease) DO UPDATE SET cause = excluded.cause, reason = excluded.reason, until = excluded.until`
	notify = `SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (channel, payload, n) ORDER BY n`
)

// queueSave writes what has changed.
func (s store) queueSave(q *pgx.Batch, c *sqllease.Changes) {
	if len(c.Killed) > 0 {
		var ids, causes []string
		for _, x := range c.Killed {
			ids, causes = append(ids, string(x.ID)), append(causes, x.Cause)
		}
		q.Queue(s.b.sql(killSessions), c.Now, ids, causes)
	}
	if len(c.CutSessions) > 0 {
		q.Queue(s.b.sql(cutSessions), texts(c.CutSessions))
	}
	if len(c.CutLeases) > 0 {
		names, leases := columns(c.CutLeases)
		q.Queue(s.b.sql(cutLeases), names, leases)
	}
	s.saveLeases(q, c)
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
		q.Queue(s.b.sql(buryLocks), names, c.Now.Add(sqllease.Remembered))
		q.Queue(s.b.sql(insertTombs), names, leases, c.Now.Add(sqllease.Remembered))
	}
	s.saveLosses(q, c.Losses)
	s.sendNotifications(q, c)
}

// leaseRows has rows of the table of leases, column by column.
type leaseRows struct {
	names, leases, sessions, addrs, owners, notes []string
	held, timed, waited                           []bool
	places, ttls, tokens                          []int64
	modes                                         []int16
	permits, limits                               []int32
	asked, since                                  []time.Time
	ends                                          []*time.Time
}

func (r *leaseRows) add(l *sqllease.LeaseRow) {
	r.names, r.leases = append(r.names, l.Name), append(r.leases, string(l.Lease))
	r.sessions, r.addrs = append(r.sessions, string(l.Session)), append(r.addrs, l.Addr)
	r.owners, r.notes = append(r.owners, l.Owner), append(r.notes, l.Note)
	r.held, r.timed, r.waited = append(r.held, l.Held), append(r.timed, l.Timed), append(r.waited, l.Waited)
	r.places, r.ttls, r.tokens = append(r.places, l.Place), append(r.ttls, l.TTL.Microseconds()), append(r.tokens, l.Token)
	r.modes = append(r.modes, int16(l.Claim.Mode))
	r.permits, r.limits = append(r.permits, int32(l.Claim.Permits)), append(r.limits, int32(l.Claim.Limit)) //nolint:gosec // at most backend.MaxLimit
	r.asked, r.since = append(r.asked, l.Asked), append(r.since, l.Since)
	var ends *time.Time
	if !l.Ends.IsZero() {
		ends = &l.Ends
	}
	r.ends = append(r.ends, ends)
}

func (s store) saveLeases(q *pgx.Batch, c *sqllease.Changes) {
	if len(c.Gone) > 0 {
		names, leases := columns(c.Gone)
		q.Queue(s.b.sql(deleteLeases), names, leases)
	}
	var fresh, changed leaseRows
	for i := range c.Changed {
		changed.add(&c.Changed[i])
	}
	for i := range c.Fresh {
		fresh.add(&c.Fresh[i])
	}
	if r := &changed; len(r.names) > 0 {
		q.Queue(s.b.sql(updateLeases), r.names, r.leases, r.sessions, r.addrs, r.held, r.places, r.tokens, r.since, r.ends)
	}
	if r := &fresh; len(r.names) > 0 {
		q.Queue(s.b.sql(insertLeases), r.names, r.leases, r.sessions, r.addrs, r.held, r.places, r.modes, r.permits, r.limits,
			r.owners, r.notes, r.timed, r.ttls, r.tokens, r.asked, r.since, r.ends, r.waited)
	}
}

func (s store) saveLosses(q *pgx.Batch, losses []sqllease.LossRow) {
	var sessions, leases, causes, reasons []string
	var until []time.Time
	for _, x := range losses {
		sessions, leases = append(sessions, string(x.Session)), append(leases, string(x.Lease))
		causes, reasons, until = append(causes, string(x.Cause)), append(reasons, x.Reason), append(until, x.Until)
	}
	if len(sessions) > 0 {
		q.Queue(s.b.sql(insertLosses), sessions, leases, causes, reasons, until)
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
