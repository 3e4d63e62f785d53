package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	lookAtLeases = `SELECT x.n, l.lease IS NOT NULL, coalesce(l.held, false), coalesce(l.timed, false), coalesce(l.session, ''),
			coalesce(l.token, 0), coalesce(l.since, clock_timestamp()), coalesce(l.ends, clock_timestamp()),
			x.session = '' OR coalesce(s.cause = '' AND s.ends > clock_timestamp(), false), x.session <> '' AND coalesce(s.cause <> '', true)
		FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS x (name, lease, session, n)
		LEFT JOIN @leases l ON l.name = x.name AND l.lease = x.lease LEFT JOIN @sessions s ON s.id = x.session`
	// When the next of the leases of each lock can end; see lease.bound. Now, where one is to be
	// cut; see Changes.
	lookAtEnds = `SELECT l.name, (1000000 * extract(epoch FROM min(CASE
				WHEN l.held AND l.timed AND l.ends <= clock_timestamp() + (l.ttl + $2::bigint) * interval '1 microsecond' THEN l.ends
				WHEN l.held AND l.timed THEN clock_timestamp()
				WHEN s.cause = '' AND s.ends <= clock_timestamp() + (s.ttl + $2::bigint) * interval '1 microsecond' THEN CASE WHEN l.timed THEN least(s.ends, clock_timestamp() + l.ttl * interval '1 microsecond') ELSE s.ends END
				ELSE clock_timestamp() END) - clock_timestamp()))::bigint
		FROM @leases l LEFT JOIN @sessions s ON s.id = l.session WHERE l.name = ANY($1::text[]) GROUP BY l.name`
	lookAtSessions = `SELECT x.id, coalesce(s.cause, 'gone') FROM unnest($1::text[]) AS x (id) LEFT JOIN @sessions s USING (id)
		WHERE s.id IS NULL OR s.cause <> '' OR s.ends <= clock_timestamp()`
	lookAtLosses = `SELECT session, lease, cause, reason FROM @losses WHERE session = ANY($1::text[]) AND until > clock_timestamp()`
)

// Look is one round trip.
func (s store) Look(ctx context.Context, g *sqllease.Glance) error {
	var names, leases, sessions []string
	for _, w := range g.Waiters {
		names, leases, sessions = append(names, w.Key.Name), append(leases, string(w.Key.ID)), append(sessions, string(w.Session))
	}
	return s.batch(ctx, func(q *pgx.Batch) {
		q.Queue(`SELECT clock_timestamp(), ` + isEarly).QueryRow(func(row pgx.Row) error { return row.Scan(&g.Now, &g.Early) })
		if len(g.Waiters) > 0 {
			query(q, func(rows pgx.Rows) error { return scanSeen(rows, g) }, s.b.sql(lookAtLeases), names, leases, sessions)
			if g.Ends {
				query(q, func(rows pgx.Rows) error { return scanRest(rows, g) }, s.b.sql(lookAtEnds), names, sqllease.ClockSlack.Microseconds())
			}
		}
		if len(g.Sessions) > 0 {
			query(q, func(rows pgx.Rows) error { return scanDead(rows, g) }, s.b.sql(lookAtSessions), texts(g.Sessions))
			query(q, func(rows pgx.Rows) error { return scanLoss(rows, &g.Losses) }, s.b.sql(lookAtLosses), texts(g.Sessions))
		}
	})
}

func scanSeen(rows pgx.Rows, g *sqllease.Glance) error {
	var x sqllease.Seen
	r := &x.Row
	err := rows.Scan(&x.N, &x.There, &r.Held, &r.Timed, &r.Session, &r.Token, &r.Since, &r.Ends, &x.Lives, &x.Ended)
	x.N--
	g.Seen = append(g.Seen, x)
	return err //nolint:wrapcheck // see Unavailable
}

func scanRest(rows pgx.Rows, g *sqllease.Glance) error {
	var name string
	var left int64
	err := rows.Scan(&name, &left)
	g.Rest[name] = micros(left)
	return err //nolint:wrapcheck // see Unavailable
}

func scanDead(rows pgx.Rows, g *sqllease.Glance) error {
	var x backend.Loss
	err := rows.Scan(&x.Session, &x.Cause)
	if x.Cause == "" {
		g.Overdue = append(g.Overdue, x.Session)
	} else {
		g.Losses = append(g.Losses, x)
	}
	return err //nolint:wrapcheck // see Unavailable
}

func scanLoss(rows pgx.Rows, losses *[]backend.Loss) error {
	var x backend.Loss
	err := rows.Scan(&x.Session, &x.Lease, &x.Cause, &x.Reason)
	*losses = append(*losses, x)
	return err //nolint:wrapcheck // see Unavailable
}
