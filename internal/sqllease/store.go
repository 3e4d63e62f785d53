package sqllease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Store is what differs from one database to another: the statements. A method makes one
// attempt; trying again is not its business. Its errors are those of the client library;
// Fault says what they mean. Methods may be called at once.
type Store interface {
	// Migrate sees to it that the tables are there. It is called before anything else,
	// until it worked once. Its error is of a kind of package backend.
	Migrate(ctx context.Context) error
	// Begin begins a transaction: it locks the rows of the locks in the order of the
	// scope, or makes them, takes Reserve numbers of each, and then reads everything in the
	// scope in statements that see what was committed while a row was waited for. The
	// caller ends the transaction.
	Begin(ctx context.Context, s *Scope) (Tx, *View, error)
	// Read reads the leases of some locks as they are, without the rows being locked.
	Read(ctx context.Context, names []string) (*View, error)
	// Quick does what it can of requests that each are for another lock, in one
	// transaction: it locks the rows, and grants or deletes a lease where nothing stands
	// against it. See Quick.
	Quick(ctx context.Context, q *Quick) error

	// OpenSession makes a session or confirms it, and reports whether it lives.
	OpenSession(ctx context.Context, id backend.SessionID, ttl time.Duration, addr string) (bool, error)
	// Renew extends a session and timed leases, in one transaction.
	Renew(ctx context.Context, r *Renewals) error
	// LocksOf lists the locks in which a session has leases or places in line.
	LocksOf(ctx context.Context, id backend.SessionID) ([]string, error)
	// Names lists locks that have leases which are not over, in order.
	Names(ctx context.Context, req backend.ListRequest) ([]string, error)
	// Look reads what became of those who wait or listen.
	Look(ctx context.Context, g *Glance) error
	// Sync returns when all that any statement has read before it was called survives a
	// crash: it commits a write of its own, which is behind all that in the database's log. It
	// does nothing where statements never read anything else.
	Sync(ctx context.Context) error

	// Dead lists locks in which something was over so long ago.
	Dead(ctx context.Context, age time.Duration) ([]string, error)
	// Sweep deletes what was over so long ago. It looks at some of the locks, those after
	// the name, and gives the name to go on with; empty: that was all.
	Sweep(ctx context.Context, after string, age time.Duration) string

	// Fault says what an error means.
	Fault(err error) Fault
	// Unavailable is the error as it is told. mayHold: what was asked for may have been
	// done all the same.
	Unavailable(op string, mayHold bool, err error) error
	// Reset throws connections away that nobody uses: one broke, and the others are no
	// better.
	Reset()
}

// Tx is a transaction under way.
type Tx interface {
	// Again locks sessions and timed leases, and reads them again into the view: they may
	// have been renewed. Of the leases the end is read.
	Again(ctx context.Context, sessions []backend.SessionID, leases []Key) (*View, error)
	// Commit writes the changes and commits. When it is refused, nothing was changed; with
	// other errors that is not known.
	Commit(ctx context.Context, c *Changes) (refused bool, err error)
	// End rolls back what is not committed and gives the connection back. It must not
	// wait for long. It is called once.
	End(ctx context.Context)
}

// Fault is what an error means for those who may try again.
type Fault struct {
	// Answered: the server says itself that the statement failed, so that nothing of its
	// transaction remains.
	Answered bool
	// Unsent: nothing was sent, or the server had ended the connection before it came.
	Unsent bool
	// Ended: the server says itself that it ends the connection. What was sent may have
	// been done, but is not on its way any more.
	Ended bool
	// Transient: the same transaction may work when it is tried again.
	Transient bool
	// Locked: somebody else has the row of a lock for too long.
	Locked bool
	// Broken: the connection broke, perhaps while nobody used it, or it leads to a server that
	// is not the primary any more. One that could not be made is not broken.
	Broken bool
}

// Reserve is how many numbers of a lock a transaction takes, whether it needs them or
// not. One that needs more writes the row again.
const Reserve = 64

// Scope is what a transaction is about, sorted, without anything twice.
type Scope struct {
	Names    []string            // of the locks
	Sessions []backend.SessionID // that are asked under
	Leases   []Key               // that are asked for, and may have been abandoned
	Back     []Key               // leases, or places in line, that are given back
	Kill     []backend.SessionID // sessions that may be ended
	// Front is up to which place a line is to be read: what stands behind is counted, but
	// for Leases and Back. Lines of the other locks are read as they are.
	Front map[string]int64
}

// Key is what a lease is known by: the same ID with another name is another lease.
type Key struct {
	Name string
	ID   backend.LeaseID
}

// View is what was read.
type View struct {
	Now     time.Time // the server's clock, read when the rows were locked
	Floor   int64     // not less than any number of a lock whose row was deleted
	Watched bool      // somebody wants events
	Early   bool      // others see what the transaction commits before that survives: see Store.Sync
	// Taken is the greatest number of each lock that the transaction may give.
	Taken    map[string]int64
	Sessions []SessionRow
	Leases   []LeaseRow
	Rest     []RestRow // of the locks in Front
	Buried   []Key     // abandoned leases among those asked for
}

// RestRow is what stands in the line of a lock and was not read.
type RestRow struct {
	Name  string
	Count int
	Limit int // of those that are shared; -1: none is
}

// SessionRow is a row of the table of sessions.
type SessionRow struct {
	ID    backend.SessionID
	TTL   time.Duration
	Ends  time.Time
	Cause string // why it ended; empty: it was not ended
	Addr  string // of who hears of its losses
}

// LeaseRow is a row of the table of leases.
type LeaseRow struct {
	Name    string
	Lease   backend.LeaseID
	Session backend.SessionID // empty: none
	Addr    string            // of who waits for it
	Held    bool              // out; otherwise in line
	Place   int64             // in line or among the holders; a greater one is later
	Claim   backend.Claim
	Note    string
	Timed   bool
	TTL     time.Duration // of a timed lease
	Token   int64
	Asked   time.Time
	Since   time.Time // of the grant
	Ends    time.Time // of a timed lease that is out; otherwise zero
	Waited  bool      // it stood in line
	Joined  bool      // by re-entry
}

// Changes is what a transaction writes, in this order. Everything is sorted.
type Changes struct {
	Now     time.Time
	Killed  []SessionRow // ID and Cause; there may be no row yet
	Gone    []Key        // leases to be deleted
	Changed []LeaseRow   // but for what a lease never changes
	Fresh   []LeaseRow
	Lasts   []Last
	Buried  []Key // to be remembered for Remembered
	Losses  []LossRow
	Letters []Letter
	Events  []backend.Event
	// Sessions, and timed leases, that are to live for their TTL from now on, and not for
	// longer. They may have been renewed since they were read: the clock is read when their
	// rows are locked.
	CutSessions []backend.SessionID
	CutLeases   []Key
}

// empty reports whether there is nothing to write.
func (c *Changes) empty() bool {
	return len(c.Killed)+len(c.Gone)+len(c.Changed)+len(c.Fresh)+len(c.Lasts)+len(c.Buried)+len(c.Losses)+len(c.Letters)+len(c.Events)+len(c.CutSessions)+len(c.CutLeases) == 0
}

// Last is the last number of a lock that was given.
type Last struct {
	Name string
	Last int64
}

// LossRow is a row of the table of losses.
type LossRow struct {
	backend.Loss
	Until time.Time
}

// Letter is what another value is told when the transaction is committed, in a database
// that can do that.
type Letter struct {
	Addr    string
	Payload string
}

// Remembered is how long what ended, or was abandoned, is kept from coming back: longer
// than a late request can be on its way.
const Remembered = 10 * time.Minute

// ClockSlack is how much longer than its TTL something may have to live before it is cut:
// clocks are corrected a little all the time.
const ClockSlack = time.Second

// Quick is requests for locks that probably nobody else wants: acquisitions, or releases.
//
// A lease is granted where the lock has no leases at all, dead or alive, nobody watches,
// the lease was not abandoned and its session, if it has one, lives. The token is the first
// of the numbers reserved, and must be above the floor. A lease is deleted where it is out
// and not over, nobody watches, and the lock has no other leases.
type Quick struct {
	Names   []string // of all locks, sorted
	Acquire []LeaseRow
	Release []Key // when there are no acquisitions

	Granted  []QuickGrant
	Released []string
}

// QuickGrant is a lease that was granted.
type QuickGrant struct {
	Name  string
	Token int64
	Since time.Time
}

// Renewals is a renewal of a session and of timed leases, each once, and what became of
// it.
type Renewals struct {
	Session backend.SessionID // empty: none
	Leases  []Key
	TTLs    []time.Duration // of the leases

	SessionLost bool
	Lost        []backend.Loss // that the session is to hear of
	// Renewed is by the index in Leases. What is not there is lost.
	Renewed map[int]Renewed
}

// Renewed is a lease that was renewed.
type Renewed struct {
	Token int64
	Left  time.Duration
}

// Glance is what there is to look at, and what is seen.
type Glance struct {
	Waiters  []Waiting
	Ends     bool // also when the next of the leases of each lock can end; now where one is to be cut
	Sessions []backend.SessionID

	Now  time.Time
	Seen []Seen
	// Early: what was read may be undone by a crash, or by a fail-over. See Store.Sync.
	Early bool
	Rest  map[string]time.Duration // of each lock, by its name
	// Losses of the sessions, and those that are no more, each without a lease.
	Losses []backend.Loss
}

// Waiting is a lease that somebody waits for.
type Waiting struct {
	Key     Key
	Session backend.SessionID // asked under
}

// Seen is what a look tells of a lease that somebody waits for.
type Seen struct {
	N     int      // in Glance.Waiters
	There bool     // there is a row
	Own   bool     // the session asked under lives, or there is none
	Row   LeaseRow // Held, Timed, Session, Token, Since, Ends and Joined
}
