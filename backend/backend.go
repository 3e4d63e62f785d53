package backend

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Backend keeps leases. All methods are safe for concurrent use. Every call is idempotent under the
// IDs that the caller made, so the caller may repeat a call whose reply was lost.
//
// A method returns soon after its context ended, whatever the network does. An error is one of the
// kinds of this package (test with errors.Is and errors.As). An unknown outcome is reported as
// unknown: *UnavailableError with MayHold set, never "not held".
type Backend interface {
	// Capabilities reports what the backend can and cannot do. The answer never changes and costs
	// nothing.
	Capabilities() Capabilities

	// OpenSession creates a session, or confirms one that is alive. All calls under a session must
	// use the backend value that opened it. The session ends TTL after the backend received the
	// newest OpenSession or Renew of it. Opening an ID that has ended is ErrSessionLost. Opening a
	// live session with another TTL is a caller's mistake: the backend adopts the new TTL, or, if
	// its store cannot change the TTL of a session, refuses with *InvalidError. In both cases the
	// session lives on with everything that it holds.
	OpenSession(ctx context.Context, req SessionRequest) error

	// EndSession releases every lease and every place in the queue of the session. Where the store
	// allows it, the number of requests does not depend on how many there are. Ending a session
	// that is gone succeeds. Timed leases stay. After EndSession the ID is dead. Watchers see the
	// session's leases as released, and its places in the queue as left.
	EndSession(ctx context.Context, id SessionID) error

	// Acquire acquires the lock for req.Lease. If req.Wait is set, it waits in the queue until the
	// lock is granted or ctx ends.
	//
	// Duties, in this order:
	//  1. Validate the request (AcquireRequest.Validate): *InvalidError.
	//  2. If the lease is already held, return its grant: same token. A session lease that
	//     is held under another session than req.Session is ErrLost: it will die with that
	//     session. If the lease is in the queue, keep its place and adopt req.Session as
	//     its session. If req.Wait is now false, return *HeldError and still keep the
	//     place.
	//  3. If the lease was released, abandoned or lost before, ErrLost. A backend
	//     remembers abandoned leases for as long as a late request can live. It need not
	//     remember the others once they are gone. If it grants a lease whose loss it has
	//     reported, it reports the next loss of that lease as well.
	//  4. Grant if the lock allows it and no other request is ahead in the queue.
	//     Otherwise join the end of the queue, or return *HeldError if req.Wait is false.
	//     A *HeldError names a holder, or the number of waiters: a lock without holders
	//     and waiters is never refused as held.
	//  5. A store that is new or lost data grants nothing for a while. A request that it
	//     would otherwise grant then gets *QuarantineError, also with req.Wait: the caller
	//     retries.
	//
	// When ctx ends while the lease is in the queue, Acquire returns ctx's cause and may leave the
	// place behind: the caller follows with Release, Abandon set. A grant never outlives the
	// session: when the session ends while the lease is in the queue, Acquire returns
	// ErrSessionLost, at the latest when the queue moves.
	Acquire(ctx context.Context, req AcquireRequest) (Grant, error)

	// Renew extends the session and the named timed leases, each from the moment the backend
	// received the call. It never creates and never revives. One call should be one request to the
	// store, whatever the number of leases under the session. The error is nil when the backend
	// answered; the answer for each is in the result.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// Release releases the lease and hands the lock to the next waiter. A lease that is neither
	// held nor in the queue is ErrLost, and nothing has changed. With req.Abandon it is success,
	// and the lease can never be granted afterwards, even if its acquire is still on the way.
	Release(ctx context.Context, req ReleaseRequest) error

	// Inspect returns the holders of the lock and its waiters, in order. A free lock yields a
	// LockInfo without holders and a nil error.
	Inspect(ctx context.Context, name string) (LockInfo, error)

	// List returns the locks that are held or waited for, in order of their names.
	List(ctx context.Context, req ListRequest) (ListPage, error)

	// Break takes the lock from all its holders, or from the one that req names, and raises the token:
	// every later grant, and the token returned, are greater than the victims' tokens. Waiters stay,
	// and the first of them are granted. Breaking a lock that has no such holder succeeds, with no
	// holders in the result.
	//
	// The victims are the leases that held the lock when the break began. They are fixed before any
	// of them loses it: a lease that is granted by the break, or while it is in progress, is never
	// a victim. The result names each victim once, and no lease whose release succeeded. A break of
	// many leases may take several steps. No step grants the lock to a waiter while a conflicting
	// victim still holds it. If the break fails between two steps, the remaining victims still hold
	// the lock, and the error is an *UnavailableError with MayHold set, or ErrClosed. A failed
	// break is never repeated automatically: it could take the lock from later holders.
	Break(ctx context.Context, req BreakRequest) (BreakResult, error)

	// Watch calls deliver with the events of locks whose names start with req.Prefix until ctx
	// ends, from the goroutine of the call, in order for each lock. The first event is EventWatching:
	// everything that happens after it is delivered. Watch returns ctx's cause, or
	// *UnavailableError when the stream broke: events may be missing then. deliver must not block
	// for long. If Capabilities.Watch is false, Watch returns ErrUnsupported.
	Watch(ctx context.Context, req WatchRequest, deliver func(Event)) error

	// Close ends what the backend value itself started: goroutines, connections, files. Calls in
	// progress and later calls return ErrClosed, a later one also if its context has ended. Close does
	// not end sessions, unless they are Bound: the caller has ended them before. A second Close does
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

// String returns "exclusive" or "shared".
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
	// Lost is called when the backend learns by push that a lease of the session, or the whole
	// session, is gone. It may be called from any goroutine and more than once for one lease. It
	// does not block. Backends whose Capabilities.LossPush is false never call it. Optional.
	Lost func(Loss)
}

// Loss reports that a lease is gone, or, if Lease is empty, a whole session.
type Loss struct {
	Session SessionID
	Lease   LeaseID
	Cause   Cause
	// Reason is the operator's reason for breaking the lock.
	Reason string
}

// Cause is why a lease was lost.
type Cause string

// The causes that a backend can report.
const (
	CauseBroken  Cause = "broken"  // an operator broke the lock
	CauseExpired Cause = "expired" // the lease expired on the backend
	CauseSession Cause = "session" // its session is gone
	CauseGone    Cause = "gone"    // the backend does not have it, and does not know why
)

// The causes that only a client reports.
const (
	CauseDeadline Cause = "deadline" // no renewal was acknowledged in time
	CauseEnded    Cause = "ended"    // a lease that is not renewed reached its end
	CauseAtMost   Cause = "at_most"  // it was held for as long as its holder allowed
	CauseClosed   Cause = "closed"   // the client was closed
)

// AcquireRequest is the argument of Backend.Acquire.
type AcquireRequest struct {
	// Name of the lock; see ValidateName. Required.
	Name string
	// Lease is made by the client with NewLeaseID, a new one for each acquisition.
	// Required.
	Lease LeaseID
	// Session is the session of the place in the queue and, unless Timed, of the lease. Required
	// where Capabilities.Sessions is true, except for a timed lease that does not wait. Empty where
	// it is false.
	Session SessionID
	// Timed gives the lease its own end: TTL after the grant.
	Timed bool
	// TTL of a timed lease. Unused otherwise.
	TTL time.Duration
	// Mode of the lease. Default: Exclusive.
	Mode Mode
	// Limit is how many permits of the lock may be held at the same time. Shared only; 0 is no
	// limit. It must equal the limit of the shared leases that are held or in the queue; otherwise
	// *LimitError.
	Limit int
	// Permits is how many the lease takes, 1 to Limit. Shared with a limit only;
	// 0 counts as 1.
	Permits int
	// Owner names the requester, for people; see ValidateText. Optional.
	Owner string
	// Note is free text for people. Optional.
	Note string
	// Wait joins the queue when the lock is not free.
	Wait bool
}

// Claim returns the part of the request that decides which leases it is compatible with.
func (r AcquireRequest) Claim() Claim {
	return Claim{Mode: r.Mode, Limit: r.Limit, Permits: max(1, r.Permits)}
}

// Grant is the result of Backend.Acquire.
type Grant struct {
	// Token is the fencing token.
	Token fence.Token
	// Asked is a reading of the local clock from before the departure of the request that Left
	// answers. For a lease that waited, this is the last request, not the first.
	Asked time.Time
	// Left is how much time a timed lease had when the backend answered: the lease
	// cannot end before Asked + Left. Zero for a lease that lives with its session.
	Left time.Duration
	// Since is when the lease was granted, by the backend's wall clock, for people.
	Since time.Time
	// Waited is true when the lease waited in the queue.
	Waited bool
	// ByTimer is true when, on a backend that pushes, the grant was found by a timer and not by
	// push: a notification was lost.
	ByTimer bool
}

// RenewRequest is the argument of Backend.Renew.
type RenewRequest struct {
	// Session to extend; empty: none.
	Session SessionID
	// Leases are timed leases to extend. See Capabilities.MaxRenew.
	Leases []TimedRenewal
}

// TimedRenewal asks for one timed lease to end TTL from now. A TTL shorter than the time left
// shortens the lease.
type TimedRenewal struct {
	Name  string
	Lease LeaseID
	// TTL from now, and of later renewals without one. 0: the TTL that the lease has, from its
	// grant or from the newest renewal with a TTL.
	TTL time.Duration
}

// RenewResult is the result of Backend.Renew.
type RenewResult struct {
	// SessionLost is true when the requested session is gone, with all its leases.
	SessionLost bool
	// Lost are the leases of the session that were broken since the last renewal and perhaps not
	// reported by push. A loss may be reported more than once.
	Lost []Loss
	// Leases has one entry for each requested timed lease, in the same order.
	Leases []Renewal
}

// Renewal is the result for one timed lease.
type Renewal struct {
	// Token of the lease; zero when Err is set.
	Token fence.Token
	// Left is how much time the lease had when the backend answered.
	Left time.Duration
	// Err is nil, ErrLost (a *LossError where the backend knows how), or another kind of this package. A
	// lease that is not timed is ErrLost, and so is one that is still in the queue.
	Err error
}

// ReleaseRequest is the argument of Backend.Release.
type ReleaseRequest struct {
	Name  string
	Lease LeaseID
	// Session is the session of the acquire; empty if there was none.
	Session SessionID
	// Abandon is for an acquire whose outcome is unknown, or that the caller no longer wants: see
	// Backend.Release.
	Abandon bool
}

// LockInfo is the state of a lock.
type LockInfo struct {
	Name string
	// Limit in force: 1 when an exclusive lease is held, 0 when there is none.
	Limit int
	// Token is the greatest token issued so far. It may be 0, unknown, when the lock has no holder:
	// tokens may come from a counter of the whole store, and a free lock need not have a record.
	// Never compare a holder's token with it: only the resource may do that comparison.
	Token fence.Token
	// Holders in the order of their grants.
	Holders []Holder
	// Waiters in the queue, first come first.
	Waiters []Waiter
}

// Holder is a lease that is held.
type Holder struct {
	Lease   LeaseID
	Session SessionID // empty for a timed lease
	Owner   string
	Note    string
	Mode    Mode
	Permits int
	Token   fence.Token
	// Since is when it was granted, by a wall clock, for people. Where a grant writes nothing, as in
	// etcd, ZooKeeper and Consul, it is when a lease of a session was requested.
	Since time.Time
	// Left is the time until the lease ends if it is not renewed. Where Capabilities.Doubles is
	// true it may be 0: unknown.
	Left time.Duration
}

// Waiter is a request in the queue.
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
	// After is the name after which to continue; empty: from the start.
	After string
	// Limit is how many at most, 1 to MaxListLimit. 0 is MaxListLimit.
	Limit int
}

// ListPage is the result of Backend.List.
type ListPage struct {
	Locks []LockInfo
	// Next is the After of the next page; empty on the last one.
	Next string
}

// BreakRequest is the argument of Backend.Break.
type BreakRequest struct {
	Name string
	// Lease is the only one that loses the lock. Empty: all that hold it. One that does not hold it
	// loses nothing.
	Lease LeaseID
	// Reason and Actor are reported to the victims and to watchers; see ValidateText.
	Reason string
	Actor  string
}

// BreakResult is the result of Backend.Break.
type BreakResult struct {
	// Broken are the leases that lost the lock.
	Broken []Holder
	// Token is greater than that of every broken lease, and not greater than that of any later
	// grant of a lease that was not yet in the queue.
	Token fence.Token
}

// WatchRequest is the argument of Backend.Watch.
type WatchRequest struct {
	Prefix string
}

// EventKind is the kind of an event of a lock.
type EventKind string

// The events of a lock.
const (
	EventWatching EventKind = "watching" // the stream has begun; no lock
	EventAcquired EventKind = "acquired"
	EventReleased EventKind = "released"
	EventExpired  EventKind = "expired"
	EventBroken   EventKind = "broken"
	EventWaiting  EventKind = "waiting"
	EventLeft     EventKind = "left" // a waiter left the queue without a grant
)

// Event is an event of a lock.
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
