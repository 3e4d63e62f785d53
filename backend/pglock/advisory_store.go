package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
)

//go:embed advisory.sql
var advisoryTables string

// heldLocks are the advisory locks of this database, and their holders.
const heldLocks = `SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.pid FROM pg_catalog.pg_locks l
	WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
	AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())`

const (
	// What is held: the connection that wrote the row is there, and has the lock.
	outLeases = `WITH held AS MATERIALIZED ($HELD),
		alive AS MATERIALIZED (SELECT s.* FROM @sessions s JOIN held h ON h.key = s.conn AND h.pid = s.pid),
		out AS (SELECT e.*, s.session, s.expires, s.pid FROM @leases e JOIN alive s USING (conn)
			WHERE EXISTS (SELECT FROM held h WHERE h.key = e.key AND h.pid = s.pid)) `
	look = outLeases + `SELECT name, lease, session, owner, note, shared, since, token AS n,
		(extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint, true AS held FROM out WHERE name = ANY($1) UNION ALL
		SELECT w.name, w.lease, s.session, w.owner, w.note, w.shared, w.asked, w.n, 0, false
		FROM @waiters w JOIN alive s USING (conn) WHERE w.name = ANY($1) ORDER BY name, held DESC, n`
	listHeld = outLeases + `SELECT DISTINCT name FROM out WHERE name > $1 AND starts_with(name, $2) ORDER BY name LIMIT $3`
	// The commit notifies a connection that something was marked. The rows are locked in the same
	// order by all that lock several. So of two breaks of a lock one waits for the other, and
	// sees what that has marked. $5 is the token of a break that reads again: it draws no other
	// token, and later grants do not concern it.
	mark = outLeases + `, t AS MATERIALIZED (SELECT CASE WHEN $5::bigint > 0 THEN $5 ELSE
			nextval($4::text::regclass) + coalesce((SELECT above FROM @epoch), 0) END AS token),
		todo AS MATERIALIZED (SELECT lease, marked FROM @leases WHERE name = $1 AND ($2 = '' OR lease = $2) AND ($5 = 0 OR token < $5)
			ORDER BY lease FOR UPDATE),
		hit AS (UPDATE @leases e SET marked = true, reason = CASE WHEN d.marked THEN e.reason ELSE $3 END FROM out o, todo d
			WHERE e.name = o.name AND e.lease = o.lease AND e.lease = d.lease AND e.name = $1
			RETURNING e.lease, o.session, e.owner, e.note, e.shared, e.token, e.since, e.conn, o.expires, d.marked AS before)
		SELECT t.token, coalesce(h.lease, ''), coalesce(h.session, ''), coalesce(h.owner, ''), coalesce(h.note, ''), coalesce(h.shared, false),
		coalesce(h.token, 0), coalesce(h.since, clock_timestamp()), coalesce(h.conn::text, ''),
		coalesce((extract(epoch FROM h.expires - clock_timestamp()) * 1000000)::bigint, 0), coalesce(h.before, false),
		CASE WHEN h.conn IS NOT NULL AND $6::boolean THEN pg_notify('` + advisoryChannel + `' || h.conn, '` + markNote + `') END::text
		FROM t LEFT JOIN hit h ON true ORDER BY h.token`
	// The transactions of those that have the lock. Neither the locks nor this are part of a
	// snapshot: the next statement sees the result of what has ended when this is read.
	inFlight = `WITH held AS MATERIALIZED ($HELD)
		SELECT v.virtualtransaction FROM pg_catalog.pg_locks v
		WHERE v.locktype = 'virtualxid' AND v.granted AND v.virtualxid = v.virtualtransaction AND v.pid IN (SELECT h.pid FROM held h WHERE h.key = $1)`
	terminate = `SELECT count(pg_terminate_backend(s.pid)) FROM @sessions s JOIN ($HELD) h ON h.key = s.conn AND h.pid = s.pid
		WHERE s.conn::text = ANY($1)`
)

// advisoryStore implements connlease.Store.
type advisoryStore struct{ b *Advisory }

var _ connlease.Store = advisoryStore{}

// Setup makes sure that the tables exist.
func (s advisoryStore) Setup(ctx context.Context) error {
	b := s.b
	t := tables{
		pool: b.pool, backend: advisoryName, version: advisoryVersion, schema: b.schema, create: advisoryTables, sql: b.sql,
	}
	return tooOld(t.ensure(ctx))
}

// Unavailable returns the error for the caller.
func (s advisoryStore) Unavailable(op string, mayHold bool, err error) error {
	if code(err) == codeNoRight {
		err = s.b.rights().lacking(s.b.leases.Life(), err)
	}
	for _, mine := range []error{ErrPooler, ErrOld} {
		if errors.Is(err, mine) && !errors.Is(err, backend.ErrUnsupported) {
			return fmt.Errorf("%s: %s: %w: %w", advisoryName, op, err, backend.ErrUnsupported)
		}
	}
	return unavailableAt(advisoryName, op, mayHold, err)
}

// left returns the time left, which is positive for a lease that is held.
func left(micros int64) time.Duration {
	return max(time.Duration(micros)*time.Microsecond, time.Millisecond)
}

func modeOf(shared bool) backend.Mode {
	if shared {
		return backend.Shared
	}
	return backend.Exclusive
}

// Look returns what is known of the locks.
func (s advisoryStore) Look(ctx context.Context, names []string) (map[string]backend.LockInfo, error) {
	rows, err := s.b.pool.Query(ctx, s.b.sql(look), names)
	if err != nil {
		return nil, err //nolint:wrapcheck // see unavailable
	}
	defer rows.Close()
	all := make(map[string]backend.LockInfo)
	for rows.Next() {
		var name string
		var shared, held bool
		var n, micros int64
		h := backend.Holder{Permits: 1}
		if err := rows.Scan(&name, &h.Lease, &h.Session, &h.Owner, &h.Note, &shared, &h.Since, &n, &micros, &held); err != nil {
			return nil, err //nolint:wrapcheck // see unavailable
		}
		h.Mode, h.Left = modeOf(shared), left(micros)
		info := all[name]
		info.Name = name
		if held {
			h.Token = fence.Token(n) //nolint:gosec // a sequence counts up from above 0
			info.Token, info.Holders = max(info.Token, h.Token), append(info.Holders, h)
			if !shared {
				info.Limit = 1
			}
		} else {
			info.Waiters = append(info.Waiters, backend.Waiter{
				Lease: h.Lease, Session: h.Session, Owner: h.Owner, Note: h.Note, Mode: h.Mode, Permits: 1, Since: h.Since,
			})
		}
		all[name] = info
	}
	return all, rows.Err()
}

// texts returns the rows of a query with one column.
func (s advisoryStore) texts(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := s.b.pool.Query(ctx, s.b.sql(query), args...)
	if err != nil {
		return nil, err //nolint:wrapcheck // see unavailable
	}
	return pgx.CollectRows(rows, pgx.RowTo[string]) //nolint:wrapcheck // see unavailable
}

// Names lists locks that are held.
func (s advisoryStore) Names(ctx context.Context, req backend.ListRequest, limit int) ([]string, error) {
	return s.texts(ctx, listHeld, req.After, req.Prefix, limit)
}

// Mark asks for the release of leases, and raises the token. A lease that had the lock at that
// time and whose row is not committed has a lower token, and is not visible. A later Mark, with
// Below, waits for it.
func (s advisoryStore) Mark(ctx context.Context, m connlease.Mark) (fence.Token, []connlease.Marked, error) {
	if m.Below > 0 {
		if err := s.landed(ctx, s.b.key(m.Name)); err != nil {
			return 0, nil, err
		}
	}
	for n := 1; ; n++ {
		token, hit, err := s.mark(ctx, m)
		s.b.notifier.refused(err)
		if err == nil || n == mostTimes || !transient(err) {
			return token, hit, err
		}
	}
}

// landed waits for the end of the transactions that the present holders of the lock are in. Where
// one takes long, its client was cut off in the middle of it, or the commit waits for something.
// Its connection stays, because it may have acquired the lock after the token was drawn.
func (s advisoryStore) landed(ctx context.Context, key int64) error {
	all, err := s.texts(ctx, inFlight, key)
	if err != nil || len(all) == 0 {
		return err
	}
	return connlease.Await(ctx, func(late bool) (bool, error) {
		now, err := s.texts(ctx, inFlight, key)
		all = slices.DeleteFunc(all, func(number string) bool { return !slices.Contains(now, number) })
		if err == nil && len(all) > 0 && late {
			err = errInFlight
		}
		return len(all) == 0, err
	})
}

var errInFlight = errors.New("the transaction of a holder of the lock does not end: retry the break")

func (s advisoryStore) mark(ctx context.Context, m connlease.Mark) (fence.Token, []connlease.Marked, error) {
	var token fence.Token
	var hit []connlease.Marked
	rows, err := s.b.pool.Query(ctx, s.b.sql(mark), m.Name, string(m.Lease), m.Reason, s.b.sql("@tokens"), int64(m.Below), s.b.notifier.sends()) //nolint:gosec // it came from there
	if err != nil {
		return 0, nil, err //nolint:wrapcheck // see unavailable
	}
	defer rows.Close()
	for rows.Next() {
		x := connlease.Marked{Holder: backend.Holder{Permits: 1}}
		var shared bool
		var micros int64
		var told *string
		err := rows.Scan(&token, &x.Lease, &x.Session, &x.Owner, &x.Note, &shared, &x.Token, &x.Since, &x.Conn, &micros, &x.Before, &told)
		if err != nil {
			return 0, nil, err //nolint:wrapcheck // see unavailable
		}
		if x.Lease != "" { // otherwise there is none, and this is the token
			x.Mode, x.Left = modeOf(shared), left(micros)
			hit = append(hit, x)
		}
	}
	return token, hit, rows.Err()
}

// Terminate ends those of the connections that have locks.
func (s advisoryStore) Terminate(ctx context.Context, conns []string) error {
	_, err := s.b.pool.Exec(ctx, s.b.sql(terminate), conns)
	return err //nolint:wrapcheck // see unavailable
}

// Migrate creates the schema and its tables where they do not exist. A role without that
// privilege needs another role to create them, and to grant it what docs/backends/postgres+advisory.md
// lists under "Least rights". Migrate does nothing when they exist.
//
// Errors: *backend.UnavailableError, with ErrNoSchema where the role may not create them;
// ErrNewer, ErrOld, ErrPooler and ErrEncoding, which are backend.ErrUnsupported; ErrClosed; ctx's
// cause.
func (b *Advisory) Migrate(ctx context.Context) error { return b.leases.Ready(ctx, "migrate") }
