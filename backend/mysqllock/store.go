package mysqllock

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// store implements sqllease.Store.
type store struct{ b *Backend }

var _ sqllease.Store = store{}

// Migrate makes sure that the tables exist.
func (s store) Migrate(ctx context.Context) error { return s.b.Migrate(ctx) }

// Unavailable returns the error for the caller.
func (s store) Unavailable(op string, mayHold bool, err error) error {
	return unavailable(op, mayHold, s.b.rights().lacking(s.b.leases.Life(), err))
}

// Fault classifies an error.
func (s store) Fault(err error) sqllease.Fault {
	return sqllease.Fault{
		Answered: answered(err), Unsent: unsent(err), Ended: code(err) != 0 && (broken(err) || executed(err)), Transient: transient(err), Locked: code(err) == codeLockTimeout, Broken: broken(err) || demoted(err),
	}
}

// Reset discards the idle connections.
func (s store) Reset() {
	s.b.db.SetMaxIdleConns(0)
	s.b.db.SetMaxIdleConns(s.b.conns)
}

const (
	begin  = `START TRANSACTION READ WRITE`
	commit = `COMMIT`
	// A later assignment sees the result of an earlier one: ends comes last.
	openSession = `INSERT INTO @sessions (id, ttl, ends, cause) VALUES (?, ?, $NOW + ?, '') ON DUPLICATE KEY UPDATE
		ttl = IF(cause = '' AND ends > $NOW, VALUES(ttl), ttl), ends = IF(cause = '' AND ends > $NOW, VALUES(ends), ends)`
	renewSession = `UPDATE @sessions SET ends = $NOW + ttl WHERE id = ? AND cause = '' AND ends > $NOW`
	sessionLives = `SELECT $READONLY FROM @sessions WHERE id = ? AND cause = '' AND ends > $NOW`
	readLosses   = `SELECT session, lease, cause, reason FROM @losses WHERE session = ? AND expires > $NOW`
	// renewSet is right in every order in which a server assigns: a TTL of 0 is the one that the row has.
	renewSet     = ` SET ttl = COALESCE(NULLIF(?, 0), ttl), ends = $NOW + COALESCE(NULLIF(?, 0), ttl) WHERE`
	renewLease   = `UPDATE @leases` + renewSet + ` name = ? AND lease = ? AND held AND timed AND ends > $NOW`
	renewThin    = `UPDATE @locks` + renewSet + ` name = ? AND lease = ? AND fat = 0 AND timed AND ends > $NOW`
	renewedLease = `SELECT token, ends - $NOW, $READONLY FROM @leases WHERE name = ? AND lease = ? AND held AND timed AND ends > $NOW
		UNION ALL SELECT token, ends - $NOW, $READONLY FROM @locks WHERE name = ? AND lease = ? AND fat = 0 AND timed AND ends > $NOW`
	locksOfSession = `SELECT DISTINCT name FROM @leases WHERE session = ? AND NOT (held AND timed) LIMIT 2000`
	listNames      = `(SELECT DISTINCT l.name FROM @leases l` + listed + `CASE WHEN l.held AND l.timed` + lives + `)
		UNION (SELECT l.name FROM @locks l` + listed + `l.lease <> '' AND l.fat = 0 AND CASE WHEN l.timed` + lives + `) ORDER BY name LIMIT ?`
	listed = ` LEFT JOIN @sessions s ON s.id = l.session WHERE l.name > ? AND l.name >= ? AND l.name < ? AND LEFT(l.name, ?) = ? AND `
	lives  = ` THEN l.ends > $NOW ELSE s.cause = '' AND s.ends > $NOW END ORDER BY l.name LIMIT ?`
)

// OpenSession is one round trip. It reads whether the session lives after writing it: the count
// of rows tells nothing about a row that stays the same.
func (s store) OpenSession(ctx context.Context, id backend.SessionID, ttl time.Duration, _ string) (bool, error) {
	alive, us := false, ttl.Microseconds()
	q := new(batch)
	q.exec(begin)
	q.exec(s.b.sql(openSession), string(id), us, us)
	q.query(func(rows *sql.Rows) error { alive = true; return scanLives(rows) }, s.b.sql(sessionLives), string(id))
	q.exec(commit)
	return alive, s.alone(ctx, q)
}

// scanLives reads the state of a session that lives.
func scanLives(rows *sql.Rows) error {
	var readOnly bool
	err := rows.Scan(&readOnly)
	return primary(readOnly, err)
}

// Renew is one round trip. It locks rows in the order of every transaction: locks, sessions, leases. A
// lease that is inflated in the middle of it is found in the table of leases.
func (s store) Renew(ctx context.Context, r *sqllease.Renewals) error {
	q := new(batch)
	q.exec(begin)
	renew := func(statement string) {
		for i, k := range r.Leases {
			us := r.TTLs[i].Microseconds()
			q.exec(s.b.sql(statement), us, us, k.Name, string(k.ID))
		}
	}
	renew(renewThin)
	if r.Session != "" {
		r.SessionLost = true
		q.exec(s.b.sql(renewSession), string(r.Session))
		q.query(func(rows *sql.Rows) error { r.SessionLost = false; return scanLives(rows) }, s.b.sql(sessionLives), string(r.Session))
		q.query(func(rows *sql.Rows) error { return scanLoss(rows, &r.Lost) }, s.b.sql(readLosses), string(r.Session))
	}
	renew(renewLease)
	for _, k := range r.Leases {
		q.query(func(rows *sql.Rows) error {
			var token, left int64
			var readOnly bool
			err := rows.Scan(&token, &left, &readOnly)
			r.Renewed[k] = sqllease.Renewed{Token: token, Left: micros(left)}
			return primary(readOnly, err)
		}, s.b.sql(renewedLease), k.Name, string(k.ID), k.Name, string(k.ID))
	}
	q.exec(commit)
	return s.alone(ctx, q)
}

// alone runs a batch that is a transaction of its own. What fails in the middle of it is rolled
// back, before the connection is used for anything else.
func (s store) alone(ctx context.Context, q *batch) error {
	return s.within(ctx, func(conn *sql.Conn) error { return q.run(ctx, conn) })
}

// count runs a statement that is a transaction of its own, and returns how many rows it has changed.
func (s store) count(ctx context.Context, q *batch) (int64, error) {
	var n int64
	err := s.within(ctx, func(conn *sql.Conn) error {
		res, err := conn.ExecContext(ctx, q.text.String(), q.args...)
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err //nolint:wrapcheck // see Unavailable
	})
	return n, err
}

// within is alone for a batch that do sends.
func (s store) within(ctx context.Context, do func(*sql.Conn) error) error {
	conn, err := s.b.db.Conn(ctx)
	if err != nil {
		return err //nolint:wrapcheck // see Unavailable
	}
	err = do(conn)
	giveBack(ctx, conn, err == nil)
	return err
}

// LocksOf is one statement.
func (s store) LocksOf(ctx context.Context, id backend.SessionID) ([]string, error) {
	return s.strings(ctx, s.b.sql(locksOfSession), string(id))
}

// Names is one statement.
func (s store) Names(ctx context.Context, req backend.ListRequest) ([]string, error) {
	args := []any{req.After, req.Prefix, sqllease.Behind(req.Prefix), len(req.Prefix), req.Prefix, req.Limit}
	return s.strings(ctx, s.b.sql(listNames), slices.Concat(args, args, []any{req.Limit})...)
}

// strings runs a query for one column of text.
func (s store) strings(ctx context.Context, query string, args ...any) ([]string, error) {
	var all []string
	q := new(batch)
	q.query(func(rows *sql.Rows) error { return scanName(rows, &all) }, query, args...)
	return all, q.run(ctx, s.b.db)
}

func scanName(rows *sql.Rows, all *[]string) error {
	var x string
	err := rows.Scan(&x)
	*all = append(*all, x)
	return err //nolint:wrapcheck // see Unavailable
}

// syncRow writes a row of the value to have a commit of its own: the tombstone of a lease of no
// lock. A row that stays the same would not be written.
const syncRow = `INSERT INTO @tombs (name, lease, expires) VALUES ('', ?, $NOW + ?)
	ON DUPLICATE KEY UPDATE expires = GREATEST(expires + 1, VALUES(expires))`

// Sync is one round trip, and a wait for the disk. InnoDB shows a commit to other clients before
// its log is written.
func (s store) Sync(ctx context.Context) error {
	q := new(batch)
	q.exec(begin)
	q.exec(s.b.sql(syncRow), s.b.syncs, sqllease.Remembered.Microseconds())
	q.exec(commit)
	return s.alone(ctx, q)
}

func scanLoss(rows *sql.Rows, all *[]backend.Loss) error {
	var x backend.Loss
	err := rows.Scan(&x.Session, &x.Lease, &x.Cause, &x.Reason)
	*all = append(*all, x)
	return err //nolint:wrapcheck // see Unavailable
}

func endOf(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return time.UnixMicro(us.Int64)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
