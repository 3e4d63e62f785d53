package sqllease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Store is what differs from one database to another: the statements. A method makes one attempt,
// and the caller retries. It returns the errors of the client library, which Fault classifies.
// Methods are safe for concurrent use.
type Store interface {
	// Migrate makes sure that the tables exist. It is called before anything else, until it has
	// succeeded once. Its error is of a kind of package backend.
	Migrate(ctx context.Context) error
	// Begin begins a transaction. It locks the rows of the locks in the order of the scope,
	// creating those that are missing, and takes Reserve numbers of each, which are above the last one and
	// above the microseconds of the server's clock. Then it reads
	// everything in the scope, in statements that see what was committed while it waited for a
	// row. The caller must end the transaction.
	Begin(ctx context.Context, s *Scope) (Tx, *View, error)
	// Read reads everything in the scope as it is, without locking rows. It reads Sessions after the
	// leases: so a session that lives lived while its leases were there.
	Read(ctx context.Context, s *Scope) (*View, error)
	// Quick executes what it can of requests for different locks, in one transaction: those for
	// which the conditions of Quick hold.
	Quick(ctx context.Context, q *Quick) error

	// OpenSession creates or confirms a session, and reports whether it lives.
	OpenSession(ctx context.Context, id backend.SessionID, ttl time.Duration, addr string) (bool, error)
	// Renew extends a session and timed leases, in one transaction.
	Renew(ctx context.Context, r *Renewals) error
	// LocksOf lists the locks in which a session has leases or places in the queue.
	LocksOf(ctx context.Context, id backend.SessionID) ([]string, error)
	// Names lists locks that have leases which have not expired, in order.
	Names(ctx context.Context, req backend.ListRequest) ([]string, error)
	// Sync returns when all that any statement has read before the call survives a crash. It
	// commits a write of its own, which follows all of that in the database's log. It does
	// nothing where statements read only what survives.
	Sync(ctx context.Context) error

	// Dead lists locks with something that has been over for at least age.
	Dead(ctx context.Context, age time.Duration) ([]string, error)
	// Sweep deletes what has been over for at least age. It examines the next SweepAtOnce of the locks
	// whose names are greater than after.
	Sweep(ctx context.Context, after string, age time.Duration) (*Swept, error)

	// Fault classifies an error.
	Fault(err error) Fault
	// Unavailable returns the error for the caller. mayHold: the request may have been executed
	// all the same.
	Unavailable(op string, mayHold bool, err error) error
	// Reset discards idle connections: one broke, and the others are no better.
	Reset()
}

// Tx is a transaction in progress.
type Tx interface {
	// Again locks sessions and timed leases, and reads them again, because they may have been
	// renewed. Of a lease only the end is read.
	Again(ctx context.Context, sessions []backend.SessionID, leases []Key) (*View, error)
	// Commit writes the changes and commits. refused means that nothing was changed. With any
	// other error the outcome is unknown.
	Commit(ctx context.Context, c *Changes) (refused bool, err error)
	// End rolls back what is not committed and returns the connection to the pool. It must not
	// wait for long. It is called once.
	End(ctx context.Context)
}

// Fault classifies an error for the decision whether to retry.
type Fault struct {
	// Answered: the server itself reported that the statement failed, so that nothing of its
	// transaction remains.
	Answered bool
	// Unsent: nothing was sent, or the server had closed the connection before it arrived.
	Unsent bool
	// Ended: the server itself reported that it closes the connection. A statement that was sent
	// may have been executed, but is not in transit any more.
	Ended bool
	// Transient: a retry of the same transaction may succeed.
	Transient bool
	// Locked: another client holds the row of a lock for too long.
	Locked bool
	// Broken: the connection broke, perhaps while it was idle, or it leads to a server that is
	// not the primary any more. A connection that could not be established is not broken.
	Broken bool
}

// Reserve is how many numbers of a lock a transaction takes, whether it needs them or not. A
// transaction that needs more writes the row again.
const Reserve = 64

// Scope is what a transaction is about, sorted, without duplicates.
type Scope struct {
	Names    []string            // of the locks
	Sessions []backend.SessionID // under which leases are requested
	Leases   []Key               // requested leases, which may have been abandoned
	Back     []Key               // leases, or places in the queue, to be released
	Kill     []backend.SessionID // sessions that may be ended
	// Listeners are sessions whose losses are read, too.
	Listeners []backend.SessionID
	// Front is up to which place the queue of each lock is to be read. The waiters behind it are counted,
	// except for Leases and Back. Without it the queues are read as a whole.
	Front map[string]int64
}

// Key identifies a lease.
type Key = lockstate.Key

// View is what was read.
type View struct {
	Now     time.Time // the server's clock, read when the rows were locked; zero: there is no row of meta
	Floor   int64     // at least as great as any number of a lock whose row was deleted
	Watched bool      // there are watchers
	Early   bool      // other clients see the transaction's commit before it survives a crash: see Store.Sync
	// Taken is the greatest number of each lock that the transaction may issue.
	Taken    map[string]int64
	Sessions []SessionRow
	Leases   []LeaseRow
	Rest     []RestRow // of the locks in Front
	Buried   []Key     // abandoned leases among those requested
	Losses   []backend.Loss
	// Tombs are the locks that have tombs of abandoned leases, in a store where that matters to
	// Quick.Known.
	Tombs []string
}

// RestRow describes the waiters of a lock that were not read.
type RestRow struct {
	Name  string
	Count int
	Limit int // of the shared ones; -1: there are none
}

// SessionRow is a row of the table of sessions.
type SessionRow struct {
	ID    backend.SessionID
	TTL   time.Duration
	Ends  time.Time
	Cause string // why it ended; empty: it has not ended
	Addr  string // the channel that is notified of its losses
}

// LeaseRow is a row of the table of leases.
type LeaseRow struct {
	Name    string
	Lease   backend.LeaseID
	Session backend.SessionID // empty: none
	Addr    string            // of the values that wait for it, with blanks between them
	Held    bool              // held; otherwise in the queue
	Place   int64             // in the queue or among the holders; a greater one is later
	Claim   backend.Claim
	Owner   string
	Note    string
	Timed   bool
	TTL     time.Duration // of a timed lease
	Token   int64
	Asked   time.Time
	Since   time.Time // of the grant
	Ends    time.Time // of a timed lease that is held; otherwise zero
	Waited  bool      // it was in the queue
	Thin    bool      // it is in the row of its lock: see Quick
}

// Changes is what a transaction writes, in this order. Everything is sorted.
type Changes struct {
	Now    time.Time
	Killed []SessionRow // ID and Cause; there may be no row yet
	Gone   []Key        // leases to be deleted
	Leases []LeaseRow   // there may be rows of them, which differ in what may change in a lease
	Lasts  []Last
	// Free are the locks that are left without leases. Whatever their rows have of a thin lease
	// is cleared, and the next lease may be thin.
	Free          []string
	Buried        []Key     // to be remembered for Remembered
	Losses        []LossRow // one may be there twice, of locks with the same lease ID
	Notifications []Notification
	Events        []backend.Event
	// Sessions, and timed leases, that shall live for their TTL from now on, and no longer. They
	// may have been renewed since they were read: the clock is read when their rows are locked.
	CutSessions []backend.SessionID
	CutLeases   []Key

	// inflated are thin leases that stay, as rows of the table of leases. They are written if
	// anything else is committed.
	inflated []LeaseRow
	cleared  bool // a thin lease has ended
}

// empty reports whether there is nothing to write. If so, a lock that was thin remains thin.
func (c *Changes) empty() bool {
	return !c.cleared && len(c.Killed)+len(c.Gone)+len(c.Leases)+len(c.Lasts)+len(c.Buried)+len(c.Losses)+len(c.Notifications)+len(c.Events)+len(c.CutSessions)+len(c.CutLeases) == 0
}

// Last is the last number of a lock that was issued.
type Last struct {
	Name string
	Last int64
}

// LossRow is a row of the table of losses.
type LossRow struct {
	backend.Loss
	Until time.Time
}

// Notification is a notification that the commit of the transaction sends to another value, in a
// database that can send notifications.
type Notification struct {
	Addr    string
	Payload string
}

// Swept is what a sweep has found and done.
type Swept struct {
	Names []string // the locks that were examined, in order
	// Dead are those whose thin lease seems to have expired: the session of such a lease has to be
	// locked before anything is concluded from it.
	Dead    []string
	Deleted int // rows of locks
}

// Remembered is how long what ended, or was abandoned, is kept from coming back: longer than a
// late request can be in transit.
const Remembered = 10 * time.Minute

// ClockSlack is how much longer than its TTL something may have to live before it is cut: clocks
// are corrected a little all the time.
const ClockSlack = time.Second

// Quick is requests for locks that are presumed uncontended: acquisitions, or releases.
//
// A lease is granted where the lock has no leases at all, dead or alive, there are no watchers,
// the lease was not abandoned and its session, if it has one, lives. The token is above all
// numbers of the lock, also those of rows that were swept, and above the microseconds of the server's
// clock. A lease is released where it is held and has not
// expired, there are no watchers, and the lock has no other leases.
//
// A store may keep such a lease in the row of the lock: the lock is thin then, and has no rows in
// the table of leases. An acquisition and a release are one statement each, which decides by that
// row alone: see thin_test.go. Begin inflates a thin lock: its lease is in the View, marked, and is
// written to the table of leases if it stays. A rollback leaves the lock thin.
type Quick struct {
	Acquire []LeaseRow // by the names of the locks, in whose order rows are locked
	Release []Key      // the same, when there are no acquisitions
	// Known are the locks whose rows are known to exist, and to have no tombs. They may have been
	// swept, or a lease abandoned, since.
	Known map[string]bool

	Granted  []QuickGrant
	Released []string
}

// QuickGrant is a lease that was granted.
type QuickGrant struct {
	Name  string
	Token int64
	Since time.Time
	Tombs bool // see View.Tombs
}

// Renewals is a renewal of a session and of timed leases, each once and in order, and its outcome.
type Renewals struct {
	Session backend.SessionID // empty: none
	Leases  []Key
	TTLs    []time.Duration // of the leases; 0: the one that the lease has

	SessionLost bool
	Lost        []backend.Loss  // to report to the session
	Renewed     map[Key]Renewed // a lease that is missing is lost
}

// Renewed is a lease that was renewed.
type Renewed struct {
	Token int64
	Left  time.Duration
}
