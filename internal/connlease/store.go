// Package connlease is what backends have in common whose locks belong to a connection, as
// PostgreSQL's advisory locks and MySQL's user locks do: sessions, a line in this process
// for each lock, waiters, breaks. A backend adds the statements (Store, Conn).
//
// # Who decides
//
// Whether a lock may be had across processes, the database says: it gives a lock to one
// connection only. It gives a lock to the same connection as often as it is asked, though.
// So within a session the rules are applied here (backend.Admit), and the database is asked
// only for what they let through. Two sessions have two connections.
//
// # One connection, and never a statement that waits
//
// All locks of a session are on one connection, and one goroutine has it. It sends what has
// come together, so that callers share a round trip; in between it listens for what the
// server says, so that the end of the connection is noticed at once. A statement that waits
// for a lock would keep everything else, renewals too, from the connection: so locks are
// only tried. A waiter is woken by a notification where the database has such, and asks
// now and then in any case.
//
// No statement is ever cancelled: whether it had the lock by then would not be known. When
// its answer does not come, the connection is given up, and with it the session.
//
// # The end
//
// A session ends here when nobody renewed it for its TTL, and the locks are given back in
// words. When this process cannot do that, because it is stopped or cut off, the server
// ends a connection over which nothing came for that time. When the process dies the server
// sees it at once. Either way the database frees what the connection had, and never before.
//
// # Rows
//
// Who holds a lock, with which token, is in a table, for people and for breaks. No lock
// depends on it: a row counts only while the database itself says that the connection which
// wrote it has the lock.
package connlease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Store is what differs from one database to another. A method makes one attempt. Errors
// are those of the client library, unless it says otherwise. Methods may be called at once.
type Store interface {
	// Setup sees to it that the database can be used. It is called before anything else,
	// until it worked once. Its error is of a kind of package backend.
	Setup(ctx context.Context) error
	// Connect makes the connection of a session. hear is called, from any goroutine, with
	// what the server says of itself.
	Connect(ctx context.Context, id backend.SessionID, ttl time.Duration, hear func(Note)) (Conn, error)
	// Look tells what is known of the locks that are held or waited for. Others are not in
	// the answer.
	Look(ctx context.Context, names []string) (map[string]backend.LockInfo, error)
	// Names lists locks that are held, in order, up to the limit.
	Names(ctx context.Context, req backend.ListRequest, limit int) ([]string, error)
	// Mark asks the connections that have these leases to give them back, and raises the
	// token, or keeps to Mark.Below. A lease that is out and cannot be seen yet is found by a
	// later Mark with Below.
	Mark(ctx context.Context, m Mark) (fence.Token, []Marked, error)
	// Out gives those of the leases that are out still.
	Out(ctx context.Context, all []Marked) ([]Marked, error)
	// Terminate ends the connections that have the leases.
	Terminate(ctx context.Context, all []Marked) error
	// Unavailable is the error as it is told. mayHold: what was asked for may have been
	// done all the same.
	Unavailable(op string, mayHold bool, err error) error
}

// Conn is a connection that has locks. One goroutine uses it.
type Conn interface {
	// Do does the work. After an error the connection is of no use, and all that it has is
	// lost: what can be refused without that is told in Work.Refused.
	Do(ctx context.Context, w *Work) error
	// Wait waits until the server says something or ctx ends: both are no error. An error
	// says that the connection is gone.
	Wait(ctx context.Context) error
	// Close closes the connection and does not wait for the server.
	Close()
}

// Note is something that the server says without being asked.
type Note struct {
	// Wake is the name of a lock that may be free now; empty: none.
	Wake string
	// Marked: a lease of the session was marked.
	Marked bool
}

// Key is what a lease is known by: the same ID with another name is another lease.
type Key struct {
	Name string
	ID   backend.LeaseID
}

// Work is what is sent over a connection together. It is done in the order of the fields.
type Work struct {
	// Left is when the server is to end the connection unless something more comes.
	Left time.Duration
	// Free are leases to give back. Waiters of other connections are woken.
	Free []*backend.AcquireRequest
	// Leave are places in line to be given up.
	Leave []Key
	// End: everything is given back, and nothing follows.
	End bool
	// Renew: the session lives for its TTL from now on.
	Renew bool
	// Look: see what was marked. A renewal looks, too.
	Look bool
	// Try are locks to be had, each of another lease.
	Try []*Try
	// Join are leases that are put in line and not tried: this connection has what they wait
	// for. Stores that cannot wake do nothing.
	Join []*backend.AcquireRequest

	// Marked are the leases that were found to be marked.
	Marked []Told
	// Refused is why the database would not do Try and Join, which are not done then, none of
	// them. All else is, and what the connection has is known.
	Refused error
}

// WithoutNew is the work without what is new, Try and Join: what is left to do when the
// database refused those, for the reason.
func (w *Work) WithoutNew(reason error) {
	w.Try, w.Join, w.Refused = nil, nil, reason
}

// Told is what the session is told of a lease that was marked.
type Told struct {
	Key
	Reason   string
	Released bool // by somebody who knows its ID, through another value
}

// Try is one question for a lock.
type Try struct {
	Req *backend.AcquireRequest
	// First: it was not asked before. Then Foreign is of interest, too, when it is refused.
	First bool
	// Queue: it has to be woken when it is refused. Stores that cannot wake do nothing.
	Queue bool

	// Granted: the connection has the lock, and this is the token.
	Granted bool
	Token   fence.Token
	Since   time.Time
	// Foreign: another connection has, or had, a lease of this name and ID.
	Foreign bool
}

// Mark says which leases to give back.
type Mark struct {
	Name   string
	Lease  backend.LeaseID // empty: all of the lock
	Reason string
	// Released: it is not a loss.
	Released bool
	// Below is the token of an earlier Mark: it stays, and leases with a lower one are marked,
	// also those that could not be seen then. 0: a new token, and all leases.
	Below fence.Token
}

// Marked is a lease that was marked.
type Marked struct {
	backend.Holder
	Key  Key
	Conn string // the connection, in words of the store
	// Before: it was marked already. Who marked it names it; this caller only waits for its end.
	Before bool
}
