package pglock

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

// scope is what a transaction is about.
type scope struct {
	names    []string            // of the locks
	sessions []backend.SessionID // that are asked under
	leases   []leaseKey          // that are asked for, and may have been abandoned
	kill     []backend.SessionID // sessions that may be ended
}

// sorted puts everything in the order in which rows are locked, which is the same for
// all, so that transactions do not wait for each other in a circle.
func (s *scope) sorted() {
	slices.Sort(s.names)
	s.names = slices.Compact(s.names)
	slices.Sort(s.sessions)
	s.sessions = slices.Compact(s.sessions)
	slices.Sort(s.kill)
	s.kill = slices.Compact(s.kill)
}

// reserve is how many numbers of a lock a transaction takes, whether it needs them or
// not. One that needs more writes the row again.
const reserve = 64

// The rows of the locks are locked first, or made where they are not there. What comes
// after that is read in statements of its own, and so sees what was committed
// while the lock was waited for.
const (
	beginTxn = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	// A process that sleeps in the middle of a transaction must not keep the others
	// from the locks, and one whose operator has turned durability off must not grant
	// what a crash forgets.
	guardTxn = `SELECT set_config('idle_in_transaction_session_timeout', $1, $3), set_config('lock_timeout', $2, $3),
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', $3) END`
	// Numbers are taken here, more than are needed, so that the row need not be written
	// again. What is not used is skipped.
	lockLocks = `INSERT INTO @locks AS l (name, last, used) SELECT n, floor + $2::bigint, clock_timestamp() FROM @meta, unnest($1::text[]) AS n ORDER BY n
		ON CONFLICT (name) DO UPDATE SET last = l.last + $2::bigint, used = clock_timestamp() RETURNING l.name, l.last`

	// The clock, and the sessions that are asked under.
	readMeta = `SELECT clock_timestamp(), floor, watched > clock_timestamp(), s.id, s.ttl, s.ends, s.cause, s.addr
		FROM @meta LEFT JOIN @sessions s ON s.id = ANY($1::text[])`
	readLeases = `SELECT l.name, l.lease, l.addr, l.held, l.place, l.mode, l.permits, l.cap, l.owner, l.note, l.reentrant, l.timed, l.ttl,
			l.token, l.asked, l.since, l.ends, l.waited, l.joined, l.session, s.ttl, s.ends, s.cause, s.addr
		FROM @leases l LEFT JOIN @sessions s ON s.id = l.session WHERE l.name = ANY($1::text[])`
	readTombs = `SELECT name, lease FROM unnest($1::text[], $2::text[]) AS x (name, lease) JOIN @tombs USING (name, lease) WHERE until > clock_timestamp()`

	// What seems to be over is locked and looked at again: it may have been renewed.
	lockSessions = `SELECT id, ttl, ends, cause, addr FROM @sessions WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE`
	lockLeases   = `SELECT l.name, l.lease, l.ends FROM @leases l JOIN unnest($1::text[], $2::text[]) AS x (name, lease) USING (name, lease)
		ORDER BY l.name, l.lease FOR UPDATE OF l`
)

// queueRead asks for everything in the scope. Rows are taken as they come.
func (t *txn) queueRead(q *pgx.Batch, s *scope) {
	q.Queue(t.b.sql(readMeta), texts(s.sessions)).Query(func(rows pgx.Rows) error { return t.scanMeta(rows, s.names) })
	q.Queue(t.b.sql(readLeases), s.names).Query(t.scanLeases)
	if len(s.leases) > 0 {
		names, leases := columns(s.leases)
		q.Queue(t.b.sql(readTombs), names, leases).Query(func(rows pgx.Rows) error {
			return each(rows, func() error {
				var k leaseKey
				err := rows.Scan(&k.name, &k.id)
				t.buried[k] = struct{}{}
				return err //nolint:wrapcheck // see kindOf
			})
		})
	}
}

// scanMeta reads the clock. What the floor says was committed when the rows of the
// locks were locked: a row that was made anew has no number that was given before.
func (t *txn) scanMeta(rows pgx.Rows, names []string) error {
	found := false
	err := each(rows, func() error {
		var id, cause, addr *string
		var ttl *int64
		var ends *time.Time
		var floor int64
		if err := rows.Scan(&t.now, &floor, &t.watched, &id, &ttl, &ends, &cause, &addr); err != nil {
			return err //nolint:wrapcheck // see kindOf
		}
		for _, name := range names {
			l := t.lock(name)
			l.last = max(l.last, floor)
		}
		if id != nil {
			s := t.session(backend.SessionID(*id))
			*s = session{id: s.id, ttl: micros(*ttl), ends: *ends, cause: *cause, addr: *addr, known: true}
		}
		found = true
		return nil
	})
	if err == nil && !found {
		return errNoMeta
	}
	return err
}

// queueLock locks the rows of the locks, and makes those that are not there.
func (t *txn) queueLock(q *pgx.Batch, s *scope) {
	q.Queue(beginTxn)
	if t.b.deaf { // otherwise the connection has it: see Backend.guard
		q.Queue(guardTxn, t.b.idleLimit, t.b.lockLimit, true)
	}
	if len(s.names) == 0 {
		return
	}
	q.Queue(t.b.sql(lockLocks), s.names, int64(reserve)).Query(func(rows pgx.Rows) error {
		return each(rows, func() error {
			var name string
			var last int64
			err := rows.Scan(&name, &last)
			l := t.lock(name)
			l.last, l.mine = last-reserve, last
			return err //nolint:wrapcheck // see kindOf
		})
	})
}

// doubtful is what seems to be over: sessions, and timed leases.
func (t *txn) doubtful(kill []backend.SessionID) ([]backend.SessionID, []leaseKey) {
	sessions := slices.Clone(kill)
	var leases []leaseKey
	for _, lk := range t.locks {
		for _, l := range lk.all() {
			switch s := l.session; {
			case !l.over(t.now):
			case l.state == held && l.timed:
				leases = append(leases, l.key())
			case s != nil && s.known && s.cause == "":
				sessions = append(sessions, s.id)
			}
		}
	}
	slices.Sort(sessions)
	return slices.Compact(sessions), leases
}

// queueDoubtful locks it, and reads it again.
func (t *txn) queueDoubtful(q *pgx.Batch, sessions []backend.SessionID, keys []leaseKey) {
	if len(sessions) > 0 {
		q.Queue(t.b.sql(lockSessions), texts(sessions)).Query(t.scanSessions)
	}
	if len(keys) > 0 {
		names, leases := columns(keys)
		q.Queue(t.b.sql(lockLeases), names, leases).Query(func(rows pgx.Rows) error {
			return each(rows, func() error {
				var k leaseKey
				var ends time.Time
				err := rows.Scan(&k.name, &k.id, &ends)
				if l := t.lock(k.name).find(k.id); l != nil {
					l.ends = ends
				}
				return err //nolint:wrapcheck // see kindOf
			})
		})
	}
}

func (t *txn) scanLeases(rows pgx.Rows) error {
	return each(rows, func() error {
		l := &lease{saved: true}
		var name string
		var id, cause, addr *string
		var out bool
		var ttl int64
		var sessionTTL *int64
		var ends, sessionEnds *time.Time
		err := rows.Scan(&name, &l.id, &l.addr, &out, &l.place, &l.claim.Mode, &l.claim.Permits, &l.claim.Limit, &l.claim.Owner, &l.note,
			&l.claim.Reentrant, &l.timed, &ttl, &l.token, &l.asked, &l.since, &ends, &l.waited, &l.joined,
			&id, &sessionTTL, &sessionEnds, &cause, &addr)
		if err != nil {
			return err //nolint:wrapcheck // see kindOf
		}
		l.lock, l.ttl = t.lock(name), micros(ttl)
		if ends != nil {
			l.ends = *ends
		}
		if *id != "" {
			l.session = t.session(backend.SessionID(*id))
			if sessionTTL != nil {
				*l.session = session{id: l.session.id, ttl: micros(*sessionTTL), ends: *sessionEnds, cause: *cause, addr: *addr, known: true}
			}
		}
		if out {
			l.state = held
			l.lock.holders.add(l)
		} else {
			l.lock.line.add(l)
		}
		return nil
	})
}

func (t *txn) scanSessions(rows pgx.Rows) error {
	return each(rows, func() error {
		var x session
		var ttl int64
		err := rows.Scan(&x.id, &ttl, &x.ends, &x.cause, &x.addr)
		x.ttl, x.known = micros(ttl), true
		*t.session(x.id) = x
		return err //nolint:wrapcheck // see kindOf
	})
}

// each calls scan for every row.
func each(rows pgx.Rows, scan func() error) error {
	for rows.Next() {
		if err := scan(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// columns takes keys apart: names and leases.
func columns(keys []leaseKey) ([]string, []string) {
	var names, leases []string
	for _, k := range keys {
		names, leases = append(names, k.name), append(leases, string(k.id))
	}
	return names, leases
}

// texts are the IDs as the client library can send them in every mode.
func texts(ids []backend.SessionID) []string {
	all := make([]string, 0, len(ids))
	for _, id := range ids {
		all = append(all, string(id))
	}
	return all
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
