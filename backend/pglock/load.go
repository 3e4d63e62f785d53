package pglock

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// The rows of the locks are locked first, or created where they do not exist. Everything after
// that is read in separate statements, which see what was committed while the first one waited
// for the lock.
const (
	// The server's settings may forbid writes, and are respected: see demoted.
	beginTxn = `BEGIN ISOLATION LEVEL READ COMMITTED`
	// Numbers are taken here, more than are needed, so that the row need not be written again.
	// Unused numbers are skipped. They are above the clock: an old copy of the table, which is
	// restored, does not have the last number.
	//
	// A thin lock is inflated: fat is 1 then, and its lease is read from the row. What the row has
	// of it means nothing once this is committed.
	lockLocks = `INSERT INTO @locks AS l (name, last, used, fat) SELECT n, greatest(floor, ` + clock + `) + $2::bigint, clock_timestamp(), 1 FROM @meta, unnest($1::text[]) AS n ORDER BY n COLLATE "C"
		ON CONFLICT (name) DO UPDATE SET last = greatest(l.last, ` + clock + `) + $2::bigint, used = clock_timestamp(), fat = least(l.fat + 1, 2) RETURNING l.name, l.last`

	// The clock, and the sessions of the scope.
	readMeta = `SELECT clock_timestamp(), floor, watched > clock_timestamp(), ` + isEarly + `, s.id, s.ttl, s.ends, s.cause, s.addr
		FROM @meta LEFT JOIN @sessions s ON s.id = ANY($1::text[])`
	leaseColumns = `SELECT l.name, l.lease, l.addr, l.held, l.place, l.mode, l.permits, l.cap, l.owner, l.note, l.timed, l.ttl,
			l.token, l.asked, l.since, l.ends, l.waited, l.session, s.ttl, s.ends, s.cause, s.addr, false
		FROM @leases l LEFT JOIN @sessions s ON s.id = l.session `
	// Thin leases as rows of the table of leases.
	thinLease = `k.name, k.lease, ''::text, true, k.token, k.mode, k.permits, k.cap, k.owner, k.note, k.timed, k.ttl,
			k.token, k.since, k.since, k.ends, false, k.session`
	thinLeases = ` UNION ALL SELECT ` + thinLease + `, s.ttl, s.ends, s.cause, s.addr, true
		FROM @locks k LEFT JOIN @sessions s ON s.id = k.session WHERE k.name = ANY($1::text[]) AND k.lease <> '' AND k.fat = `
	thinNow, thinBefore = thinLeases + `0`, thinLeases + `1` // before lockLocks in the same transaction

	readLeases = leaseColumns + `WHERE l.name = ANY($1::text[])`
	// The front of long queues, and some more waiters, and the number of the rest.
	fronts    = `JOIN unnest($1::text[], $2::bigint[]) AS x (name, front) ON x.name = l.name `
	isRead    = `(l.held OR l.place <= x.front OR l.lease = ANY($3::text[]))`
	readFront = leaseColumns + fronts + `WHERE ` + isRead
	countRest = `SELECT l.name, count(*), max(CASE l.mode WHEN $4::smallint THEN l.cap ELSE -1 END)
		FROM @leases l ` + fronts + `WHERE NOT ` + isRead + ` GROUP BY l.name`
	readTombs = `SELECT name, lease FROM unnest($1::text[], $2::text[]) AS x (name, lease) JOIN @tombs USING (name, lease) WHERE until > clock_timestamp()`

	// What seems to have expired is locked and read again: it may have been renewed.
	lockSessions = `SELECT id, ttl, ends, cause, addr FROM @sessions WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE`
	lockLeases   = `SELECT l.name, l.lease, l.ends FROM @leases l JOIN unnest($1::text[], $2::text[]) AS x (name, lease) USING (name, lease)
		ORDER BY l.name, l.lease FOR UPDATE OF l`
)

// txn is a transaction in progress.
type txn struct {
	s    store
	conn *pgxpool.Conn
}

// Begin locks and reads everything in one round trip.
func (s store) Begin(ctx context.Context, scope *sqllease.Scope) (sqllease.Tx, *sqllease.View, error) {
	conn, err := s.b.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // see Unavailable
	}
	t, v := &txn{s, conn}, new(sqllease.View)
	q := new(pgx.Batch)
	s.queueLock(q, scope.Names, v)
	s.queueRead(q, scope, v, thinBefore)
	if err := conn.SendBatch(ctx, q).Close(); err != nil {
		t.End(ctx)
		return nil, nil, err //nolint:wrapcheck // see Unavailable
	}
	return t, v, nil
}

// Read reads in one round trip.
func (s store) Read(ctx context.Context, scope *sqllease.Scope) (*sqllease.View, error) {
	v := new(sqllease.View)
	err := s.batch(ctx, func(q *pgx.Batch) { s.queueRead(q, scope, v, thinNow) })
	return v, err
}

// queueBegin begins a transaction.
func (s store) queueBegin(q *pgx.Batch) {
	q.Queue(beginTxn)
	if s.b.deaf { // otherwise the connection has them
		q.Queue(settingsOfLeases, idleLimit, lockLimit, true)
	}
}

// queueLock locks the rows of the locks, and creates those that do not exist.
func (s store) queueLock(q *pgx.Batch, names []string, v *sqllease.View) {
	s.queueBegin(q)
	if len(names) == 0 {
		return
	}
	v.Taken = make(map[string]int64, len(names))
	query(q, func(rows pgx.Rows) error {
		var name string
		var last int64
		err := rows.Scan(&name, &last)
		v.Taken[name] = last
		return err //nolint:wrapcheck // see Unavailable
	}, s.b.sql(lockLocks), names, int64(sqllease.Reserve))
}

// queueRead reads everything in the scope, the sessions after the leases. Rows are taken as they arrive. thin selects the leases of
// thin locks.
func (s store) queueRead(q *pgx.Batch, scope *sqllease.Scope, v *sqllease.View, thin string) {
	if len(scope.Front) == 0 {
		query(q, func(rows pgx.Rows) error { return scanLease(rows, v) }, s.b.sql(readLeases+thin), scope.Names)
	} else {
		s.queueFront(q, scope, v, thin)
	}
	if len(scope.Leases) > 0 {
		names, leases := columns(scope.Leases)
		query(q, func(rows pgx.Rows) error {
			var k sqllease.Key
			err := rows.Scan(&k.Name, &k.ID)
			v.Buried = append(v.Buried, k)
			return err //nolint:wrapcheck // see Unavailable
		}, s.b.sql(readTombs), names, leases)
	}
	query(q, func(rows pgx.Rows) error { return scanMeta(rows, v) }, s.b.sql(readMeta), texts(scope.Sessions))
	if len(scope.Listeners) > 0 {
		query(q, func(rows pgx.Rows) error { return scanLoss(rows, &v.Losses) }, s.b.sql(readLosses), texts(scope.Listeners))
	}
}

// queueFront reads the front of long queues, and what is behind it.
func (s store) queueFront(q *pgx.Batch, scope *sqllease.Scope, v *sqllease.View, thin string) {
	var places []int64
	for _, name := range scope.Names {
		places = append(places, scope.Front[name])
	}
	leases := []string{} // the leases requested on the other locks are read here, too
	for _, k := range slices.Concat(scope.Leases, scope.Back) {
		leases = append(leases, string(k.ID))
	}
	query(q, func(rows pgx.Rows) error { return scanLease(rows, v) }, s.b.sql(readFront+thin), scope.Names, places, leases)
	query(q, func(rows pgx.Rows) error {
		var r sqllease.RestRow
		err := rows.Scan(&r.Name, &r.Count, &r.Limit)
		v.Rest = append(v.Rest, r)
		return err //nolint:wrapcheck // see Unavailable
	}, s.b.sql(countRest), scope.Names, places, leases, int16(backend.Shared))
}

// scanMeta reads the clock, and the sessions beside it.
func scanMeta(rows pgx.Rows, v *sqllease.View) error {
	var id, cause, addr *string
	var ttl *int64
	var ends *time.Time
	if err := rows.Scan(&v.Now, &v.Floor, &v.Watched, &v.Early, &id, &ttl, &ends, &cause, &addr); err != nil {
		return err //nolint:wrapcheck // see Unavailable
	}
	if id != nil {
		v.Sessions = append(v.Sessions, sqllease.SessionRow{ID: backend.SessionID(*id), TTL: micros(*ttl), Ends: *ends, Cause: *cause, Addr: *addr})
	}
	return nil
}

func scanLease(rows pgx.Rows, v *sqllease.View) error {
	var l sqllease.LeaseRow
	var cause, addr *string
	var ttl int64
	var sessionTTL *int64
	var ends, sessionEnds *time.Time
	err := rows.Scan(&l.Name, &l.Lease, &l.Addr, &l.Held, &l.Place, &l.Claim.Mode, &l.Claim.Permits, &l.Claim.Limit, &l.Owner, &l.Note,
		&l.Timed, &ttl, &l.Token, &l.Asked, &l.Since, &ends, &l.Waited,
		&l.Session, &sessionTTL, &sessionEnds, &cause, &addr, &l.Thin)
	if err != nil {
		return err //nolint:wrapcheck // see Unavailable
	}
	l.TTL = micros(ttl)
	if ends != nil {
		l.Ends = *ends
	}
	v.Leases = append(v.Leases, l)
	if sessionTTL != nil {
		v.Sessions = append(v.Sessions, sqllease.SessionRow{ID: l.Session, TTL: micros(*sessionTTL), Ends: *sessionEnds, Cause: *cause, Addr: *addr})
	}
	return nil
}

func scanLoss(rows pgx.Rows, losses *[]backend.Loss) error {
	var x backend.Loss
	err := rows.Scan(&x.Session, &x.Lease, &x.Cause, &x.Reason)
	*losses = append(*losses, x)
	return err //nolint:wrapcheck // see Unavailable
}

// Again locks and reads in one round trip.
func (t *txn) Again(ctx context.Context, sessions []backend.SessionID, keys []sqllease.Key) (*sqllease.View, error) {
	v, q := new(sqllease.View), new(pgx.Batch)
	if len(sessions) > 0 {
		query(q, func(rows pgx.Rows) error {
			var x sqllease.SessionRow
			var ttl int64
			err := rows.Scan(&x.ID, &ttl, &x.Ends, &x.Cause, &x.Addr)
			x.TTL = micros(ttl)
			v.Sessions = append(v.Sessions, x)
			return err //nolint:wrapcheck // see Unavailable
		}, t.s.b.sql(lockSessions), texts(sessions))
	}
	if len(keys) > 0 {
		names, leases := columns(keys)
		query(q, func(rows pgx.Rows) error {
			var l sqllease.LeaseRow
			err := rows.Scan(&l.Name, &l.Lease, &l.Ends)
			v.Leases = append(v.Leases, l)
			return err //nolint:wrapcheck // see Unavailable
		}, t.s.b.sql(lockLeases), names, leases)
	}
	return v, t.conn.SendBatch(ctx, q).Close() //nolint:wrapcheck // see Unavailable
}

// Commit sends the changes with the commit, in one round trip.
func (t *txn) Commit(ctx context.Context, c *sqllease.Changes) (bool, error) {
	q := new(pgx.Batch)
	t.s.queueSave(q, c)
	err := t.commit(ctx, q)
	t.s.b.notifier.refused(err)
	return refused(err), err
}

// commit sends the batch with the commit.
func (t *txn) commit(ctx context.Context, q *pgx.Batch) error {
	q.Queue(`COMMIT`)
	err := send(ctx, t.conn, q)
	if err == nil && t.conn.Conn().PgConn().TxStatus() != 'I' {
		err = errNotCommitted
	}
	return err
}

// End rolls back. The pool discards a connection on which that fails.
func (t *txn) End(ctx context.Context) {
	if pg := t.conn.Conn().PgConn(); !pg.IsClosed() && pg.TxStatus() != 'I' {
		_, _ = t.conn.Exec(ctx, `ROLLBACK`)
	}
	t.conn.Release()
}

// columns splits keys into names and leases.
func columns(keys []sqllease.Key) ([]string, []string) {
	var names, leases []string
	for _, k := range keys {
		names, leases = append(names, k.Name), append(leases, string(k.ID))
	}
	return names, leases
}

// texts returns the IDs in a form that the client library can send in every mode.
func texts[ID ~string](ids []ID) []string {
	all := make([]string, 0, len(ids))
	for _, id := range ids {
		all = append(all, string(id))
	}
	return all
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
