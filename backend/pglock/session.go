package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	openSession = `INSERT INTO @sessions AS s (id, ttl, ends, cause, addr)
		VALUES ($1, $2::bigint, clock_timestamp() + $2::bigint * interval '1 microsecond', '', $3)
		ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl, ends = clock_timestamp() + excluded.ttl * interval '1 microsecond',
			addr = CASE excluded.addr WHEN '' THEN s.addr ELSE excluded.addr END
		WHERE s.cause = '' AND s.ends > clock_timestamp() RETURNING true`
	renewSession = `UPDATE @sessions SET ends = clock_timestamp() + ttl * interval '1 microsecond'
		WHERE id = $1 AND cause = '' AND ends > clock_timestamp() RETURNING true`
	readLosses  = `SELECT session, lease, cause, reason FROM @losses WHERE session = $1 AND until > clock_timestamp()`
	renewLeases = `WITH mine AS (
			SELECT l.name, l.lease, x.ttl, x.n FROM @leases l JOIN unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS x (name, lease, ttl, n)
				ON l.name = x.name AND l.lease = x.lease
			WHERE l.held AND l.timed ORDER BY l.name, l.lease FOR UPDATE OF l)
		UPDATE @leases l SET ttl = mine.ttl, ends = clock_timestamp() + mine.ttl * interval '1 microsecond' FROM mine
		WHERE l.name = mine.name AND l.lease = mine.lease AND l.ends > clock_timestamp()
		RETURNING mine.n, l.token, (1000000 * extract(epoch FROM l.ends - clock_timestamp()))::bigint`
	locksOfSession = `SELECT DISTINCT name FROM @leases WHERE session = $1 AND session <> '' AND NOT (held AND timed)`
)

// OpenSession makes a session or confirms it, in one statement. Errors: *InvalidError;
// ErrSessionLost for an ID that has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := req.Validate(b.Capabilities()); err != nil {
		return err
	}
	addr := ""
	if req.Lost != nil && !b.deaf {
		addr = b.addr
		b.mu.Lock()
		if _, again := b.sessions[req.ID]; !again { // now: it may be lost before the answer is here
			b.sessions[req.ID] = &listener{told: make(map[backend.LeaseID]struct{})}
		}
		b.sessions[req.ID].tell = req.Lost
		b.mu.Unlock()
	}
	alive := false
	err := b.direct(ctx, "open session", func(q *pgx.Batch) {
		q.Queue(b.sql(openSession), string(req.ID), ceil(req.TTL).Microseconds(), addr).Query(func(rows pgx.Rows) error {
			alive = rows.Next()
			return rows.Err()
		})
	})
	if err == nil && !alive {
		err = backend.ErrSessionLost
		b.unlisten(req.ID)
	}
	if err == nil {
		b.opened(req.ID)
	}
	return err
}

// opened notes that the session is there. What was said of it meanwhile is looked at
// now.
func (b *Backend) opened(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.sessions[id]; l != nil {
		l.open = true
	}
	if _, said := b.look.sessions[id]; said {
		kick(b.toLook)
	}
}

func (b *Backend) unlisten(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, id)
}

// EndSession gives back all that lives with the session, in one transaction. A session
// that is gone is success. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's
// cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	const op = "end session"
	for again := false; ; again = true {
		names, err := b.locksOf(ctx, id)
		if err != nil {
			return err
		}
		if again && len(names) == 0 {
			return nil
		}
		lived := false
		err = b.alone(ctx, &request{op: op, scope: scope{names: names, sessions: []backend.SessionID{id}, kill: []backend.SessionID{id}}, run: func(t *txn) error {
			lived = t.endSession(id)
			return nil
		}})
		if err != nil {
			return err
		}
		b.unlisten(id)
		// What was acquired under it at the same moment is dead, but nobody would hear of
		// that for a while. When it had ended before, this was done by who ended it.
		if !lived {
			return nil
		}
	}
}

func (b *Backend) locksOf(ctx context.Context, id backend.SessionID) ([]string, error) {
	names := []string{}
	err := b.direct(ctx, "end session", func(q *pgx.Batch) {
		names = names[:0]
		q.Queue(b.sql(locksOfSession), string(id)).Query(func(rows pgx.Rows) error {
			return each(rows, func() error {
				var name string
				err := rows.Scan(&name)
				names = append(names, name)
				return err //nolint:wrapcheck // see unavailable
			})
		})
	})
	return names, err
}

// endSession ends a session and what lives with it in the locks that were read, and
// reports whether it lived.
func (t *txn) endSession(id backend.SessionID) bool {
	s := t.session(id)
	lived := s.alive(t.now)
	if s.cause == "" {
		t.kill(s, backend.CauseSession)
	}
	for _, name := range t.names() {
		for _, l := range t.locks[name].all() {
			if l.session == s && (l.state == waiting || !l.timed) {
				t.end(l, backend.ErrSessionLost, backend.EventReleased, "")
			}
		}
	}
	if s.addr != "" && s.addr != t.b.addr {
		t.letterTo(s.addr).session(id)
	}
	return lived
}

// Renew extends a session and timed leases, in one transaction and one round trip.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause. What became of each
// is in the result.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.Capabilities()); err != nil {
		return backend.RenewResult{}, err
	}
	if req.Session == "" && len(req.Leases) == 0 {
		return backend.RenewResult{}, b.ready(ctx, "renew")
	}
	leases := newRenewals(req.Leases)
	var res backend.RenewResult
	err := b.direct(ctx, "renew", func(q *pgx.Batch) {
		res = backend.RenewResult{}
		if req.Session != "" {
			q.Queue(b.sql(renewSession), string(req.Session)).Query(func(rows pgx.Rows) error {
				res.SessionLost = !rows.Next()
				return rows.Err()
			})
			q.Queue(b.sql(readLosses), string(req.Session)).Query(func(rows pgx.Rows) error { return scanLosses(rows, &res.Lost) })
		}
		if len(req.Leases) > 0 {
			q.Queue(b.sql(renewLeases), leases.names, leases.leases, leases.ttls).Query(leases.scan)
		}
	})
	if err != nil {
		return backend.RenewResult{}, err
	}
	if res.SessionLost {
		res.Lost = nil
		b.unlisten(req.Session)
	}
	res.Leases = leases.results(req.Leases)
	return res, nil
}

// renewals is what is asked of each lease once, and what became of it.
type renewals struct {
	names, leases []string
	ttls          []int64
	at            map[leaseKey]int
	got           map[int]backend.Renewal
}

// newRenewals takes the last of several renewals of one lease.
func newRenewals(asked []backend.TimedRenewal) *renewals {
	r := &renewals{at: make(map[leaseKey]int)}
	for _, x := range asked {
		k := leaseKey{x.Name, x.Lease}
		i, again := r.at[k]
		if !again {
			i = len(r.names)
			r.at[k] = i
			r.names, r.leases, r.ttls = append(r.names, x.Name), append(r.leases, string(x.Lease)), append(r.ttls, 0)
		}
		r.ttls[i] = ceil(x.TTL).Microseconds()
	}
	return r
}

func (r *renewals) scan(rows pgx.Rows) error {
	r.got = make(map[int]backend.Renewal)
	return each(rows, func() error {
		var n int
		var number, left int64
		err := rows.Scan(&n, &number, &left)
		r.got[n-1] = backend.Renewal{Token: token(number), Left: micros(left)}
		return err //nolint:wrapcheck // see unavailable
	})
}

func (r *renewals) results(asked []backend.TimedRenewal) []backend.Renewal {
	var all []backend.Renewal
	for _, x := range asked {
		res, ok := r.got[r.at[leaseKey{x.Name, x.Lease}]]
		if !ok {
			res = backend.Renewal{Err: backend.ErrLost}
		}
		res.Left = min(res.Left, x.TTL)
		all = append(all, res)
	}
	return all
}
