package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// store implements sqllease.Store.
type store struct{ b *Backend }

var _ sqllease.Store = store{}

// batch sends statements, which are one transaction.
func (s store) batch(ctx context.Context, fill func(*pgx.Batch)) error {
	conn, err := s.b.pool.Acquire(ctx)
	if err != nil {
		return err //nolint:wrapcheck // see Unavailable
	}
	t, q := &txn{s, conn}, new(pgx.Batch)
	defer t.End(ctx)
	if !s.b.deaf {
		fill(q)
		return send(ctx, conn, q)
	}
	s.queueBegin(q) // without it, there are the isolation and the settings of others
	fill(q)
	return t.commit(ctx, q)
}

// query adds a statement with rows. scan is called for each of them.
func query(q *pgx.Batch, scan func(pgx.Rows) error, statement string, args ...any) {
	q.Queue(statement, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// Migrate makes sure that the tables exist. From then on the value is in use, and listens.
func (s store) Migrate(ctx context.Context) error {
	err := s.b.Migrate(ctx)
	if err == nil {
		waiters.Signal(s.b.toListen)
	}
	return err
}

// Unavailable returns the error for the caller.
func (s store) Unavailable(op string, mayHold bool, err error) error {
	return unavailable(op, mayHold, s.b.rights().lacking(s.b.life(), err))
}

// Fault classifies an error.
func (s store) Fault(err error) sqllease.Fault {
	return sqllease.Fault{
		Answered: refused(err), Unsent: pgconn.SafeToRetry(err) || code(err) == codeRested, Ended: ended(err),
		Transient: transient(err), Locked: code(err) == codeLockTimeout, Broken: broken(err) || demoted(err),
	}
}

// Reset discards the connections.
func (s store) Reset() { s.b.pool.Reset() }

const (
	openSession = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		VALUES ($1, $2::bigint, clock_timestamp() + $2::bigint * interval '1 microsecond', '', $3)
		ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl, ends = clock_timestamp() + excluded.ttl * interval '1 microsecond',
			addr = CASE excluded.addr WHEN '' THEN s.addr ELSE excluded.addr END
		WHERE s.cause = '' AND s.ends > clock_timestamp() RETURNING true`
	// An UPDATE skips a row that is past its end as far as it can see, and does not wait for a renewal of
	// it that is on its way to the disk. SELECT FOR UPDATE waits, and returns the row as it is then.
	renewSession = `WITH mine AS (SELECT id, ends, cause FROM @sessions WHERE id = $1 FOR UPDATE)
		UPDATE @sessions s SET ends = clock_timestamp() + s.ttl * interval '1 microsecond' FROM mine
		WHERE s.id = mine.id AND mine.cause = '' AND mine.ends > clock_timestamp() RETURNING true`
	readLosses             = `SELECT session, lease, cause, reason FROM @losses WHERE session = ANY($1::text[]) AND until > clock_timestamp()`
	renewLeases, renewThin = renewIn + `@leases` + renewWhere + `l.held` + renewSet + `@leases` + renewed, renewIn + `@locks` + renewWhere + `l.fat = 0` + renewSet + `@locks` + renewed

	renewIn    = `WITH mine AS (SELECT l.name, l.lease, l.ends, coalesce(nullif(x.ttl, 0), l.ttl) AS ttl FROM `
	renewWhere = ` l JOIN unnest($1::text[], $2::text[], $3::bigint[]) AS x (name, lease, ttl)
				ON l.name = x.name AND l.lease = x.lease
			WHERE l.timed AND `
	renewSet = ` ORDER BY l.name, l.lease FOR UPDATE OF l) UPDATE `
	renewed  = ` l SET ttl = mine.ttl, ends = clock_timestamp() + mine.ttl * interval '1 microsecond' FROM mine
		WHERE l.name = mine.name AND l.lease = mine.lease AND mine.ends > clock_timestamp()
		RETURNING l.name, l.lease, l.token, (1000000 * extract(epoch FROM l.ends - clock_timestamp()))::bigint`
	locksOfSession = `SELECT DISTINCT name FROM @leases WHERE session = $1 AND session <> '' AND NOT (held AND timed)`
)

// OpenSession is one statement.
func (s store) OpenSession(ctx context.Context, id backend.SessionID, ttl time.Duration, addr string) (bool, error) {
	alive := false
	err := s.batch(ctx, func(q *pgx.Batch) {
		query(q, func(pgx.Rows) error { alive = true; return nil }, s.b.sql(openSession), string(id), ttl.Microseconds(), addr)
	})
	return alive, err
}

// Renew is one round trip. It locks rows in the order of every transaction: locks, sessions, leases. A
// lease that is inflated in the middle of it is found by the last statement.
func (s store) Renew(ctx context.Context, r *sqllease.Renewals) error {
	return s.batch(ctx, func(q *pgx.Batch) {
		renewTimed(q, s.b.sql(renewThin), r)
		if r.Session != "" {
			r.SessionLost = true
			query(q, func(pgx.Rows) error { r.SessionLost = false; return nil }, s.b.sql(renewSession), string(r.Session))
			query(q, func(rows pgx.Rows) error { return scanLoss(rows, &r.Lost) }, s.b.sql(readLosses), []string{string(r.Session)})
		}
		renewTimed(q, s.b.sql(renewLeases), r)
	})
}

func renewTimed(q *pgx.Batch, statement string, r *sqllease.Renewals) {
	if len(r.Leases) == 0 {
		return
	}
	names, leases := columns(r.Leases)
	var ttls []int64
	for _, ttl := range r.TTLs {
		ttls = append(ttls, ttl.Microseconds())
	}
	query(q, func(rows pgx.Rows) error {
		var k sqllease.Key
		var token, left int64
		err := rows.Scan(&k.Name, &k.ID, &token, &left)
		r.Renewed[k] = sqllease.Renewed{Token: token, Left: micros(left)}
		return err //nolint:wrapcheck // see Unavailable
	}, statement, names, leases, ttls)
}

const (
	// isEarly: a commit is visible before the standbys have it, when its wait was cancelled or
	// the server crashed during it. What the server itself would lose is never visible.
	isEarly = `current_setting('synchronous_standby_names') <> ''`
	// syncRow writes a row of the value to have a commit of its own: the tombstone of a lease of
	// no lock.
	syncRow = `INSERT INTO @tombs (name, lease, until) SELECT '', $1, clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE ` + isEarly + `
		ON CONFLICT (name, lease) DO UPDATE SET until = excluded.until`
)

// Sync is one round trip. Where commits wait for the standbys it waits for them: they then have
// all of the log up to there.
func (s store) Sync(ctx context.Context) error {
	return s.batch(ctx, func(q *pgx.Batch) { q.Queue(s.b.sql(syncRow), s.b.syncs, sqllease.Remembered.Microseconds()) })
}

// LocksOf is one statement.
func (s store) LocksOf(ctx context.Context, id backend.SessionID) ([]string, error) {
	names := []string{}
	err := s.batch(ctx, func(q *pgx.Batch) {
		query(q, func(rows pgx.Rows) error { return scanName(rows, &names) }, s.b.sql(locksOfSession), string(id))
	})
	return names, err
}

const listNames = `SELECT DISTINCT l.name FROM (SELECT name, session, held AND timed AS timed, ends FROM @leases
		UNION ALL SELECT name, session, timed, ends FROM @locks WHERE lease <> '' AND fat = 0) l LEFT JOIN @sessions s ON s.id = l.session
	WHERE l.name > $1 AND l.name >= $2 AND l.name < $3 AND starts_with(l.name, $2)
	AND CASE WHEN l.timed THEN l.ends > clock_timestamp() ELSE s.cause = '' AND s.ends > clock_timestamp() END
	ORDER BY l.name LIMIT $4`

// Names is one statement.
func (s store) Names(ctx context.Context, req backend.ListRequest) ([]string, error) {
	var names []string
	err := s.batch(ctx, func(q *pgx.Batch) {
		query(q, func(rows pgx.Rows) error { return scanName(rows, &names) }, s.b.sql(listNames), req.After, req.Prefix, sqllease.Behind(req.Prefix), req.Limit)
	})
	return names, err
}
