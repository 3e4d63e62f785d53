package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// The rows of the locks are locked first, or created where they do not exist. Everything after
// that is read in separate statements, which see what was committed while the first one waited
// for the lock.
const (
	// Numbers are taken here, more than are needed, so that the row need not be written again.
	// Unused numbers are skipped. They are above the clock: an old copy of the table, which is
	// restored, does not have the last number. The rows are locked in the order of the list. A new row
	// begins at the floor as it was known, if that is above the clock. Where that is not high enough,
	// the transaction writes the number that it has issued, or the floor.
	//
	// A thin lock is inflated: fat is 1 then, and its lease is read from the row. What the row has
	// of it means nothing once this is committed.
	setNow    = `SET $@now = $NOW`
	lockLocks = `INSERT INTO @locks (name, last, used, fat) VALUES ? ON DUPLICATE KEY UPDATE last = GREATEST(last, $@now) + ?, used = $@now, fat = LEAST(fat + 1, 2)`
	lockedRow = `(?, GREATEST(?, $@now) + ?, $@now, 1)`

	// The clock, and the locks' numbers. A server may become a replica while we are connected,
	// and a user who may write there does not notice: see primary.
	readMeta     = `SELECT $NOW, m.last_floor, NULL, 0, FALSE, $READONLY FROM @meta m WHERE m.id = 1`
	readLocks    = `SELECT $NOW, m.last_floor, k.name, k.last, k.buried > $NOW, $READONLY FROM @meta m JOIN @locks k ON k.name IN (?) WHERE m.id = 1`
	readSessions = `SELECT id, ttl, ends, cause FROM @sessions WHERE id IN (?)`
	readLeases   = `SELECT l.name, l.lease, l.held, l.place, l.mode, l.permits, l.cap, l.owner, l.note, l.timed, l.ttl,
			l.token, l.asked, l.since, l.ends, l.waited, l.session, s.ttl, s.ends, s.cause, FALSE
		FROM @leases l LEFT JOIN @sessions s ON s.id = l.session WHERE l.name IN (?) AND (?)`
	// Thin leases as rows of the table of leases. fat is 0, or 1 after lockLocks.
	thinLeases = ` UNION ALL SELECT k.name, k.lease, TRUE, k.token, k.mode, k.permits, k.cap, k.owner, k.note, k.timed, k.ttl,
			k.token, k.since, k.since, k.ends, FALSE, k.session, s.ttl, s.ends, s.cause, TRUE
		FROM @locks k LEFT JOIN @sessions s ON s.id = k.session WHERE k.name IN (?) AND k.lease <> '' AND k.fat = ?`
	// What readLeases leaves out of long queues.
	countRest = `SELECT l.name, COUNT(*), MAX(IF(l.mode = ?, l.cap, -1)) FROM @leases l WHERE l.name IN (?) AND NOT (?) GROUP BY l.name`
	// Combinations of the name of one and the lease of another may be among them, too.
	readTombs = `SELECT name, lease FROM @tombs WHERE expires > $NOW AND name IN (?) AND lease IN (?)`

	// What seems to have expired is locked and read again: it may have been renewed. Each row is
	// named by its key, so that no other row is locked on the way.
	lockSession = `SELECT id, ttl, ends, cause FROM @sessions WHERE id = ? FOR UPDATE`
	lockLease   = `SELECT name, lease, ends FROM @leases WHERE name = ? AND lease = ? FOR UPDATE`
)

// txn is a transaction in progress.
type txn struct {
	s    store
	conn *sql.Conn
	done bool // it was committed
}

// Begin locks and reads everything in one round trip.
func (s store) Begin(ctx context.Context, scope *sqllease.Scope) (sqllease.Tx, *sqllease.View, error) {
	conn, err := s.b.db.Conn(ctx)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // see Unavailable
	}
	t, v, q := &txn{s: s, conn: conn}, &sqllease.View{Taken: make(map[string]int64, len(scope.Names))}, new(batch)
	q.exec(begin)
	s.lock(q, scope.Names)
	s.read(q, scope, v, 1)
	if err := q.run(ctx, conn); err != nil {
		t.End(ctx)
		return nil, nil, err
	}
	return t, v, nil
}

// lock locks the rows of locks, creates those that do not exist, and takes numbers.
func (s store) lock(q *batch, names []string) {
	if len(names) == 0 {
		return
	}
	args := make([]any, 0, 3*len(names)) //nolint:mnd // see lockedRow
	for _, name := range names {
		args = append(args, name, s.b.floor.Load(), sqllease.Reserve)
	}
	q.exec(s.b.sql(setNow))
	q.exec(s.b.sql(lockLocks), list(s.b.sql(lockedRow), len(names), args), sqllease.Reserve)
}

// Read reads in one round trip.
func (s store) Read(ctx context.Context, scope *sqllease.Scope) (*sqllease.View, error) {
	v, q := &sqllease.View{Early: true}, new(batch) // see Sync
	s.read(q, scope, v, 0)
	return v, q.run(ctx, s.b.db)
}

// read reads everything in the scope, the sessions after the leases. fat is what thin locks have in that column.
func (s store) read(q *batch, scope *sqllease.Scope, v *sqllease.View, fat int) {
	numbers, args := readMeta, []any(nil)
	if v.Taken != nil && len(scope.Names) > 0 {
		numbers, args = readLocks, []any{in(scope.Names)}
	}
	q.query(func(rows *sql.Rows) error {
		var us, last int64
		var name sql.NullString
		var tombs, readOnly bool
		err := rows.Scan(&us, &v.Floor, &name, &last, &tombs, &readOnly)
		v.Now = time.UnixMicro(us)
		s.b.floor.Store(v.Floor)
		if name.Valid {
			v.Taken[name.String] = last
		}
		if tombs {
			v.Tombs = append(v.Tombs, name.String)
		}
		return primary(readOnly, err)
	}, s.b.sql(numbers), args...)
	if len(scope.Names) > 0 {
		s.readLeases(q, scope, v, fat)
	}
	if len(scope.Sessions) > 0 {
		q.query(func(rows *sql.Rows) error { return scanSession(rows, v) }, s.b.sql(readSessions), in(scope.Sessions))
	}
	if len(scope.Leases) > 0 {
		var names, leases []string
		for _, k := range scope.Leases {
			names, leases = append(names, k.Name), append(leases, string(k.ID))
		}
		q.query(func(rows *sql.Rows) error {
			var k sqllease.Key
			err := rows.Scan(&k.Name, &k.ID)
			v.Buried = append(v.Buried, k)
			return err //nolint:wrapcheck // see Unavailable
		}, s.b.sql(readTombs), in(names), in(leases))
	}
}

// readLeases reads leases, and what is behind the front of long queues.
func (s store) readLeases(q *batch, scope *sqllease.Scope, v *sqllease.View, fat int) {
	names, read := in(scope.Names), part{text: "TRUE"}
	if len(scope.Front) > 0 {
		read = front(scope)
	}
	q.query(func(rows *sql.Rows) error { return scanLease(rows, v) }, s.b.sql(readLeases+thinLeases), names, read, names, fat)
	if len(scope.Front) == 0 {
		return
	}
	q.query(func(rows *sql.Rows) error {
		var r sqllease.RestRow
		err := rows.Scan(&r.Name, &r.Count, &r.Limit)
		v.Rest = append(v.Rest, r)
		return err //nolint:wrapcheck // see Unavailable
	}, s.b.sql(countRest), int64(backend.Shared), names, read)
}

// front returns a condition for what is read of long queues. The leases requested on one lock are read on the others, too:
// one list is searched, and conditions for each lease would all be evaluated for each row.
func front(scope *sqllease.Scope) part {
	which := []any{part{text: "l.held"}}
	var leases []backend.LeaseID
	for _, k := range slices.Concat(scope.Leases, scope.Back) {
		leases = append(leases, k.ID)
	}
	if len(leases) > 0 {
		which = append(which, part{"l.lease IN (?)", []any{in(leases)}})
	}
	for _, name := range scope.Names {
		which = append(which, part{"l.name = ? AND l.place <= ?", []any{name, scope.Front[name]}})
	}
	return anyOf(which)
}

func scanSession(rows *sql.Rows, v *sqllease.View) error {
	var x sqllease.SessionRow
	var ttl, ends int64
	err := rows.Scan(&x.ID, &ttl, &ends, &x.Cause)
	x.TTL, x.Ends = micros(ttl), time.UnixMicro(ends)
	v.Sessions = append(v.Sessions, x)
	return err //nolint:wrapcheck // see Unavailable
}

func scanLease(rows *sql.Rows, v *sqllease.View) error {
	var l sqllease.LeaseRow
	var ttl, asked, since int64
	var ends, sessionTTL, sessionEnds sql.NullInt64
	var cause sql.NullString
	err := rows.Scan(&l.Name, &l.Lease, &l.Held, &l.Place, &l.Claim.Mode, &l.Claim.Permits, &l.Claim.Limit, &l.Owner, &l.Note,
		&l.Timed, &ttl, &l.Token, &asked, &since, &ends, &l.Waited,
		&l.Session, &sessionTTL, &sessionEnds, &cause, &l.Thin)
	l.TTL, l.Asked, l.Since, l.Ends = micros(ttl), time.UnixMicro(asked), time.UnixMicro(since), endOf(ends)
	v.Leases = append(v.Leases, l)
	if sessionTTL.Valid {
		v.Sessions = append(v.Sessions, sqllease.SessionRow{ID: l.Session, TTL: micros(sessionTTL.Int64), Ends: endOf(sessionEnds), Cause: cause.String})
	}
	return err //nolint:wrapcheck // see Unavailable
}

// Again locks and reads in one round trip.
func (t *txn) Again(ctx context.Context, sessions []backend.SessionID, leases []sqllease.Key) (*sqllease.View, error) {
	v, q := new(sqllease.View), new(batch)
	for _, id := range sessions {
		q.query(func(rows *sql.Rows) error { return scanSession(rows, v) }, t.s.b.sql(lockSession), string(id))
	}
	for _, k := range leases {
		q.query(func(rows *sql.Rows) error {
			var l sqllease.LeaseRow
			var ends sql.NullInt64
			err := rows.Scan(&l.Name, &l.Lease, &ends)
			l.Ends = endOf(ends)
			v.Leases = append(v.Leases, l)
			return err //nolint:wrapcheck // see Unavailable
		}, t.s.b.sql(lockLease), k.Name, string(k.ID))
	}
	return v, q.run(ctx, t.conn)
}

// Commit sends the changes with the commit, in one round trip: when a statement fails, the commit
// is not executed.
func (t *txn) Commit(ctx context.Context, c *sqllease.Changes) (bool, error) {
	q := new(batch)
	t.s.save(q, c)
	q.exec(commit)
	err := q.run(ctx, t.conn)
	t.done = err == nil
	return answered(err) || unsent(err), err
}

// End rolls back what is not committed, and returns the connection to the pool.
func (t *txn) End(ctx context.Context) { giveBack(ctx, t.conn, t.done) }

// giveBack returns a connection to the pool. One with a transaction that cannot be rolled back is
// discarded.
func giveBack(ctx context.Context, conn *sql.Conn, clean bool) {
	if !clean {
		if _, err := conn.ExecContext(ctx, `ROLLBACK`); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
	_ = conn.Close()
}
