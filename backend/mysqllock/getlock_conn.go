package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
)

const (
	// The server ends a connection on which nothing arrived for that many seconds. That comes
	// after the explicit end.
	restTime = `SET SESSION wait_timeout = %d`
	// Only a client that marks a row keeps it locked, and not for long.
	lockSettings   = `SET SESSION innodb_lock_wait_timeout = 10`
	getLock        = `GET_LOCK('%s', 0)`
	isThere        = `, EXISTS (SELECT 1 FROM @leases WHERE name = ? AND lease = ?)`
	releaseLock    = `RELEASE_LOCK('%s')`
	releaseAll     = `DO RELEASE_ALL_LOCKS()`
	addSession     = `INSERT INTO @sessions (conn, id, session, expires, made) VALUES (?, CONNECTION_ID(), ?, $NOW + ?, $NOW)`
	extendSession  = `UPDATE @sessions SET expires = $NOW + ? WHERE conn = ?`
	dropSession    = `DELETE FROM @sessions WHERE conn = ?`
	dropLease      = `DELETE FROM @leases WHERE name = ? AND lease = ? AND conn = ?`
	dropLeases     = `DELETE FROM @leases WHERE conn = ?`
	readMarked     = `SELECT name, lease, reason FROM @leases WHERE conn = ? AND marked`
	addLease       = `INSERT INTO @leases (name, lease, lockname, conn, owner, note, since) VALUES (?, ?, ?, ?, ?, ?, $NOW) ON DUPLICATE KEY UPDATE name = name`
	addedLease     = `SELECT ROW_COUNT(), LAST_INSERT_ID(), $NOW`
	deadSessions   = `SELECT conn FROM @sessions WHERE made < $NOW - 60000000 AND COALESCE(IS_USED_LOCK(conn) <> id, TRUE) LIMIT 1000`
	mostTries      = 20
	secondsToSpare = 1
)

var (
	errNoLock = errors.New("the server did not answer GET_LOCK, and was asked to end the connection")
	errNotHad = errors.New("the connection no longer holds a lock that it had acquired")
	errTaken  = errors.New("another connection holds the lock with this connection's name")
)

// getlockConn is a connection with the locks of a session.
type getlockConn struct {
	b    *UserLocks
	name string // a user lock of its own
	ttl  time.Duration
	db   *sql.DB // with one connection
	conn *sql.Conn
	wire *wire
}

// Connect establishes the connection of a session. The server sends nothing by itself.
func (s getlockStore) Connect(ctx context.Context, id backend.SessionID, ttl time.Duration, _ func(connlease.Note)) (connlease.Conn, error) {
	c := &getlockConn{b: s.b, name: "hc" + strings.ToLower(rand.Text()), ttl: ttl}
	conf := s.b.conf.Clone()
	dial := conf.DialFunc
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conf.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		made, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.wire = newWire(made)
		return c.wire, nil
	}
	made, err := configure(conf, s.b.leases.Life(), &s.b.open)
	if err != nil {
		return nil, err
	}
	c.db = sql.OpenDB(made)
	c.db.SetMaxOpenConns(1)
	if c.conn, err = c.db.Conn(ctx); err != nil {
		_ = c.db.Close()
		return nil, err //nolint:wrapcheck // see unavailable
	}
	if err := c.hello(ctx, id); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// hello registers the connection, and removes the rows of those that are gone.
func (c *getlockConn) hello(ctx context.Context, id backend.SessionID) error {
	var got sql.NullBool
	var dead []string
	q := new(batch)
	q.exec(lockSettings)
	c.rest(q, c.ttl)
	q.query(func(r *sql.Rows) error { return r.Scan(&got) }, "SELECT "+fmt.Sprintf(getLock, c.name))
	q.query(func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		dead = append(dead, name)
		return err //nolint:wrapcheck // see unavailable
	}, c.b.sql(deadSessions))
	if err := q.run(ctx, c.conn); err != nil {
		return err
	}
	if !got.Bool {
		return errTaken
	}
	return c.write(ctx, func(q *batch) {
		for _, name := range dead {
			q.exec(c.b.sql(dropLeases), name)
			q.exec(c.b.sql(dropSession), name)
		}
		nonce := rand.Text()
		q.exec(c.b.sql(raiseToken), nonce)
		q.exec(c.b.sql(unbump), nonce)
		q.exec(c.b.sql(addSession), c.name, string(id), c.ttl.Microseconds())
	})
}

// rest sets when the server ends the connection unless something more arrives.
func (c *getlockConn) rest(q *batch, left time.Duration) {
	seconds := (max(left, 0) + time.Second - 1) / time.Second
	q.exec(fmt.Sprintf(restTime, seconds+secondsToSpare))
}

// write executes statements in one transaction, and retries it after a conflict with another one.
// No lock depends on it. A server that became a replica has other locks than its primary, and a
// user who may write there does not notice. Then it returns an error, and the connection has to
// be closed.
func (c *getlockConn) write(ctx context.Context, fill func(*batch)) error {
	for n := 1; ; n++ {
		q := new(batch)
		q.exec(begin)
		q.query(func(r *sql.Rows) error {
			var readOnly bool
			err := r.Scan(&readOnly)
			return primary(readOnly, err)
		}, c.b.sql(`SELECT $READONLY`))
		fill(q)
		q.exec(commit)
		err := q.run(ctx, c.conn)
		if err == nil || n >= mostTries || !transient(err) && code(err) != codeLockTimeout {
			return err
		}
		if _, err := c.conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			return err //nolint:wrapcheck // the session has ended
		}
	}
}

// Do executes the work: the locks in one round trip, and their rows in another. Where the server
// refuses the rows, locks that are new are released. When anything else fails the connection has
// to be closed, because what it holds is then unknown.
func (c *getlockConn) Do(ctx context.Context, w *connlease.Work) error {
	if err := c.lock(ctx, w); err != nil {
		return err
	}
	granted := 0
	for _, t := range w.Try {
		if t.Granted {
			granted++
		}
	}
	if len(w.Free)+granted == 0 && !w.End && !w.Renew && !w.Look {
		return nil
	}
	err := c.note(ctx, w)
	if granted > 0 && answered(err) {
		if failed := c.takeBack(ctx, w); failed != nil {
			return errors.Join(err, failed)
		}
		w.WithoutTry(err)
		err = c.note(ctx, w)
	}
	if err != nil {
		return err
	}
	return w.UndoForeign(func(l *backend.AcquireRequest) error { return c.giveBack(ctx, l) })
}

// note writes the rows for what was done.
func (c *getlockConn) note(ctx context.Context, w *connlease.Work) error {
	return c.write(ctx, func(q *batch) {
		w.Marked = nil
		for _, l := range w.Free {
			q.exec(c.b.sql(dropLease), l.Name, string(l.Lease), c.name)
		}
		if w.End {
			q.exec(c.b.sql(dropLeases), c.name)
			q.exec(c.b.sql(dropSession), c.name)
			return
		}
		if w.Renew {
			q.exec(c.b.sql(extendSession), c.ttl.Microseconds(), c.name)
		}
		if w.Renew || w.Look {
			c.look(q, w)
		}
		for _, t := range w.Try {
			if t.Granted {
				c.add(q, t)
			}
		}
	})
}

// takeBack releases the locks whose rows could not be written.
func (c *getlockConn) takeBack(ctx context.Context, w *connlease.Work) error {
	q := new(batch)
	q.exec("ROLLBACK")
	for _, t := range w.Try {
		if t.Granted {
			q.exec("DO " + fmt.Sprintf(releaseLock, c.b.lockName(t.Req.Name)))
		}
	}
	return q.run(ctx, c.conn)
}

// lock releases and tries locks, in that order.
func (c *getlockConn) lock(ctx context.Context, w *connlease.Work) error {
	q := new(batch)
	c.rest(q, w.Left)
	for _, l := range w.Free {
		q.query(func(r *sql.Rows) error {
			var had sql.NullBool
			if err := r.Scan(&had); err != nil {
				return err //nolint:wrapcheck // the session has ended
			}
			if !had.Bool {
				return errNotHad
			}
			return nil
		}, "SELECT "+fmt.Sprintf(releaseLock, c.b.lockName(l.Name)))
	}
	if w.End {
		q.exec(releaseAll)
	}
	for _, t := range w.Try {
		q.query(func(r *sql.Rows) error {
			var got sql.NullBool
			var there bool
			if err := r.Scan(&got, &there); err != nil {
				return err //nolint:wrapcheck // the session has ended
			}
			if !got.Valid {
				return errNoLock
			}
			t.Granted, t.Foreign = got.Bool, there && !got.Bool
			return nil
		}, "SELECT "+fmt.Sprintf(getLock, c.b.lockName(t.Req.Name))+c.b.sql(isThere), t.Req.Name, string(t.Req.Lease))
	}
	return q.run(ctx, c.conn)
}

func (c *getlockConn) look(q *batch, w *connlease.Work) {
	q.query(func(r *sql.Rows) error {
		var m connlease.Told
		err := r.Scan(&m.Name, &m.ID, &m.Reason)
		w.Marked = append(w.Marked, m)
		return err //nolint:wrapcheck // the session has ended
	}, c.b.sql(readMarked), c.name)
}

// add writes the row of a lease whose lock the connection already has. The number of the row is
// the token.
func (c *getlockConn) add(q *batch, t *connlease.Try) {
	r := t.Req
	q.exec(c.b.sql(addLease), r.Name, string(r.Lease), c.b.lockName(r.Name), c.name, r.Owner, r.Note)
	q.query(func(rows *sql.Rows) error {
		var made, token, since int64
		if err := rows.Scan(&made, &token, &since); err != nil {
			return err //nolint:wrapcheck // the session has ended
		}
		t.Token = 0
		if made == 1 {
			t.Token, t.Since = fence.Token(token), time.UnixMicro(since) //nolint:gosec // it counts up from above 0
		}
		return nil
	}, c.b.sql(addedLease))
}

// giveBack releases a lock by itself.
func (c *getlockConn) giveBack(ctx context.Context, l *backend.AcquireRequest) error {
	_, err := c.conn.ExecContext(ctx, "DO "+fmt.Sprintf(releaseLock, c.b.lockName(l.Name)))
	return err //nolint:wrapcheck // the session has ended
}

// Wait waits until the server closes the connection or ctx ends: it sends nothing else
// unrequested.
func (c *getlockConn) Wait(ctx context.Context) error {
	return c.wire.hungUp(ctx)
}

// Close closes the connection, and waits for nothing.
func (c *getlockConn) Close() {
	_ = c.wire.SetDeadline(time.Now().Add(hangUpTime))
	_ = c.db.Close()
	_ = c.conn.Close()
	_ = c.wire.Close()
}
