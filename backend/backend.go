package backend

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Backend keeps leases. All methods may be called at once from many goroutines.
// Every verb is idempotent under the IDs that the caller made up, so the caller
// may repeat a call whose reply was lost.
//
// A method returns soon after its context ended, whatever the network does. An
// error is one of the kinds of this package (test with errors.Is and errors.As).
// What a backend cannot tell stays unknown: *UnavailableError with MayHold set,
// never "not held".
type Backend interface {
	// Capabilities says what the backend can and cannot do. The answer never
	// changes and costs nothing.
	Capabilities() Capabilities

	// OpenSession makes a session, or confirms one that lives. All calls under a
	// session come from the backend value that opened it. The session ends
	// TTL after the backend received the newest OpenSession or Renew of it.
	// Opening an ID that has ended is ErrSessionLost. Opening one that lives with
	// another TTL is a caller's mistake: the backend takes the new TTL on, or, where
	// its store cannot change the TTL of a session, refuses with *InvalidError. The
	// session lives on, with all that it holds, either way.
	OpenSession(ctx context.Context, req SessionRequest) error

	// EndSession gives back every lease and place in line of the session, in a
	// number of requests that does not depend on how many those are, where the
	// store allows it. Ending a session that is gone is success. Timed leases
	// stay. After EndSession the ID is dead. Watchers see its leases released, and its
	// places in line left.
	EndSession(ctx context.Context, id SessionID) error

	// Acquire takes the lock for req.Lease, or waits in line for it when
	// req.Wait is set, for as long as ctx lets it.
	//
	// Duties, in this order:
	//  1. Validate the request (AcquireRequest.Validate): *InvalidError.
	//  2. If the lease is already out, return its grant: same token. A session lease
	//     that is out under another session than req.Session is ErrLost: it will die
	//     with that one. If the lease is in line, keep its place and adopt
	//     req.Session as its session; when req.Wait is false now, *HeldError, and the
	//     place is kept all the same.
	//  3. If the lease was released, abandoned or lost before, ErrLost. A backend
	//     remembers abandoned leases for as long as a late request can live; of
	//     the others it need not remember anything once they are gone.
	//  4. Grant if the lock allows it and nobody is in line before it; otherwise
	//     join the end of the line, or *HeldError when req.Wait is false. A *HeldError
	//     names a holder, or says how many stand in line: a lock that nobody holds or
	//     waits for is never refused as held.
	//  5. A store that is new or lost data grants nothing for a while. Then a request
	//     that it would grant otherwise gets *QuarantineError, with req.Wait too: the
	//     caller retries.
	//
	// When ctx ends while the lease is in line, Acquire returns ctx's cause and
	// may leave the place behind: the caller follows with Release, Abandon set.
	// A grant never outruns the session: when the session ends while the lease is
	// in line, Acquire returns ErrSessionLost at the latest when the line moves.
	Acquire(ctx context.Context, req AcquireRequest) (Grant, error)

	// Renew extends the session and the timed leases named, each from the moment
	// the backend received the call. It never creates and never revives. One call
	// should be one request to the store, whatever the number of leases under the
	// session. The error is nil when the backend answered: what each was told is
	// in the result.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// Release gives the lease back and hands the lock to whoever is next. A lease
	// that is neither out nor in line is ErrLost; nothing has changed then. With
	// req.Abandon it is success, and the lease can never be granted afterwards,
	// also when its acquire is still on the way.
	Release(ctx context.Context, req ReleaseRequest) error

	// Inspect tells who holds the lock and who waits, in order. A lock that nobody
	// has is an answer, not an error.
	Inspect(ctx context.Context, name string) (LockInfo, error)

	// List tells the locks that are held or waited for, in order of their names.
	List(ctx context.Context, req ListRequest) (ListPage, error)

	// Break takes the lock from all its holders and raises the token: every later
	// grant, and the token returned, are greater than the victims' tokens. Waiters
	// stay and the first of them are granted. Breaking a lock that nobody holds is
	// success with no holders in the result.
	//
	// The victims are those who held the lock when the break began. They are fixed
	// before any of them loses it: nobody who is granted the lock by the break, or
	// while it is under way, is one of them. The result names each victim once, and
	// nobody whose release was a success. A break of many may take several steps, none
	// of which grants the lock to a waiter beside a victim in its way. Where it fails
	// between them the rest of the victims still hold, and the error is an
	// *UnavailableError with MayHold set, or ErrClosed. Break is never repeated then by
	// itself: it could take the lock from those who came later.
	Break(ctx context.Context, req BreakRequest) (BreakResult, error)

	// Watch calls deliver with the events of locks whose names start with
	// req.Prefix until ctx ends, from one goroutine, in order for each lock. The
	// first event is EventWatching: what happens after it is delivered. Watch
	// returns ctx's cause, or *UnavailableError when the stream broke: events may
	// be missing then. deliver must not block for long. ErrUnsupported where
	// Capabilities.Watch is false.
	Watch(ctx context.Context, req WatchRequest, deliver func(Event)) error

	// Close ends what the backend value itself started: goroutines, connections,
	// files. Calls under way and later calls get ErrClosed. It does not end
	// sessions, unless they are Bound; the caller has done that. Closing again does
	// nothing.
	Close() error
}

// Mode is how a lease shares its lock.
type Mode uint8

const (
	// Exclusive takes the whole lock, whatever limit is in force.
	Exclusive Mode = iota
	// Shared takes permits of the lock: readers where the limit is 0, a semaphore
	// where it is above 0.
	Shared
)

// String is "exclusive" or "shared".
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// SessionRequest is the argument of Backend.OpenSession.
type SessionRequest struct {
	// ID is made by the client with NewSessionID. Required.
	ID SessionID
	// TTL is how long the session lives without a renewal. Required, within
	// Capabilities.MinTTL and MaxTTL.
	TTL time.Duration
	// Lost is called when the backend learns by push that a lease of the session,
	// or the whole session, is no more. It may be called from any goroutine and
	// more than once for one lease; it does not block. Backends whose
	// Capabilities.LossPush is false never call it. Optional.
	Lost func(Loss)
}

// Loss says that a lease, or with an empty Lease a whole session, is no more.
type Loss struct {
	Session SessionID
	Lease   LeaseID
	Cause   Cause
	// Reason is what the operator gave when the lease was broken.
	Reason string
}

// Cause is why a lease was lost.
type Cause string

// The causes that a backend can report. Package holdfast adds its own.
const (
	CauseBroken  Cause = "broken"  // an operator broke the lock
	CauseExpired Cause = "expired" // its time ran out on the backend
	CauseSession Cause = "session" // its session is gone
	CauseGone    Cause = "gone"    // the backend does not have it, and cannot say why
)

// AcquireRequest is the argument of Backend.Acquire.
type AcquireRequest struct {
	// Name of the lock; see ValidateName. Required.
	Name string
	// Lease is made by the client with NewLeaseID, a new one for each acquisition.
	// Required.
	Lease LeaseID
	// Session that the place in line belongs to, and the lease unless Timed.
	// Required where Capabilities.Sessions is true, except for a timed lease that
	// does not wait; empty where it is false.
	Session SessionID
	// Timed gives the lease its own end: TTL after the grant.
	Timed bool
	// TTL of a timed lease. Unused otherwise.
	TTL time.Duration
	// Mode of the lease. Default: Exclusive.
	Mode Mode
	// Limit is how many permits of the lock may be out at once. Shared only; 0 is
	// no limit. It must equal the limit of the shared leases that are out or in
	// line; otherwise *LimitError.
	Limit int
	// Permits is how many the lease takes, 1 to Limit. Shared with a limit only;
	// 0 counts as 1.
	Permits int
	// Owner is who asks, for people and for re-entry; see ValidateText. Optional.
	Owner string
	// Note is free text for people. Optional.
	Note string
	// Reentrant lets an exclusive lease join the exclusive lease that is out when
	// that one is reentrant too and has the same, non-empty owner: the joiner does
	// not wait in line and gets the same token. The lock is free when all of them
	// are released.
	Reentrant bool
	// Wait joins the line when the lock is not free.
	Wait bool
}

// Claim is the part of the request that decides what it is compatible with.
func (r AcquireRequest) Claim() Claim {
	return Claim{Mode: r.Mode, Limit: r.Limit, Permits: max(1, r.Permits), Owner: r.Owner, Reentrant: r.Reentrant}
}

// Grant is what Backend.Acquire gives.
type Grant struct {
	// Token is the fencing token.
	Token fence.Token
	// Asked is a reading of the local clock from before the request left whose
	// answer Left is. For a lease that waited, it is that of the last question,
	// not of the first.
	Asked time.Time
	// Left is how much time a timed lease had when the backend answered: the lease
	// cannot end before Asked + Left. Zero for a lease that lives with its session.
	Left time.Duration
	// Since is when the lease was granted, by the backend's wall clock, for people.
	Since time.Time
	// Waited is true when the lease stood in line.
	Waited bool
	// Joined is true when a reentrant lease joined one that was out.
	Joined bool
	// ByTimer is true when the grant was found by a timer, not by push, on a
	// backend that pushes: a wake-up was lost.
	ByTimer bool
}

// RenewRequest is the argument of Backend.Renew.
type RenewRequest struct {
	// Session to extend; empty: none.
	Session SessionID
	// Leases are timed leases to extend. See Capabilities.MaxRenew.
	Leases []TimedRenewal
}

// TimedRenewal asks for one timed lease to end TTL from now. A TTL shorter than
// what is left shortens it.
type TimedRenewal struct {
	Name  string
	Lease LeaseID
	TTL   time.Duration
}

// RenewResult is what Backend.Renew gives.
type RenewResult struct {
	// SessionLost is true when the session asked for is gone, with all its leases.
	SessionLost bool
	// Lost are the leases of the session that were broken since the last renewal
	// and perhaps not told by push. A loss may be told more than once.
	Lost []Loss
	// Leases has one entry for each timed lease asked for, in the same order.
	Leases []Renewal
}

// Renewal is what became of one timed lease.
type Renewal struct {
	// Token of the lease; zero when Err is set.
	Token fence.Token
	// Left is how much time the lease had when the backend answered.
	Left time.Duration
	// Err is nil, ErrLost, or another kind of this package. A lease that is not
	// timed, and one that is only in line, is ErrLost.
	Err error
}

// ReleaseRequest is the argument of Backend.Release.
type ReleaseRequest struct {
	Name  string
	Lease LeaseID
	// Session that the acquire was asked under; empty if there was none.
	Session SessionID
	// Abandon is for an acquire whose outcome is not known, or that the caller no
	// longer wants: see Backend.Release.
	Abandon bool
}

// LockInfo is the state of a lock.
type LockInfo struct {
	Name string
	// Limit in force: 1 when an exclusive lease is out, 0 when there is none.
	Limit int
	// Token is the greatest token given so far. It may be 0, not known, when nobody
	// holds the lock: tokens may come from a counter of the whole store, and a free
	// lock need not have a record. Never compare a holder's token with it; that is
	// the resource's to do.
	Token fence.Token
	// Holders in the order of their grants.
	Holders []Holder
	// Waiters in line, first come first.
	Waiters []Waiter
}

// Holder is a lease that is out.
type Holder struct {
	Lease   LeaseID
	Session SessionID // empty for a timed lease
	Owner   string
	Note    string
	Mode    Mode
	Permits int
	Token   fence.Token
	Since   time.Time
	// Left until the lease ends if nobody renews it. Where Capabilities.Doubles is true
	// it may be 0: not known.
	Left time.Duration
}

// Waiter is a request in line.
type Waiter struct {
	Lease   LeaseID
	Session SessionID
	Owner   string
	Note    string
	Mode    Mode
	Permits int
	Since   time.Time
}

// ListRequest is the argument of Backend.List.
type ListRequest struct {
	// Prefix of the names; empty: all.
	Prefix string
	// After is the name after which to go on; empty: from the start.
	After string
	// Limit is how many at most, 1 to MaxListLimit. 0 is MaxListLimit.
	Limit int
}

// ListPage is what Backend.List gives.
type ListPage struct {
	Locks []LockInfo
	// Next is the After of the next page; empty on the last one.
	Next string
}

// BreakRequest is the argument of Backend.Break.
type BreakRequest struct {
	Name string
	// Reason and Actor are told to the victims and to watchers; see ValidateText.
	Reason string
	Actor  string
}

// BreakResult is what Backend.Break gives.
type BreakResult struct {
	// Broken are the leases that were out.
	Broken []Holder
	// Token is greater than that of every lease broken, and not greater than that
	// of any later grant of a lease that was not in line yet.
	Token fence.Token
}

// WatchRequest is the argument of Backend.Watch.
type WatchRequest struct {
	Prefix string
}

// EventKind is what happened to a lock.
type EventKind string

// The events of a lock.
const (
	EventWatching EventKind = "watching" // the stream has begun; no lock
	EventAcquired EventKind = "acquired"
	EventReleased EventKind = "released"
	EventExpired  EventKind = "expired"
	EventBroken   EventKind = "broken"
	EventWaiting  EventKind = "waiting"
	EventLeft     EventKind = "left" // a waiter left the line without a grant
)

// Event is what happened to a lock.
type Event struct {
	Kind   EventKind
	Name   string
	Lease  LeaseID
	Owner  string
	Mode   Mode
	Token  fence.Token // of the lease; 0 for waiters
	Reason string      // of a break
	At     time.Time   // by the backend's wall clock
}
