package mysqllock

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// The cost of a statement for the server is mostly its text: every literal in it is parsed,
// resolved and freed again. So what leases have in common is written once, and rows are made from
// those of the locks rather than from a list. A number has one bit for each lock, at the lock's
// place in the list of names.
//
// Only rows that are named are locked: what decides is read before, into a variable. A DELETE
// would also lock what it reads, such as the row of the session, and wait for renewals.
const (
	// maxQuick is how many locks have a bit each. A number has one more bit, but in a variable
	// the server takes that for the sign, and then sets all the others.
	maxQuick = 63

	// Locks that have leases, dead or alive. This is a separate statement from the one that locks
	// the rows, so it sees what was committed while that waited for them.
	quickBusy = `SELECT BIT_OR(1 << FIELD(name, {names}) - 1) INTO $@busy FROM @leases WHERE name IN ({names})`
	// Each lease is requested for one lock. If the same ID was abandoned on another one of the
	// locks, that sends the request the long way, and nothing worse.
	quickAcquire = `INSERT INTO @leases (name, lease, session, mode, permits, cap, owner, note, reentrant, timed, ttl, ends, held, place, token,
			asked, since, waited, joined)
		SELECT k.name, {lease}, {session}, {mode}, {permits}, {cap}, {owner}, {note}, {reentrant}, {timed}, {ttl},
			CASE WHEN {timed} THEN $NOW + {ttl} END, TRUE, k.last - {first}, k.last - {first}, $NOW, $NOW, FALSE, FALSE
		FROM (SELECT name, last, FIELD(name, {names}) AS n FROM @locks WHERE name IN ({names})) k JOIN @meta m ON m.id = 1
		WHERE k.last - {first} > m.last_floor
			AND NOT ($READONLY)
			AND NOT $@busy >> k.n - 1 & 1
			AND NOT EXISTS (SELECT 1 FROM @tombs t FORCE INDEX (PRIMARY) WHERE t.name = k.name AND t.lease IN ({leases}) AND t.expires > $NOW)
			AND ({session} = '' OR EXISTS (SELECT 1 FROM @sessions s WHERE s.id = {session} AND s.cause = '' AND s.ends > $NOW))`
	quickGranted = `SELECT name, lease, token, since, $@busy FROM @leases WHERE name IN ({names})`

	// Locks whose only lease is the one to be released, and is held and has not expired.
	quickMay = `SELECT BIT_OR(IF(x.lease = {lease} AND x.held
				AND CASE WHEN x.timed THEN x.ends > $NOW ELSE s.cause = '' AND s.ends > $NOW END, 1 << x.n - 1, 0))
			& ~BIT_OR(IF(x.lease <> {lease}, 1 << x.n - 1, 0)) INTO $@may
		FROM (SELECT l.lease, l.session, l.held, l.timed, l.ends, FIELD(l.name, {names}) AS n FROM @leases l WHERE l.name IN ({names})) x
			LEFT JOIN @sessions s ON s.id = x.session`
	// From a list, which goes first: of a small table the server would read all, and lock it on
	// the way.
	quickRelease  = `DELETE l FROM ({which}) x STRAIGHT_JOIN @leases l ON l.name = x.name AND l.lease = x.lease WHERE $@may >> x.n & 1`
	quickReleased = `SELECT $@may, $READONLY`
)

// Quick is one round trip.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	q := new(batch)
	q.exec(begin)
	if len(x.Acquire) > 0 {
		s.quickAcquire(q, x)
	} else {
		s.quickRelease(q, x)
	}
	q.exec(commit)
	return s.alone(ctx, q)
}

// quickAcquire adds the statements that grant leases.
func (s store) quickAcquire(q *batch, x *sqllease.Quick) {
	names, leases := make([]any, len(x.Acquire)), make([]any, len(x.Acquire))
	asked := make(map[string]int, len(x.Acquire))
	for i := range x.Acquire {
		l := &x.Acquire[i]
		names[i], leases[i], asked[l.Name] = l.Name, string(l.Lease), i
	}
	column := func(of func(*sqllease.LeaseRow) any) part {
		all := make([]any, len(x.Acquire))
		for i := range x.Acquire {
			all[i] = of(&x.Acquire[i])
		}
		return chosen("k.n", all)
	}
	parts := map[string]part{
		"names": in(names), "leases": in(leases), "first": {"?", []any{sqllease.Reserve - 1}},
		"lease":     chosen("k.n", leases),
		"session":   column(func(l *sqllease.LeaseRow) any { return string(l.Session) }),
		"mode":      column(func(l *sqllease.LeaseRow) any { return int64(l.Claim.Mode) }),
		"permits":   column(func(l *sqllease.LeaseRow) any { return int64(l.Claim.Permits) }),
		"cap":       column(func(l *sqllease.LeaseRow) any { return int64(l.Claim.Limit) }),
		"owner":     column(func(l *sqllease.LeaseRow) any { return l.Claim.Owner }),
		"note":      column(func(l *sqllease.LeaseRow) any { return l.Note }),
		"reentrant": column(func(l *sqllease.LeaseRow) any { return number(l.Claim.Reentrant) }),
		"timed":     column(func(l *sqllease.LeaseRow) any { return number(l.Timed) }),
		"ttl":       column(func(l *sqllease.LeaseRow) any { return l.TTL.Microseconds() }),
	}
	s.lock(q, x.Names)
	q.fill(s.b.sql(quickBusy), parts)
	q.fill(s.b.sql(quickAcquire), parts)
	q.fill(s.b.sql(quickGranted), parts)
	q.scans = append(q.scans, func(rows *sql.Rows) error {
		var g sqllease.QuickGrant
		var id string
		var since int64
		var busy uint64
		err := rows.Scan(&g.Name, &id, &g.Token, &since, &busy)
		g.Since = time.UnixMicro(since)
		// A lease that was held before may have the requested ID.
		if i := asked[g.Name]; leases[i] == id && busy>>i&1 == 0 {
			x.Granted = append(x.Granted, g)
		}
		return err //nolint:wrapcheck // see Unavailable
	})
}

// quickRelease adds the statements that release leases.
func (s store) quickRelease(q *batch, x *sqllease.Quick) {
	names, leases := make([]any, len(x.Release)), make([]any, len(x.Release))
	for i, k := range x.Release {
		names[i], leases[i] = k.Name, string(k.ID)
	}
	which := part{text: strings.TrimSuffix(strings.Repeat("SELECT ? AS name, ? AS lease, ? AS n UNION ALL ", len(names)), " UNION ALL ")}
	for i := range names {
		which.args = append(which.args, names[i], leases[i], i)
	}
	parts := map[string]part{"names": in(names), "lease": chosen("x.n", leases), "which": which}
	s.hold(q, x.Names)
	for _, statement := range []string{quickMay, quickRelease, quickReleased} {
		q.fill(s.b.sql(statement), parts)
	}
	q.scans = append(q.scans, func(rows *sql.Rows) error {
		var may uint64
		var readOnly bool
		if err := rows.Scan(&may, &readOnly); err != nil || readOnly {
			return primary(readOnly, err)
		}
		for i, k := range x.Release {
			if may>>i&1 == 1 {
				x.Released = append(x.Released, k.Name)
			}
		}
		return nil
	})
}

// in returns a list of values.
func in(all []any) part { return part{list("?", len(all)), all} }

// chosen returns an expression for the value at the place that the column has, from 1. The value
// is written once where all are the same. Numbers are written as numbers.
func chosen(column string, all []any) part {
	same := true
	for _, x := range all {
		same = same && x == all[0]
	}
	if same {
		return part{"?", all[:1]}
	}
	text := "ELT(" + column + ", " + list("?", len(all)) + ")"
	if _, isText := all[0].(string); !isText {
		text = "CAST(" + text + " AS SIGNED)"
	}
	return part{text, all}
}

// number returns the number for a condition.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
