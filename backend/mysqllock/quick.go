package mysqllock

import (
	"context"
	"database/sql"
	"slices"
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
	newLocks = `INSERT INTO @locks (name, last, used) VALUES %s ON DUPLICATE KEY UPDATE used = used`
	newRow   = `(?, 0, $NOW)`

	// A later assignment sees the result of an earlier one.
	takeRows = `UPDATE @locks k SET mark = {mark}, since = $CLOCK, used = since, last = GREATEST(since, `
	takeNext = `) + 1, token = last, lease = {lease}, session = {session}, mode = {mode}, permits = {permits}, cap = {cap},
			owner = {owner}, note = {note}, timed = {timed}, ttl = {ttl}, ends = CASE WHEN timed THEN since + ttl END
		WHERE name IN ({names}) AND lease = '' AND fat = 0 AND NOT ($READONLY)
			AND ({its session} = '' OR EXISTS (SELECT 1 FROM @sessions s WHERE s.id = {its session} AND s.cause = '' AND s.ends > $CLOCK)) AND `
	takeKnown = takeRows + `last` + takeNext + `last > 0 AND buried <= $CLOCK`
	// Each lease is requested for one lock. If the same ID was abandoned on another one of the locks,
	// that sends the request the long way, and nothing worse.
	takeLocked = takeRows + `last, (SELECT last_floor FROM @meta WHERE id = 1)` + takeNext +
		`NOT EXISTS (SELECT 1 FROM @tombs t FORCE INDEX (PRIMARY) WHERE t.name = k.name AND t.lease IN ({leases}) AND t.expires > $CLOCK)`
	quickGranted = `SELECT name, token, since, buried > $NOW FROM @locks WHERE name IN ({names}) AND lease IN ({leases}) AND mark BETWEEN {marks}`

	noThin       = `lease = '', session = '', owner = '', note = '', ends = NULL`
	quickRelease = `UPDATE @locks k SET mark = {mark}, ` + noThin + ` WHERE name IN ({names}) AND lease = {its lease} AND fat = 0 AND NOT ($READONLY)
			AND CASE WHEN timed THEN ends > $CLOCK
				ELSE EXISTS (SELECT 1 FROM @sessions s WHERE s.id = k.session AND s.cause = '' AND s.ends > $CLOCK) END`
	quickReleased = `SELECT name FROM @locks WHERE name IN ({names}) AND mark BETWEEN {marks}`
)

// Quick is one round trip. A statement that decides alone is a transaction by itself.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	if len(x.Acquire) > 0 {
		return s.quickAcquire(ctx, x)
	}
	return s.quickRelease(ctx, x)
}

func (s store) quickAcquire(ctx context.Context, x *sqllease.Quick) error {
	column := func(of func(*sqllease.LeaseRow) any) []any {
		all := make([]any, len(x.Acquire))
		for i := range x.Acquire {
			all[i] = of(&x.Acquire[i])
		}
		return all
	}
	names, leases := column(func(l *sqllease.LeaseRow) any { return l.Name }), column(func(l *sqllease.LeaseRow) any { return string(l.Lease) })
	sessions := column(func(l *sqllease.LeaseRow) any { return string(l.Session) })
	parts, place, granted := s.marked(names)
	parts["lease"], parts["leases"] = chosen(granted, leases), in(leases)
	parts["session"], parts["its session"] = chosen(granted, sessions), chosen(place, sessions)
	for name, of := range map[string]func(*sqllease.LeaseRow) any{
		"mode":    func(l *sqllease.LeaseRow) any { return int64(l.Claim.Mode) },
		"permits": func(l *sqllease.LeaseRow) any { return int64(l.Claim.Permits) },
		"cap":     func(l *sqllease.LeaseRow) any { return int64(l.Claim.Limit) },
		"owner":   func(l *sqllease.LeaseRow) any { return l.Owner },
		"note":    func(l *sqllease.LeaseRow) any { return l.Note },
		"timed":   func(l *sqllease.LeaseRow) any { return number(l.Timed) },
		"ttl":     func(l *sqllease.LeaseRow) any { return l.TTL.Microseconds() },
	} {
		parts[name] = chosen(granted, column(of))
	}
	known := !slices.ContainsFunc(x.Acquire, func(l sqllease.LeaseRow) bool { return !x.Known[l.Name] })
	q, take := new(batch), takeKnown
	if !known {
		take = takeLocked
		q.exec(begin)
		q.exec(s.b.sql(newLocks, list(s.b.sql(newRow), len(names))), names...)
	}
	q.fill(s.b.sql(take), parts)
	q.fill(s.b.sql(quickGranted), parts)
	q.scans = append(q.scans, func(rows *sql.Rows) error {
		var g sqllease.QuickGrant
		var since int64
		err := rows.Scan(&g.Name, &g.Token, &since, &g.Tombs)
		g.Since = time.UnixMicro(since)
		x.Granted = append(x.Granted, g)
		return err //nolint:wrapcheck // see Unavailable
	})
	if !known {
		q.exec(commit)
		return s.alone(ctx, q)
	}
	return afterUpdate(s.alone(ctx, q))
}

func (s store) quickRelease(ctx context.Context, x *sqllease.Quick) error {
	names, leases := make([]any, len(x.Release)), make([]any, len(x.Release))
	for i, k := range x.Release {
		names[i], leases[i] = k.Name, string(k.ID)
	}
	parts, place, _ := s.marked(names)
	parts["its lease"] = chosen(place, leases)
	q := new(batch)
	if len(names) == 1 {
		q.fill(s.b.sql(quickRelease), parts)
		n, err := s.count(ctx, q)
		if n > 0 {
			x.Released = append(x.Released, x.Release[0].Name)
		}
		return err
	}
	q.exec(begin)
	q.fill(s.b.sql(quickRelease), parts)
	q.fill(s.b.sql(quickReleased), parts)
	q.scans = append(q.scans, func(rows *sql.Rows) error { return scanName(rows, &x.Released) })
	q.exec(commit)
	return s.alone(ctx, q)
}

// marked returns the parts for locks that are marked with the numbers of this call, in the order of their
// names. It also returns an expression for the place of a lock among them, from 1, and one for the same
// after its mark was assigned.
func (s store) marked(names []any) (map[string]part, part, part) {
	n := int64(len(names))
	before := s.b.marks.Add(n) - n
	var place, marked part
	parts := map[string]part{
		"names": in(names), "mark": {"?", []any{before + 1}}, "marks": {"? AND ?", []any{before + 1, before + n}},
	}
	if n > 1 {
		place = part{"FIELD(name, " + parts["names"].text + ")", names}
		marked = part{"mark - ?", []any{before}}
		parts["mark"] = part{"? + " + place.text, append([]any{before}, names...)}
	}
	return parts, place, marked
}

// in returns a list of values.
func in(all []any) part { return part{list("?", len(all)), all} }

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
	text := "ELT(" + place.text + ", " + list("?", len(all)) + ")"
	if _, isText := all[0].(string); !isText {
		text = "CAST(" + text + " AS SIGNED)"
	}
	return part{text, slices.Concat(place.args, all)}
}

// number returns the number for a condition.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
