// Package connlease is the common part of backends whose locks belong to a connection, as
// PostgreSQL's advisory locks and MySQL's user locks do: sessions, a queue in this process for
// each lock, waiters, breaks. A backend adds the statements (Store, Conn).
//
// # Who decides
//
// Across processes the database decides who may have a lock: it grants a lock to one connection
// only. It grants a lock to the same connection as often as that tries, though. So within a
// session the rules are applied here (backend.Admit), and the database is asked only for what
// they admit. Two sessions have two connections.
//
// # One connection, and never a statement that waits
//
// All locks of a session are on one connection, which one goroutine uses. It sends together what
// has gathered, so that callers share a round trip. In between it listens to the server, so that
// it notices the end of the connection immediately. A statement that waits for a lock would keep
// everything else, renewals too, from the connection. So locks are only tried. A waiter is woken
// by a notification where the database has notifications, and polls now and then in any case.
//
// No statement is ever cancelled: whether it had acquired the lock by then would be unknown. When
// its answer does not arrive, the connection is given up, and the session with it.
//
// # The end
//
// A session ends here when it was not renewed for its TTL, and the locks are released explicitly.
// When this process cannot do that, because it is stopped or cut off, the server ends a
// connection on which nothing arrived for that time. When the process dies the server notices
// immediately. Either way the database frees what the connection held, and never before.
//
// # Rows
//
// The holder of a lock, and its token, are in a table, for people and for breaks. No lock depends
// on it: a row counts only while the database itself reports that the connection which wrote it
// has the lock.
package connlease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Store is what differs from one database to another. A method makes one attempt. Errors are
// those of the client library, unless stated otherwise. Methods are safe for concurrent use.
type Store interface {
	// Setup makes sure that the database can be used. It is called before anything else, until it
	// has succeeded once.
	Setup(ctx context.Context) error
	// Connect makes the connection of a session. The methods of the connection call hear, in the
	// goroutine of their caller, with what the server sends without a request.
	Connect(ctx context.Context, id backend.SessionID, ttl time.Duration, hear func(Note)) (Conn, error)
	// Look returns what is known of those of the locks that are held or waited for. Other locks are
	// not in the map.
	Look(ctx context.Context, names []string) (map[string]backend.LockInfo, error)
	// Names lists locks that are held, in order, up to the limit.
	Names(ctx context.Context, req backend.ListRequest, limit int) ([]string, error)
	// Mark asks the connections that hold these leases of a lock to release them. It raises the token, or
	// keeps Mark.Below. A lease that is held and not visible yet is found by a later Mark with
	// Below.
	Mark(ctx context.Context, m Mark) (fence.Token, []Marked, error)
	// Terminate ends those of the connections that have locks.
	Terminate(ctx context.Context, conns []string) error
	// Unavailable returns the error for the caller. mayHold: the request may have been executed
	// all the same.
	Unavailable(op string, mayHold bool, err error) error
}

// Conn is a connection that has locks. One goroutine uses it.
type Conn interface {
	// Do executes the work. After an error the connection is unusable, and all that it holds is
	// lost. What the database can refuse without that is reported with Work.WithoutTry.
	Do(ctx context.Context, w *Work) error
	// Wait waits until the server sends something or ctx ends, both without an error. An error
	// means that the connection is gone.
	Wait(ctx context.Context) error
	// Close closes the connection and does not wait for the server.
	Close()
}

// Note is something that the server sends without a request.
type Note struct {
	// Wake is the name of a lock that may be free now; empty: none.
	Wake string
	// Marked: a lease of the session was marked.
	Marked bool
}

// Key identifies a lease.
type Key = lockstate.Key

// Work is what is sent over a connection together. It is executed in the order of the fields.
type Work struct {
	// Left is after how long the server is to end the connection unless something more arrives.
	Left time.Duration
	// Free are leases to release. Waiters of other connections are woken.
	Free []*backend.AcquireRequest
	// Leave are places in the queue to be given up. Waiters of other connections are woken.
	Leave []Key
	// End: everything is released, and nothing follows.
	End bool
	// Renew: the session lives for its TTL from now on.
	Renew bool
	// Look: read what was marked. A renewal does so, too.
	Look bool
	// Try are locks to be acquired, each for another lease.
	Try []*Try

	// Marked are the leases that were found to be marked.
	Marked []Told

	// What the session has to settle.
	locks   []string // those with requests in Try, or behind these
	done    []func() // answer the callers of Release and Renew
	refused []*Try   // Try, where the database refused it as a whole
	reason  error    // why it did
}

// WithoutTry removes from the work what is new, which the database refused for the reason. It leaves
// what remains to be done, and what the connection has is known.
func (w *Work) WithoutTry(reason error) {
	w.Try, w.refused, w.reason = nil, w.Try, reason
}

// UndoForeign calls giveBack for what was acquired while another connection, which was faster, wrote the
// row of the same lease: it was granted there, and there is no token for it here.
func (w *Work) UndoForeign(giveBack func(*backend.AcquireRequest) error) error {
	for _, t := range w.Try {
		if !t.Granted || t.Token != 0 {
			continue
		}
		if err := giveBack(t.Req); err != nil {
			return err
		}
		t.Granted, t.Foreign = false, true
	}
	return nil
}

// Told is the report to the session about a lease that was marked.
type Told struct {
	Key
	Reason string
}

// Try is one attempt to acquire a lock.
type Try struct {
	Req *backend.AcquireRequest
	// Queue: queue it when it is refused, to be woken. Stores that cannot wake do nothing.
	Queue bool
	// Behind: queue it without a try, because this connection has what it waits for. Only for
	// stores that wake.
	Behind bool

	// Granted: the connection has the lock, and Token is its token.
	Granted bool
	Token   fence.Token
	Since   time.Time
	// Foreign: another connection has, or had, a lease of this name and ID.
	Foreign bool

	of      *lease
	byTimer bool // not because of a wake-up
}

// Mark selects the leases of a lock to be released, because it is broken.
type Mark struct {
	Name   string
	Lease  backend.LeaseID // empty: all of the lock
	Reason string
	// Below is the token of an earlier Mark. That token stays, and leases with a lower one are
	// marked, also those that were not visible then. 0: a new token, and all leases.
	Below fence.Token
}

// Marked is a lease that was marked.
type Marked struct {
	backend.Holder
	Conn string // that holds it, in the store's notation
	// Before: it was marked already. The caller that marked it reports it; this one only waits
	// for its end.
	Before bool
}
