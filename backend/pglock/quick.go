package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/backend"
)

// Most locks are free when they are asked for, and nobody waits when they are given
// back. Then there is nothing to decide here: one round trip locks the row, and does it
// where that is how things are. What is not so is done the long way. Locks for which it
// was not so lately go the long way at once.

// quick is a request that may be done in one round trip.
type quick struct {
	acquire *backend.AcquireRequest // nil: it is a release
	lease   backend.LeaseID
	granted func(backend.Grant)
}

// maxCrowded bounds the locks that are known to be wanted by several.
const maxCrowded = 1 << 12

const (
	// The lock has no leases at all, dead or alive. The statement is not that which locks
	// the row, so it sees what was committed while the row was waited for.
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
	// The lease is out, and nobody else has the lock or waits for it.
	quickRelease = `DELETE FROM @leases l USING unnest($1::text[], $2::text[]) AS x (name, lease), @meta m
		WHERE l.name = x.name AND l.lease = x.lease AND l.held AND m.watched <= clock_timestamp()
			AND NOT EXISTS (SELECT FROM @leases o WHERE o.name = x.name AND o.lease <> x.lease)
			AND CASE WHEN l.timed THEN l.ends > clock_timestamp()
				ELSE EXISTS (SELECT FROM @sessions s WHERE s.id = l.session AND s.cause = '' AND s.ends > clock_timestamp()) END
		RETURNING l.name`
)

// isQuick reports whether to try. mu is held.
func (b *Backend) isQuick(r *request) bool {
	_, crowded := b.crowded[r.scope.names[0]]
	return r.quick != nil && !crowded && !b.deaf
}

// flyQuickly does those of the requests that it can, answers them, and gives the others
// back. Each is for another lock. The statements are one transaction.
func (b *Backend) flyQuickly(ctx context.Context, reqs []*request) []*request {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return reqs // the long way says why
	}
	defer conn.Release()
	byName := make(map[string]*request, len(reqs))
	var s scope
	var rows leaseRows
	var names, leases []string
	for _, r := range reqs {
		name := r.scope.names[0]
		byName[name] = r
		s.names = append(s.names, name)
		if r.quick.acquire != nil {
			rows.add(r.quick.row())
		} else {
			names, leases = append(names, name), append(leases, string(r.quick.lease))
		}
	}
	s.sorted()
	q := new(pgx.Batch)
	q.Queue(b.sql(lockLocks), s.names, int64(reserve))
	asked := time.Now()
	var granted []news
	if x := &rows; len(x.names) > 0 {
		q.Queue(b.sql(quickAcquire), x.names, x.leases, x.sessions, x.modes, x.permits, x.limits, x.owners, x.notes, x.reentrant, x.timed, x.ttls,
			b.addr, int64(reserve-1)).Query(func(r pgx.Rows) error { return scanGranted(r, &granted) })
	}
	var released []string
	if len(names) > 0 {
		q.Queue(b.sql(quickRelease), names, leases).Query(func(r pgx.Rows) error { return scanNames(r, &released) })
	}
	if err := conn.SendBatch(ctx, q).Close(); err != nil {
		return b.quickFailed(reqs, err)
	}
	for _, g := range granted {
		r := byName[g.key.name]
		delete(byName, g.key.name)
		g.grant.Asked = asked
		if a := r.quick.acquire; a.Timed {
			g.grant.Left = a.TTL
		}
		r.quick.granted(g.grant)
		r.answer(nil)
	}
	for _, name := range released {
		byName[name].answer(nil)
		delete(byName, name)
	}
	return b.notQuick(reqs, byName)
}

// notQuick gives those that were not done, in their order, and remembers their locks.
func (b *Backend) notQuick(reqs []*request, byName map[string]*request) []*request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.crowded)+len(byName) > maxCrowded {
		clear(b.crowded)
	}
	var rest []*request
	for _, r := range reqs {
		if name := r.scope.names[0]; byName[name] == r {
			b.crowded[name] = struct{}{}
			rest = append(rest, r)
		}
	}
	return rest
}

// quickFailed gives back the requests where it is sure that nothing was done, and answers
// them otherwise. It does not ask again by itself: a batch whose connection broke may still
// be on its way, and would grant the lease once more after it was given back. The caller,
// who is told, abandons such a lease rather than giving it back.
func (b *Backend) quickFailed(reqs []*request, err error) []*request {
	if refused(err) || pgconn.SafeToRetry(err) {
		return reqs
	}
	if broken(err) {
		b.pool.Reset() // the others are no better
	}
	b.fail(reqs, false, err)
	return nil
}

// calmed notes which of the locks of a transaction nobody has or wants any more.
func (b *Backend) calmed(t *txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range t.locks {
		if len(l.holders.leases)+len(l.line.leases) == 0 {
			delete(b.crowded, name)
		}
	}
}

// row is the lease as a row.
func (q *quick) row() *lease {
	a := q.acquire
	l := &lease{
		lock: &lock{name: a.Name}, id: a.Lease, claim: a.Claim(), note: a.Note, timed: a.Timed, ttl: ceil(a.TTL), state: held,
	}
	if a.Session != "" {
		l.session = &session{id: a.Session}
	}
	return l
}

func scanGranted(rows pgx.Rows, all *[]news) error {
	return each(rows, func() error {
		var x news
		var n int64
		err := rows.Scan(&x.key.name, &n, &x.grant.Since)
		x.grant.Token = token(n)
		*all = append(*all, x)
		return err //nolint:wrapcheck // see unavailable
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
