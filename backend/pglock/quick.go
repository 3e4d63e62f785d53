package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// maxQuick is how many locks are tried together.
const maxQuick = 256

const (
	// The lock has no leases at all, dead or alive. This is a separate statement from the one
	// that locks the row, so it sees what was committed while that waited for the row.
	quickAcquire = `INSERT INTO @leases (name, lease, session, addr, held, place, mode, permits, cap, owner, note, reentrant, timed, ttl,
			token, asked, since, ends, waited, joined)
		SELECT x.name, x.lease, x.session, $12, true, k.last - $13::bigint, x.mode, x.permits, x.cap, x.owner, x.note, x.reentrant, x.timed, x.ttl,
			k.last - $13::bigint, clock_timestamp(), clock_timestamp(), CASE WHEN x.timed THEN clock_timestamp() + x.ttl * interval '1 microsecond' END, false, false
		FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::integer[], $7::text[], $8::text[], $9::boolean[],
				$10::boolean[], $11::bigint[]) AS x (name, lease, session, mode, permits, cap, owner, note, reentrant, timed, ttl)
			JOIN @locks k ON k.name = x.name CROSS JOIN @meta m
		WHERE m.watched <= clock_timestamp() AND k.last - $13::bigint > m.floor
			AND NOT EXISTS (SELECT FROM @leases o WHERE o.name = x.name)
			AND NOT EXISTS (SELECT FROM @tombs t WHERE t.name = x.name AND t.lease = x.lease AND t.until > clock_timestamp())
			AND (x.session = '' OR EXISTS (SELECT FROM @sessions s WHERE s.id = x.session AND s.cause = '' AND s.ends > clock_timestamp()))
		RETURNING name, token, since`
	// The lease is held, and the lock has no other holder and no waiter.
	quickRelease = `DELETE FROM @leases l USING unnest($1::text[], $2::text[]) AS x (name, lease), @meta m
		WHERE l.name = x.name AND l.lease = x.lease AND l.held AND m.watched <= clock_timestamp()
			AND NOT EXISTS (SELECT FROM @leases o WHERE o.name = x.name AND o.lease <> x.lease)
			AND CASE WHEN l.timed THEN l.ends > clock_timestamp()
				ELSE EXISTS (SELECT FROM @sessions s WHERE s.id = l.session AND s.cause = '' AND s.ends > clock_timestamp()) END
		RETURNING l.name`
)

// Quick is one round trip.
func (s store) Quick(ctx context.Context, x *sqllease.Quick) error {
	conn, err := s.b.pool.Acquire(ctx)
	if err != nil {
		return err //nolint:wrapcheck // see Unavailable
	}
	t := &txn{s, conn}
	defer t.End(ctx)
	q := new(pgx.Batch)
	q.Queue(beginTxn) // whatever isolation is the server's default, each statement sees what was committed before it
	numbers := int64(0)
	if len(x.Acquire) > 0 {
		numbers = sqllease.Reserve
	}
	q.Queue(s.b.sql(lockLocks), x.Names, numbers)
	var rows leaseRows
	for i := range x.Acquire {
		rows.add(&x.Acquire[i])
	}
	if r := &rows; len(r.names) > 0 {
		q.Queue(s.b.sql(quickAcquire), r.names, r.leases, r.sessions, r.modes, r.permits, r.limits, r.owners, r.notes, r.reentrant, r.timed, r.ttls,
			s.b.addr, int64(sqllease.Reserve-1)).Query(func(rows pgx.Rows) error { return scanGranted(rows, &x.Granted) })
	}
	if len(x.Release) > 0 {
		names, leases := columns(x.Release)
		q.Queue(s.b.sql(quickRelease), names, leases).Query(func(rows pgx.Rows) error { return scanNames(rows, &x.Released) })
	}
	return t.commit(ctx, q)
}

func scanGranted(rows pgx.Rows, all *[]sqllease.QuickGrant) error {
	return each(rows, func() error {
		var x sqllease.QuickGrant
		err := rows.Scan(&x.Name, &x.Token, &x.Since)
		*all = append(*all, x)
		return err //nolint:wrapcheck // see Unavailable
	})
}

func scanNames(rows pgx.Rows, all *[]string) error {
	return each(rows, func() error {
		var name string
		err := rows.Scan(&name)
		*all = append(*all, name)
		return err //nolint:wrapcheck // see unavailable
	})
}
