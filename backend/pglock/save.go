package pglock

import (
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	killSessions = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		SELECT id, 0, $1, cause, '' FROM unnest($2::text[], $3::text[]) AS x (id, cause) ORDER BY id
		ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, ends = least(s.ends, excluded.ends)`
	deleteLeases = `DELETE FROM @leases l USING unnest($1::text[], $2::text[]) AS x (name, lease) WHERE l.name = x.name AND l.lease = x.lease`
	insertLeases = `INSERT INTO @leases (name, lease, session, addr, held, place, mode, permits, cap, owner, note, reentrant, timed, ttl,
			token, asked, since, ends, waited, joined)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::smallint[], $8::integer[], $9::integer[],
			$10::text[], $11::text[], $12::boolean[], $13::boolean[], $14::bigint[], $15::bigint[], $16::timestamptz[], $17::timestamptz[],
			$18::timestamptz[], $19::boolean[], $20::boolean[])`
	updateLeases = `UPDATE @leases l SET session = x.session, addr = x.addr, held = x.held, place = x.place, token = x.token, since = x.since,
			ends = x.ends, joined = x.joined
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::bigint[], $8::timestamptz[], $9::timestamptz[],
			$10::boolean[]) AS x (name, lease, session, addr, held, place, token, since, ends, joined)
		WHERE l.name = x.name AND l.lease = x.lease`
	updateLocks = `UPDATE @locks l SET last = x.last, used = $3 FROM unnest($1::text[], $2::bigint[]) AS x (name, last) WHERE l.name = x.name`
	insertTombs = `INSERT INTO @tombs (name, lease, until) SELECT name, lease, $3 FROM unnest($1::text[], $2::text[]) AS x (name, lease)
		ON CONFLICT (name, lease) DO UPDATE SET until = excluded.until`
	insertLosses = `INSERT INTO @losses (session, lease, cause, reason, until)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
		ON CONFLICT (session, lease) DO UPDATE SET cause = excluded.cause, reason = excluded.reason, until = excluded.until`
	notify = `SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (channel, payload, n) ORDER BY n`
)

// remembered is how long what ended, or was abandoned, is kept from coming back:
// longer than a late request can be on its way.
const remembered = 10 * time.Minute

// queueSave writes what has changed, and reports whether that is anything.
func (t *txn) queueSave(q *pgx.Batch) bool {
	before := q.Len()
	t.saveSessions(q)
	t.saveLeases(q)
	t.saveLocks(q)
	if len(t.tombs) > 0 {
		names, leases := columns(slices.SortedFunc(maps.Keys(t.tombs), leaseKey.compare))
		q.Queue(t.b.sql(insertTombs), names, leases, t.now.Add(remembered))
	}
	t.saveLosses(q)
	t.sendLetters(q)
	return q.Len() > before
}

func (t *txn) saveSessions(q *pgx.Batch) {
	var ids, causes []string
	for _, id := range slices.Sorted(maps.Keys(t.sessions)) {
		if s := t.sessions[id]; s.dirty {
			ids, causes = append(ids, string(id)), append(causes, s.cause)
		}
	}
	if len(ids) > 0 {
		q.Queue(t.b.sql(killSessions), t.now, ids, causes)
	}
}

// leaseRows is the rows of the table of leases, column by column.
type leaseRows struct {
	names, leases, sessions, addrs, owners, notes []string
	held, reentrant, timed, waited, joined        []bool
	places, ttls, tokens                          []int64
	modes                                         []int16
	permits, limits                               []int32
	asked, since                                  []time.Time
	ends                                          []*time.Time
}

func (r *leaseRows) add(l *lease) {
	r.names, r.leases = append(r.names, l.lock.name), append(r.leases, string(l.id))
	r.sessions, r.addrs = append(r.sessions, string(l.sessionID())), append(r.addrs, l.addr)
	r.owners, r.notes = append(r.owners, l.claim.Owner), append(r.notes, l.note)
	r.held, r.reentrant = append(r.held, l.state == held), append(r.reentrant, l.claim.Reentrant)
	r.timed, r.waited, r.joined = append(r.timed, l.timed), append(r.waited, l.waited), append(r.joined, l.joined)
	r.places, r.ttls, r.tokens = append(r.places, l.place), append(r.ttls, l.ttl.Microseconds()), append(r.tokens, l.token)
	r.modes = append(r.modes, int16(l.claim.Mode))
	r.permits, r.limits = append(r.permits, int32(l.claim.Permits)), append(r.limits, int32(l.claim.Limit)) //nolint:gosec // at most backend.MaxLimit
	r.asked, r.since = append(r.asked, l.asked), append(r.since, l.since)
	var ends *time.Time
	if !l.ends.IsZero() {
		ends = &l.ends
	}
	r.ends = append(r.ends, ends)
}

func (t *txn) saveLeases(q *pgx.Batch) {
	if len(t.gone) > 0 {
		keys := make([]leaseKey, 0, len(t.gone))
		for _, l := range t.gone {
			keys = append(keys, l.key())
		}
		slices.SortFunc(keys, leaseKey.compare)
		names, leases := columns(keys)
		q.Queue(t.b.sql(deleteLeases), names, leases)
	}
	var fresh, changed leaseRows
	for _, name := range t.names() {
		for _, l := range t.locks[name].all() {
			switch {
			case !l.dirty:
			case l.saved:
				changed.add(l)
			default:
				fresh.add(l)
			}
		}
	}
	if r := &changed; len(r.names) > 0 {
		q.Queue(t.b.sql(updateLeases), r.names, r.leases, r.sessions, r.addrs, r.held, r.places, r.tokens, r.since, r.ends, r.joined)
	}
	if r := &fresh; len(r.names) > 0 {
		q.Queue(t.b.sql(insertLeases), r.names, r.leases, r.sessions, r.addrs, r.held, r.places, r.modes, r.permits, r.limits,
			r.owners, r.notes, r.reentrant, r.timed, r.ttls, r.tokens, r.asked, r.since, r.ends, r.waited, r.joined)
	}
}

func (t *txn) saveLocks(q *pgx.Batch) {
	var names []string
	var lasts []int64
	for _, name := range t.names() {
		if l := t.locks[name]; l.last > l.mine {
			names, lasts = append(names, name), append(lasts, l.last)
		}
	}
	if len(names) > 0 {
		q.Queue(t.b.sql(updateLocks), names, lasts, t.now)
	}
}

func (t *txn) saveLosses(q *pgx.Batch) {
	var sessions, leases, causes, reasons []string
	var until []time.Time
	seen := make(map[backend.Loss]struct{})
	for _, x := range t.losses {
		k := backend.Loss{Session: x.Session, Lease: x.Lease}
		if _, again := seen[k]; again {
			continue // a row can be written once in a statement
		}
		seen[k] = struct{}{}
		sessions, leases = append(sessions, string(x.Session)), append(leases, string(x.Lease))
		causes, reasons, until = append(causes, string(x.Cause)), append(reasons, x.Reason), append(until, x.until)
	}
	if len(sessions) > 0 {
		q.Queue(t.b.sql(insertLosses), sessions, leases, causes, reasons, until)
	}
}

// sendLetters sends what others have to know, when and only when it is committed.
func (t *txn) sendLetters(q *pgx.Batch) {
	var channels, payloads []string
	for _, addr := range slices.Sorted(maps.Keys(t.letters)) {
		for _, p := range t.letters[addr].encode() {
			channels, payloads = append(channels, addr), append(payloads, p)
		}
	}
	for i, e := range t.events {
		channels, payloads = append(channels, t.b.eventChannel), append(payloads, encodeEvent(i, e))
	}
	if len(channels) > 0 {
		q.Queue(notify, channels, payloads)
	}
}
