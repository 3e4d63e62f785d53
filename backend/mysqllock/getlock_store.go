package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
)

//go:embed getlock.sql
var getlockTables string

const getlockVersion = 1

const (
	// What is held: the connection that wrote the row is there, and has the lock.
	outLeases = ` FROM @leases e JOIN @sessions s ON s.conn = e.conn WHERE IS_USED_LOCK(s.conn) = s.id AND IS_USED_LOCK(e.lockname) = s.id`
	lookOut   = `SELECT e.name, e.conn, e.lease, s.session, e.owner, e.note, e.token, e.since, s.expires - $NOW` + outLeases
	namesOut  = `SELECT DISTINCT e.name` + outLeases + ` AND e.name > ? AND LEFT(e.name, ?) = ? ORDER BY e.name LIMIT ?`
	bumpToken = `INSERT INTO @leases (name, lease, lockname, conn, owner, note, since) VALUES ('', ?, '', '', '', '', $NOW)`
	// Where a lease has that token, the counter is above it.
	raiseToken = `INSERT INTO @leases (token, name, lease, lockname, conn, owner, note, since) VALUES ($NOW, '', ?, '', '', '', '', $NOW)
		ON DUPLICATE KEY UPDATE name = name`
	bumped    = `SELECT LAST_INSERT_ID()`
	unbump    = `DELETE FROM @leases WHERE name = '' AND lease = ?`
	markLease = `UPDATE @leases SET marked = TRUE, reason = ? WHERE name = ? AND lease = ? AND conn = ? AND NOT marked`
	// marks is 0 where the lease was marked already: the reason of that one stays.
	marks = `SELECT ROW_COUNT()`
	// Who has a user lock, and whether that connection has a row for it.
	holderOf = `SELECT IS_USED_LOCK(?), EXISTS (SELECT 1 FROM @leases e JOIN @sessions s ON s.conn = e.conn
		WHERE e.lockname = ? AND s.id = IS_USED_LOCK(e.lockname) AND IS_USED_LOCK(s.conn) = s.id)`
	killHolder = `KILL IS_USED_LOCK(?)`
	getMeta    = `SELECT version, $READONLY, @@global.innodb_flush_log_at_trx_commit FROM @meta WHERE id = 1`
	putMeta    = `INSERT INTO @meta (id, version) VALUES (1, ?) ON DUPLICATE KEY UPDATE id = id`
)

// getlockStore implements connlease.Store.
type getlockStore struct{ b *UserLocks }

var _ connlease.Store = getlockStore{}

// Setup makes sure that the tables exist.
func (s getlockStore) Setup(ctx context.Context) error {
	t := tables{
		db: s.b.db, backend: getlockName, version: getlockVersion, read: getMeta, meta: putMeta,
		sql: s.b.sql, create: getlockTables,
	}
	return t.ensure(ctx)
}

// Unavailable returns the error for the caller.
func (s getlockStore) Unavailable(op string, mayHold bool, err error) error {
	return unavailableAt(getlockName, op, mayHold, s.b.rights().lacking(s.b.leases.Life(), err))
}

// Look returns what is known of the locks.
func (s getlockStore) Look(ctx context.Context, names []string) (map[string]backend.LockInfo, error) {
	all := make(map[string]backend.LockInfo)
	q := new(batch)
	q.query(func(r *sql.Rows) error {
		var name, conn string
		h, err := scanHolder(r, &name, &conn)
		all[name] = backend.LockInfo{Name: name, Limit: 1, Token: h.Token, Holders: append(all[name].Holders, h)}
		return err
	}, s.b.sql(lookOut)+" AND e.name IN (?) ORDER BY e.name, e.token", in(names))
	return all, q.run(ctx, s.b.db)
}

// scanHolder reads the columns of lookOut.
func scanHolder(r *sql.Rows, name, conn *string) (backend.Holder, error) {
	var token, since, left int64
	h := backend.Holder{Permits: 1}
	err := r.Scan(name, conn, &h.Lease, &h.Session, &h.Owner, &h.Note, &token, &since, &left)
	h.Token, h.Since = fence.Token(token), time.UnixMicro(since) //nolint:gosec // it counts up from above 0
	h.Left = max(time.Duration(left)*time.Microsecond, time.Millisecond)
	return h, err //nolint:wrapcheck // see unavailable
}

// Names lists locks that are held.
func (s getlockStore) Names(ctx context.Context, req backend.ListRequest, limit int) ([]string, error) {
	var names []string
	q := new(batch)
	q.query(func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		names = append(names, name)
		return err //nolint:wrapcheck // see unavailable
	}, s.b.sql(namesOut), req.After, len(req.Prefix), req.Prefix, limit)
	return names, q.run(ctx, s.b.db)
}

// Mark asks for the release of leases, and raises the token first: the victims are those with a
// lower one. The row of a connection that had the lock by then may not exist yet. Mark waits for
// it where the lock is to be taken from any holder.
func (s getlockStore) Mark(ctx context.Context, m connlease.Mark) (fence.Token, []connlease.Marked, error) {
	token, err := m.Below, error(nil)
	if token == 0 {
		token, err = s.raise(ctx)
	}
	if err == nil && m.Lease == "" {
		err = s.landed(ctx, s.b.lockName(m.Name))
	}
	if err != nil {
		return 0, nil, err
	}
	var hit []connlease.Marked
	q := new(batch)
	q.query(func(r *sql.Rows) error {
		var name, conn string
		h, err := scanHolder(r, &name, &conn)
		if h.Token < token && (m.Lease == "" || m.Lease == h.Lease) {
			hit = append(hit, connlease.Marked{Holder: h, Conn: conn})
		}
		return err
	}, s.b.sql(lookOut)+" AND e.name = ? ORDER BY e.token", m.Name)
	if err := q.run(ctx, s.b.db); err != nil {
		return 0, nil, err
	}
	for i := range hit {
		if err := s.mark(ctx, m, &hit[i]); err != nil {
			return 0, nil, err
		}
	}
	return token, hit, nil
}

var errNotLanded = errors.New("another client acquired the lock and has not recorded its lease yet: retry the break")

// raise draws a token.
func (s getlockStore) raise(ctx context.Context) (fence.Token, error) {
	var token int64
	nonce := rand.Text()
	q := new(batch)
	q.exec(s.b.sql(bumpToken), nonce)
	q.query(func(r *sql.Rows) error { return r.Scan(&token) }, bumped)
	q.exec(s.b.sql(unbump), nonce)
	err := q.run(ctx, s.b.db)
	return fence.Token(token), err //nolint:gosec // it counts up from above 0
}

// landed waits until the connection that has the user lock has its row. One for which that takes
// long was cut off in the middle of its work, or came after the token was drawn: it keeps its
// connection.
func (s getlockStore) landed(ctx context.Context, lockName string) error {
	var whose int64
	return connlease.Await(ctx, func(late bool) (bool, error) {
		var id sql.NullInt64
		var has bool
		q := new(batch)
		q.query(func(r *sql.Rows) error { return r.Scan(&id, &has) }, s.b.sql(holderOf), lockName, lockName)
		err := q.run(ctx, s.b.db)
		if err != nil || has || !id.Valid || whose != 0 && id.Int64 != whose {
			return true, err
		}
		if whose = id.Int64; late {
			err = errNotLanded
		}
		return false, err
	})
}

// mark marks one lease. Another client that marks it, or its holder, may have the row locked.
func (s getlockStore) mark(ctx context.Context, m connlease.Mark, x *connlease.Marked) error {
	for n := 1; ; n++ {
		q := new(batch)
		q.exec(s.b.sql(markLease), m.Reason, m.Name, string(x.Lease), x.Conn)
		q.query(func(r *sql.Rows) error {
			var marked int
			err := r.Scan(&marked)
			x.Before = marked == 0
			return err //nolint:wrapcheck // see unavailable
		}, marks)
		err := q.run(ctx, s.b.db)
		if err == nil || n >= mostTries || !transient(err) && code(err) != codeLockTimeout {
			return err
		}
	}
}

// Terminate ends those of the connections that have locks.
func (s getlockStore) Terminate(ctx context.Context, conns []string) error {
	const noSuchThread = 1094 // it is gone
	for _, conn := range conns {
		if _, err := s.b.db.ExecContext(ctx, killHolder, conn); err != nil && code(err) != noSuchThread {
			return err //nolint:wrapcheck // see unavailable
		}
	}
	return nil
}

// Migrate creates the tables where they do not exist. A user without that privilege needs another
// user to create them, and to grant it what docs/backends/mysql+getlock.md lists under "Least rights".
// Migrate does nothing when they exist.
//
// Errors: *backend.UnavailableError, with ErrNoSchema where the user may not create them, and
// with ErrReadOnly; ErrNewer, ErrGalera and ErrForgetful, which are backend.ErrUnsupported;
// ErrClosed; ctx's cause.
func (b *UserLocks) Migrate(ctx context.Context) error { return b.leases.Ready(ctx, "migrate") }
