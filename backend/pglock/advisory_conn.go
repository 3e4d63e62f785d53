package pglock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
)

// idleMargin is how much later than a session's end the server ends its connection: the explicit
// end comes first.
const idleMargin = 500 * time.Millisecond

const (
	advisoryChannel = "holdfast_"
	wakePrefix      = "w"
	markNote        = "m"
)

const (
	// The server ends a connection on which nothing arrived for that long.
	setIdle = `SELECT set_config('` + settingIdle + `', $1, false)`
	// In the middle of a request the server waits without a bound; its kernel detects that the
	// other side is gone. A server that cannot set these, as on another system, only logs it.
	setKeepalive = `SELECT set_config('tcp_keepalives_idle', $1, false), set_config('tcp_keepalives_interval', '1', false),
		set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', $2, false)`
	// A pooler in between has another number for the connection than the server itself.
	hello      = `SELECT CASE WHEN pg_backend_pid()::bigint = $2 THEN pg_try_advisory_lock($1) END`
	addSession = `INSERT INTO @sessions (conn, pid, session, expires, made)
		VALUES ($1, pg_backend_pid(), $2, clock_timestamp() + $3 * interval '1 microsecond', clock_timestamp())`
	// See advisory.sql. One connection after the other registers, so that each sees those before it.
	oneByOne  = `SELECT pg_advisory_xact_lock($1)`
	keepEpoch = `INSERT INTO @epoch AS e (id, above) SELECT 1, ` + clock + `
		WHERE NOT EXISTS (SELECT FROM @sessions s JOIN ($HELD) h ON h.key = s.conn AND h.pid = s.pid)
		ON CONFLICT (id) DO UPDATE SET above = greatest(e.above, excluded.above)`
	extendSession = `UPDATE @sessions SET expires = clock_timestamp() + $2 * interval '1 microsecond' WHERE conn = $1`
	unlock        = `SELECT pg_advisory_unlock($1)`
	unlockShared  = `SELECT pg_advisory_unlock_shared($1)`
	unlockAll     = `SELECT pg_advisory_unlock_all()`
	deleteLease   = `DELETE FROM @leases WHERE name = $1 AND lease = $2 AND conn = $3`
	deleteWaiter  = `DELETE FROM @waiters WHERE name = $1 AND lease = $2 AND conn = $3`
	readMarked    = `SELECT name, lease, reason FROM @leases WHERE conn = $1 AND marked`
	// The lock first, and then the token: tokens rise in the order of the grants. A row of this
	// name and lease ID means that the lease was granted before.
	try = `WITH old AS MATERIALIZED (SELECT FROM @leases WHERE name = $1 AND lease = $2),
		got AS MATERIALIZED (SELECT CASE WHEN EXISTS (SELECT FROM old) THEN NULL
			WHEN $4 THEN pg_try_advisory_lock_shared($3) ELSE pg_try_advisory_lock($3) END AS ok),
		put AS (INSERT INTO @leases (name, lease, key, shared, conn, owner, note, token, since)
			SELECT $1, $2, $3, $4, $5, $6, $7, nextval($9::text::regclass) + (SELECT above FROM @epoch), clock_timestamp() FROM got WHERE ok
			ON CONFLICT DO NOTHING RETURNING token, since),
		left_line AS (DELETE FROM @waiters WHERE name = $1 AND lease = $2 AND conn = $5 AND (SELECT ok FROM got)),
		queued AS (INSERT INTO @waiters (name, lease, conn, shared, owner, note, asked)
			SELECT $1, $2, $5, $4, $6, $7, clock_timestamp() FROM got WHERE NOT ok AND $8 ON CONFLICT DO NOTHING)
		SELECT got.ok, put.token, put.since FROM got LEFT JOIN put ON true`
	join = `INSERT INTO @waiters (name, lease, conn, shared, owner, note, asked)
		VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp()) ON CONFLICT DO NOTHING`
	// The first in the queue is notified, or all readers before the first writer.
	wakeNext = `, queue AS MATERIALIZED (SELECT w.name, w.conn, row_number() OVER (PARTITION BY w.name ORDER BY w.n) AS place,
			count(*) FILTER (WHERE NOT w.shared) OVER (PARTITION BY w.name ORDER BY w.n) AS writers
			FROM @waiters w JOIN names USING (name) JOIN @sessions s USING (conn) WHERE s.expires > clock_timestamp())
		SELECT pg_notify('` + advisoryChannel + `' || conn, '` + wakePrefix + `' || name) FROM queue WHERE (place = 1 OR writers = 0) AND $2::boolean`
	wake        = `WITH names AS MATERIALIZED (SELECT DISTINCT unnest($1::text[]) COLLATE "C" AS name)` + wakeNext
	leaveQueue  = `DELETE FROM @waiters WHERE conn = $1`
	leaveTable  = `DELETE FROM @sessions WHERE conn = $1`
	leaveLeases = `WITH mine AS MATERIALIZED (SELECT name, lease FROM @leases WHERE conn = $1 ORDER BY name, lease FOR UPDATE),
		names AS (DELETE FROM @leases e USING mine m WHERE e.name = m.name AND e.lease = m.lease AND e.conn = $1 RETURNING e.name)` + wakeNext
	// Rows of connections that are gone. A connection that is being established has its lock
	// first.
	sweepDead = `WITH dead AS (DELETE FROM @sessions s WHERE s.made < clock_timestamp() - interval '1 minute'
			AND NOT EXISTS (SELECT FROM ($HELD) h WHERE h.key = s.conn AND h.pid = s.pid) RETURNING s.conn),
		queue AS (DELETE FROM @waiters w USING dead WHERE w.conn = dead.conn),
		theirs AS MATERIALIZED (SELECT e.name, e.lease, e.conn FROM @leases e JOIN dead USING (conn) ORDER BY e.name, e.lease FOR UPDATE OF e)
		DELETE FROM @leases e USING theirs t WHERE e.name = t.name AND e.lease = t.lease AND e.conn = t.conn`
)

// configure returns the configuration of this value's connections.
func (b *Advisory) configure(from *pgx.ConnConfig) *pgx.ConnConfig {
	c := primary(from, b.leases.Life(), &b.conns)
	maps.Copy(c.RuntimeParams, map[string]string{
		settingIdle:       millis(time.Minute),
		settingCheck:      millis(time.Second), // also while a statement runs
		"plan_cache_mode": "force_generic_plan",
	})
	return c
}

// advisoryConn is a connection with the locks of a session.
type advisoryConn struct {
	b    *Advisory
	id   int64
	ttl  time.Duration
	conn *pgx.Conn
	has  map[int64]int // how often it has each lock, by key; without those that it does not have
}

// Connect establishes the connection of a session.
func (s advisoryStore) Connect(ctx context.Context, id backend.SessionID, ttl time.Duration, hear func(connlease.Note)) (connlease.Conn, error) {
	conf := s.b.conf.Copy()
	conf.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if name, ok := strings.CutPrefix(n.Payload, wakePrefix); ok {
			hear(connlease.Note{Wake: name})
		} else {
			hear(connlease.Note{Marked: true})
		}
	}
	conn, err := s.b.program.connect(ctx, conf)
	if err != nil {
		return nil, tooOld(err)
	}
	c := &advisoryConn{b: s.b, id: rand.Int64(), ttl: ttl, conn: conn, has: make(map[int64]int)}
	if err := c.hello(ctx, id); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// hello registers the connection.
func (c *advisoryConn) hello(ctx context.Context, id backend.SessionID) error {
	var got *bool
	if err := c.conn.QueryRow(ctx, hello, c.id, int64(c.conn.PgConn().PID())).Scan(&got); err != nil {
		return err //nolint:wrapcheck // see unavailable
	}
	switch {
	case got == nil:
		return ErrPooler
	case !*got:
		return errTaken
	}
	q := new(pgx.Batch)
	q.Queue(setIdle, millis(c.ttl+idleMargin))
	q.Queue(setKeepalive, wholeSeconds(c.ttl+idleMargin), millis(c.ttl+idleMargin))
	q.Queue(oneByOne, c.b.key("")) // no lock has that name
	q.Queue(c.b.sql(keepEpoch))
	q.Queue(c.b.sql(sweepDead))
	q.Queue(c.b.sql(addSession), c.id, string(id), c.ttl.Microseconds())
	q.Queue("LISTEN " + c.channel())
	return c.conn.SendBatch(ctx, q).Close() //nolint:wrapcheck // see unavailable
}

// wholeSeconds rounds d up to seconds, to no more than Linux accepts (tcp(7), TCP_KEEPIDLE).
// Below that limit the result is not less than d, which is at least what the holder believes.
func wholeSeconds(d time.Duration) string {
	const most = 32767 * time.Second
	return strconv.FormatInt(int64((min(d, most)+time.Second-1)/time.Second), 10)
}

var errTaken = errors.New("another connection has the lock of this one's number")

func (c *advisoryConn) channel() string { return advisoryChannel + strconv.FormatInt(c.id, 10) }

// Wait waits until the server sends something or ctx ends.
func (c *advisoryConn) Wait(ctx context.Context) error {
	err := c.conn.PgConn().WaitForNotification(ctx)
	if err != nil && ctx.Err() != nil && !c.conn.IsClosed() {
		return nil
	}
	return err //nolint:wrapcheck // the session has ended
}

// Close closes the connection without waiting for the server.
func (c *advisoryConn) Close() { hangUp(c.conn) }

// Do executes the work in one round trip and one transaction. Locks do not belong to the
// transaction: where it fails, those that it acquired are released, and another one executes the
// work without what is new. When that is not possible the connection has to be closed.
func (c *advisoryConn) Do(ctx context.Context, w *connlease.Work) error {
	// A break locks these rows in the same order, so there is no circle of waiting.
	slices.SortFunc(w.Free, func(x, y *backend.AcquireRequest) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), cmp.Compare(x.Lease, y.Lease))
	})
	var done progress
	for n := 1; ; n++ {
		err := c.send(ctx, w, &done)
		if err == nil {
			break
		}
		full := c.b.notifier.refused(err)
		if w.End && !full || n == mostTimes || !ofRequest(err) || c.conn.IsClosed() {
			return err
		}
		if done.trying {
			if failed := c.takeBack(ctx, w.Try, done.answered); failed != nil {
				return errors.Join(err, failed)
			}
		}
		switch {
		case transient(err):
		case len(w.Try) > 0:
			w.WithoutTry(err)
		default:
			return err
		}
	}
	if err := w.UndoForeign(func(l *backend.AcquireRequest) error { return c.giveBack(ctx, l) }); err != nil {
		return err
	}
	c.count(w)
	return nil
}

// mostTimes bounds how often a piece of work is sent.
const mostTimes = 5

// progress is how far a piece of work got. Released locks stay released, whatever the outcome of
// the transaction.
type progress struct {
	freed    int  // of Work.Free
	trying   bool // everything before Work.Try was answered
	answered int  // of Work.Try
}

// send sends the work, without a second release of what was released before.
func (c *advisoryConn) send(ctx context.Context, w *connlease.Work, done *progress) error {
	before := done.freed
	done.trying, done.answered, w.Marked = false, 0, nil
	q := new(pgx.Batch)
	var names []string
	for i, l := range w.Free {
		if i >= before {
			c.unlock(q, l, &done.freed)
		}
		q.Queue(c.b.sql(deleteLease), l.Name, string(l.Lease), c.id)
		names = append(names, l.Name)
	}
	for _, k := range w.Leave {
		q.Queue(c.b.sql(deleteWaiter), k.Name, string(k.ID), c.id)
		names = append(names, k.Name)
	}
	notifies := c.b.notifier.sends()
	if len(names) > 0 {
		q.Queue(c.b.sql(wake), names, notifies)
	}
	rest := millis(max(w.Left, time.Millisecond) + idleMargin)
	if w.End {
		q.Queue(unlockAll) // before the commit wakes waiters, which can then acquire the locks
		q.Queue(setIdle, rest)
		q.Queue(c.b.sql(leaveTable), c.id) // in the order of sweepDead: no circle of waiting
		q.Queue(c.b.sql(leaveLeases), c.id, notifies)
		q.Queue(c.b.sql(leaveQueue), c.id)
		return c.conn.SendBatch(ctx, q).Close() //nolint:wrapcheck // the session has ended
	}
	if w.Renew {
		q.Queue(c.b.sql(extendSession), c.id, c.ttl.Microseconds())
	}
	if w.Renew || w.Look {
		c.look(q, w)
	}
	q.Queue(setIdle, rest).Exec(func(pgconn.CommandTag) error { done.trying = true; return nil })
	for _, t := range w.Try {
		if t.Behind {
			c.join(q, t.Req, &done.answered)
		} else {
			c.try(q, t, &done.answered)
		}
	}
	return c.conn.SendBatch(ctx, q).Close() //nolint:wrapcheck // see Do
}

var errNotHad = errors.New("the connection no longer holds a lock that it had acquired")

var errInDoubt = errors.New("whether the connection has a lock once more is not known")

// unlock releases a lock, and counts it.
func (c *advisoryConn) unlock(q *pgx.Batch, l *backend.AcquireRequest, freed *int) {
	q.Queue(unlockOf(l.Mode), c.b.key(l.Name)).QueryRow(func(r pgx.Row) error {
		var had bool
		if err := r.Scan(&had); err != nil {
			return err //nolint:wrapcheck // the session has ended
		}
		if !had {
			return errNotHad
		}
		*freed++
		return nil
	})
}

// giveBack releases a lock by itself.
func (c *advisoryConn) giveBack(ctx context.Context, l *backend.AcquireRequest) error {
	_, err := c.conn.Exec(ctx, unlockOf(l.Mode), c.b.key(l.Name))
	return err //nolint:wrapcheck // the session has ended
}

func unlockOf(m backend.Mode) string {
	if m == backend.Shared {
		return unlockShared
	}
	return unlock
}

// takeBack releases the locks that an undone transaction acquired. The statement that failed may
// have acquired one more. That is released without knowing; where there was none, the server only
// sends a warning. Where the connection had the lock already, that release could free a lock that
// counts, so takeBack returns an error instead.
func (c *advisoryConn) takeBack(ctx context.Context, all []*connlease.Try, answered int) error {
	took := make(map[int64]int)
	for i, t := range all[:min(answered+1, len(all))] {
		key, failed := c.b.key(t.Req.Name), i == answered
		switch {
		case t.Behind, !failed && !t.Granted:
			continue
		case failed && c.has[key]+took[key] > 0:
			return errInDoubt
		}
		if err := c.giveBack(ctx, t.Req); err != nil {
			return err
		}
		took[key]++
	}
	return nil
}

// count updates has.
func (c *advisoryConn) count(w *connlease.Work) {
	for _, l := range w.Free {
		key := c.b.key(l.Name)
		if c.has[key]--; c.has[key] <= 0 {
			delete(c.has, key)
		}
	}
	for _, t := range w.Try {
		if t.Granted {
			c.has[c.b.key(t.Req.Name)]++
		}
	}
}

func (c *advisoryConn) look(q *pgx.Batch, w *connlease.Work) {
	query(q, func(rows pgx.Rows) error {
		var m connlease.Told
		err := rows.Scan(&m.Name, &m.ID, &m.Reason)
		w.Marked = append(w.Marked, m)
		return err //nolint:wrapcheck // the session has ended
	}, c.b.sql(readMarked), c.id)
}

// join queues a request.
func (c *advisoryConn) join(q *pgx.Batch, r *backend.AcquireRequest, answered *int) {
	q.Queue(c.b.sql(join), r.Name, string(r.Lease), c.id, r.Mode == backend.Shared, r.Owner, r.Note).
		Exec(func(pgconn.CommandTag) error { *answered++; return nil })
}

func (c *advisoryConn) try(q *pgx.Batch, t *connlease.Try, answered *int) {
	r := t.Req
	q.Queue(c.b.sql(try), r.Name, string(r.Lease), c.b.key(r.Name), r.Mode == backend.Shared, c.id, r.Owner, r.Note, t.Queue, c.b.sql("@tokens")).
		QueryRow(func(row pgx.Row) error {
			var ok *bool
			var token *int64
			var since *time.Time
			if err := row.Scan(&ok, &token, &since); err != nil {
				return err //nolint:wrapcheck // the session has ended
			}
			t.Granted, t.Foreign, t.Token = ok != nil && *ok, ok == nil, 0
			if t.Granted && token != nil {
				t.Token, t.Since = fence.Token(*token), *since //nolint:gosec // a sequence counts up from above 0
			}
			*answered++
			return nil
		})
}
