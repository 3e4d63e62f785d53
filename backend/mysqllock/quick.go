package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// maxQuick is how many locks are tried together.
const maxQuick = 128

// A thin lock has its lease in its own row, so that one statement decides. An UPDATE locks rows in the
// order of their keys, and evaluates its condition on the newest version of each. Under READ COMMITTED
// its sub-selects lock nothing, so it does not wait for the renewal of a session. A sub-select may read
// a version as old as the statement, which may have waited for a row:
//
//   - The session. Sessions do not come back to life. If one has ended meanwhile, the lease is
//     dead from the start, or was released before.
//   - The floor and the tombs are read only for rows that an earlier statement of the same
//     transaction has locked. So the statement begins after all that was committed for the locks.
//   - Where no statement has locked the rows before, the row itself says that neither matters. It
//     has no tombs (buried), and whoever wrote its number saw the floor (last).
//
// $CLOCK is read after the wait for the row.
//
// The cost of a statement for the server is mostly its text: every literal in it is parsed, resolved
// and freed again. So there is one for all locks, and what leases have in common is written once.
const (
	// The rows, locked, of locks of which some may have none. The floor of now is not known yet: the
	// statement may wait for the sweep of the row before. So a new row has no number, and is not thin
	// before a statement that follows has written one.
	newLocks = `INSERT INTO @locks (name, last, used) VALUES ? ON DUPLICATE KEY UPDATE used = used`
	newRow   = `(?, 0, $NOW)`

	// A later assignment sees the result of an earlier one.
	takeRows = `UPDATE @locks k SET mark = ?, since = $CLOCK, used = since, last = GREATEST(since, `
	takeNext = `) + 1, token = last, lease = ?, session = ?, mode = ?, permits = ?, cap = ?,
			owner = ?, note = ?, timed = ?, ttl = ?, ends = CASE WHEN timed THEN since + ttl END
		WHERE name IN (?) AND lease = '' AND fat = 0 AND NOT ($READONLY)
			AND (? = '' OR EXISTS (SELECT 1 FROM @sessions s WHERE s.id = ? AND s.cause = '' AND s.ends > $CLOCK)) AND `
	takeKnown = takeRows + `last` + takeNext + `last > 0 AND buried <= $CLOCK`
	// Each lease is requested for one lock. If the same ID was abandoned on another one of the locks,
	// that sends the request the long way, and nothing worse.
	takeLocked = takeRows + `last, (SELECT last_floor FROM @meta WHERE id = 1)` + takeNext +
		`NOT EXISTS (SELECT 1 FROM @tombs t FORCE INDEX (PRIMARY) WHERE t.name = k.name AND t.lease IN (?) AND t.expires > $CLOCK)`
	quickGranted = `SELECT name, token, since, buried > $NOW FROM @locks WHERE name IN (?) AND lease IN (?) AND mark BETWEEN ?`

	noThin       = `lease = '', session = '', owner = '', note = '', ends = NULL`
	quickRelease = `UPDATE @locks k SET mark = ?, ` + noThin + ` WHERE name IN (?) AND lease = ? AND fat = 0 AND NOT ($READONLY)
			AND CASE WHEN timed THEN ends > $CLOCK
				ELSE EXISTS (SELECT 1 FROM @sessions s WHERE s.id = k.session AND s.cause = '' AND s.ends > $CLOCK) END`
	quickReleased = `SELECT name FROM @locks WHERE name IN (?) AND mark BETWEEN ?`
)

// Quick is one round trip. A statement that decides alone is a transaction by itself.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	if len(x.Acquire) > 0 {
		return s.quickAcquire(ctx, x)
	}
	return s.quickRelease(ctx, x)
}

func (s store) quickAcquire(ctx context.Context, x *sqllease.Quick) error {
	var names, leases []string
	known := true
	columns := make([][]any, 9) //nolint:mnd // see below
	for i := range x.Acquire {
		l := &x.Acquire[i]
		names, leases = append(names, l.Name), append(leases, string(l.Lease))
		known = known && x.Known[l.Name]
		for c, v := range []any{
			string(l.Lease), string(l.Session), int64(l.Claim.Mode), l.Claim.Permits, l.Claim.Limit, l.Owner, l.Note, l.Timed, l.TTL.Microseconds(),
		} {
			columns[c] = append(columns[c], v)
		}
	}
	m := s.marked(names)
	args := []any{m.mark}
	for _, values := range columns {
		args = append(args, chosen(m.marked, values))
	}
	session := chosen(m.place, columns[1])
	args = append(args, in(names), session, session)
	q := new(batch)
	if known {
		q.exec(s.b.sql(takeKnown), args...)
	} else {
		q.exec(begin)
		q.exec(s.b.sql(newLocks), list(s.b.sql(newRow), len(names), in(names).args))
		q.exec(s.b.sql(takeLocked), append(args, in(leases))...)
	}
	q.query(func(rows *sql.Rows) error {
		var g sqllease.QuickGrant
		var since int64
		err := rows.Scan(&g.Name, &g.Token, &since, &g.Tombs)
		g.Since = time.UnixMicro(since)
		x.Granted = append(x.Granted, g)
		return err //nolint:wrapcheck // see Unavailable
	}, s.b.sql(quickGranted), in(names), in(leases), m.all)
	if !known {
		q.exec(commit)
		return s.alone(ctx, q)
	}
	return afterUpdate(s.alone(ctx, q))
}

func (s store) quickRelease(ctx context.Context, x *sqllease.Quick) error {
	var names []string
	var leases []any
	for _, k := range x.Release {
		names, leases = append(names, k.Name), append(leases, string(k.ID))
	}
	m, q := s.marked(names), new(batch)
	args := []any{m.mark, in(names), chosen(m.place, leases)}
	if len(names) == 1 {
		q.exec(s.b.sql(quickRelease), args...)
		n, err := s.count(ctx, q)
		if n > 0 {
			x.Released = append(x.Released, names[0])
		}
		return err
	}
	q.exec(begin)
	q.exec(s.b.sql(quickRelease), args...)
	q.query(func(rows *sql.Rows) error { return scanName(rows, &x.Released) }, s.b.sql(quickReleased), in(names), m.all)
	q.exec(commit)
	return s.alone(ctx, q)
}

// marking has the numbers with which a call marks its locks, in the order of their names.
type marking struct {
	mark   part // of a lock
	all    part // the first and the last
	place  part // of a lock among the names, from 1
	marked part // the same after its mark was assigned
}

// marked returns the marking of a call.
func (s store) marked(names []string) marking {
	n := int64(len(names))
	before := s.b.marks.Add(n) - n
	m := marking{mark: part{"?", []any{before + 1}}, all: part{"? AND ?", []any{before + 1, before + n}}}
	if n > 1 {
		m.place = part{"FIELD(name, ?)", []any{in(names)}}
		m.marked = part{"mark - ?", []any{before}}
		m.mark = part{"? + ?", []any{before, m.place}}
	}
	return m
}

// chosen returns an expression for the value at a place, from 1. The value is written once where all
// are the same. Numbers are written as numbers.
func chosen(place part, all []any) part {
	same := true
	for _, x := range all {
		same = same && x == all[0]
	}
	if same {
		return part{"?", all[:1]}
	}
	p := part{"ELT(?, ?)", []any{place, list("?", len(all), all)}}
	if _, isText := all[0].(string); !isText {
		p = part{"CAST(? AS SIGNED)", []any{p}}
	}
	return p
}
