// Package lockstate has the rules of one lock: who is granted it, who waits for it, who is refused,
// and who is next. Stores that keep their leases as rows, in memory or in tables, share them.
//
// A rule reads and changes what the store has read of a lock, within one transaction of the store, and
// reports each change to the store. The package has no clock and sends nothing: see Store.
package lockstate

import (
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// State is the stage that a lease has reached.
type State uint8

// The states of a lease, in their order.
const (
	Waiting State = iota // in the queue
	Held                 // granted
	Over                 // ended, for good
)

// Lock is a lock with what a store keeps of it in addition. The zero value is a free lock.
type Lock[L, X any] struct {
	Name    string
	Holders Group[L, X] // in the order of their grants
	Line    Group[L, X] // the queue, first come first
	// Rest counts the waiters behind Line that the store has not read. RestLimit is the limit of the
	// shared ones among them; negative: there are none.
	Rest, RestLimit int
	Own             L
}

// Lease is an acquisition, with what a store keeps of it in addition.
type Lease[L, X any] struct {
	Lock   *Lock[L, X]
	ID     backend.LeaseID
	Claim  backend.Claim
	Note   string
	Timed  bool // it has an end of its own once it is held
	TTL    time.Duration
	State  State
	Asked  time.Time // when it was requested
	Waited bool      // it was in the queue
	Token  fence.Token
	Since  time.Time // of the grant
	Joined bool      // by re-entry
	Own    X
}

// Group is a list of leases in order, with the claim of each.
type Group[L, X any] struct {
	Leases []*Lease[L, X]
	Claims []backend.Claim
}

// Add appends a lease.
func (g *Group[L, X]) Add(l *Lease[L, X]) {
	g.Leases = append(g.Leases, l)
	g.Claims = append(g.Claims, l.Claim)
}

func (g *Group[L, X]) remove(l *Lease[L, X]) {
	i := slices.Index(g.Leases, l)
	g.Leases = slices.Delete(g.Leases, i, i+1)
	g.Claims = slices.Delete(g.Claims, i, i+1)
}

// Find returns the lease with that ID, or nil.
func (g *Group[L, X]) Find(id backend.LeaseID) *Lease[L, X] {
	for _, l := range g.Leases {
		if l.ID == id {
			return l
		}
	}
	return nil
}

// Find returns the lease with that ID, held or in the queue, or nil.
func (l *Lock[L, X]) Find(id backend.LeaseID) *Lease[L, X] {
	if x := l.Holders.Find(id); x != nil {
		return x
	}
	return l.Line.Find(id)
}

// All returns the leases that are held, and then those in the queue.
func (l *Lock[L, X]) All() []*Lease[L, X] { return slices.Concat(l.Holders.Leases, l.Line.Leases) }

// Free reports whether no lease holds the lock or waits for it.
func (l *Lock[L, X]) Free() bool { return len(l.Holders.Leases)+l.QueueLen() == 0 }

// QueueLen returns the length of the queue.
func (l *Lock[L, X]) QueueLen() int { return len(l.Line.Leases) + l.Rest }

// limit returns the limit in force, if there is one.
func (l *Lock[L, X]) limit() (int, bool) {
	limit, ok := backend.LimitInForce(l.Holders.Claims, l.Line.Claims)
	if !ok && l.Rest > 0 && l.RestLimit >= 0 {
		return l.RestLimit, true
	}
	return limit, ok
}

// joins returns the lease that c may join by re-entry, or nil.
func (l *Lock[L, X]) joins(c backend.Claim) *Lease[L, X] {
	for i, h := range l.Holders.Claims {
		if c.Joins(h) {
			return l.Holders.Leases[i]
		}
	}
	return nil
}

// admits reports whether the claim, which is the last in the queue, may be granted now: it fits and is
// also the first, or it joins by re-entry, which overtakes.
func (l *Lock[L, X]) admits(c backend.Claim) bool {
	return l.QueueLen() == 1 && c.Fits(l.Holders.Claims) || l.joins(c) != nil
}

// Store is what the rules need of a store, within one transaction.
type Store[L, X any] interface {
	// Now is when the transaction happens, by the store's clock, for people.
	Now() time.Time
	// Token issues the next token of a lock.
	Token(*Lock[L, X]) fence.Token
	// Queued: the lease waits in the queue.
	Queued(*Lease[L, X])
	// Granted: the lease is held. It may have waited.
	Granted(*Lease[L, X])
	// Ended: the lease has ended, which was in that state. A caller that waits for it gets err.
	Ended(l *Lease[L, X], was State, event backend.EventKind, err error, reason string)
	// Session returns the session that the lease, or its place in the queue, lives under; empty:
	// none.
	Session(*Lease[L, X]) backend.SessionID
	// Left returns how long a lease that is held lives if it is not renewed.
	Left(*Lease[L, X]) time.Duration
}

// Take puts a new lease into the queue, and grants it if it may be granted now. The error says why it
// can neither be granted nor queued; nothing has changed then.
func Take[L, X any](s Store[L, X], lock *Lock[L, X], l *Lease[L, X], wait bool) error {
	if err := refuse(s, lock, l.Claim, wait); err != nil {
		return err
	}
	l.Lock, l.State, l.Asked = lock, Waiting, s.Now()
	lock.Line.Add(l)
	if lock.admits(l.Claim) {
		grant(s, l)
		return nil
	}
	l.Waited = true
	s.Queued(l)
	return nil
}

// refuse returns why a new lease with this claim can neither be granted nor queued.
func refuse[L, X any](s Store[L, X], lock *Lock[L, X], c backend.Claim, wait bool) error {
	if c.Mode == backend.Shared {
		if limit, ok := lock.limit(); ok && limit != c.Limit {
			return &backend.LimitError{Name: lock.Name, Asked: c.Limit, InForce: limit}
		}
	}
	if wait || lock.joins(c) != nil || lock.QueueLen() == 0 && c.Fits(lock.Holders.Claims) {
		return nil
	}
	return heldError(s, lock, lock.QueueLen())
}

// HeldError returns the refusal of a lease in the queue whose caller does not want to wait.
func HeldError[L, X any](s Store[L, X], l *Lease[L, X]) error {
	return heldError(s, l.Lock, slices.Index(l.Lock.Line.Leases, l))
}

func heldError[L, X any](s Store[L, X], lock *Lock[L, X], ahead int) error {
	out := lock.Holders.Leases
	return backend.NewHeldError(lock.Name, Holders(s, backend.FirstHolders(out)), len(out), ahead)
}

// Settle grants the lock to the first waiters that it has room for. until, if it is not nil, reports
// whether a waiter may not be granted yet, nor any behind it.
func Settle[L, X any](s Store[L, X], lock *Lock[L, X], until func(*Lease[L, X]) bool) {
	for range backend.Admit(lock.Holders.Claims, lock.Line.Claims) {
		next := lock.Line.Leases[0]
		if until != nil && until(next) {
			return
		}
		grant(s, next)
	}
}

// grant moves a lease from the queue to the holders.
func grant[L, X any](s Store[L, X], l *Lease[L, X]) {
	l.Lock.Line.remove(l)
	if h := l.Lock.joins(l.Claim); h != nil {
		l.Token, l.Joined = h.Token, true
	} else {
		l.Token = s.Token(l.Lock)
	}
	l.Lock.Holders.Add(l)
	l.State, l.Since = Held, s.Now()
	s.Granted(l)
}

// End removes a lease for good. The next Settle hands over what it held. Its waiters get err.
func End[L, X any](s Store[L, X], l *Lease[L, X], event backend.EventKind, err error, reason string) {
	was := l.State
	switch was {
	case Waiting:
		l.Lock.Line.remove(l)
		event = backend.EventLeft
	case Held:
		l.Lock.Holders.remove(l)
	case Over:
		return
	}
	l.State = Over
	s.Ended(l, was, event, err, reason)
}

// Event describes what happened to a lease.
func Event[L, X any](s Store[L, X], kind backend.EventKind, l *Lease[L, X], reason string) backend.Event {
	e := backend.Event{
		Kind: kind, Name: l.Lock.Name, Lease: l.ID, Owner: l.Claim.Owner, Mode: l.Claim.Mode, Reason: reason, At: s.Now(),
	}
	if kind != backend.EventWaiting && kind != backend.EventLeft {
		e.Token = l.Token
	}
	return e
}

// Info describes a lock. Its token is the greatest of the holders'.
func Info[L, X any](s Store[L, X], lock *Lock[L, X]) backend.LockInfo {
	info := backend.LockInfo{Name: lock.Name, Holders: Holders(s, lock.Holders.Leases)}
	info.Limit, _ = backend.LimitInForce(lock.Holders.Claims, lock.Line.Claims)
	for _, h := range lock.Holders.Leases {
		if h.Claim.Mode == backend.Exclusive {
			info.Limit = 1
		}
		info.Token = max(info.Token, h.Token)
	}
	for _, w := range lock.Line.Leases {
		info.Waiters = append(info.Waiters, backend.Waiter{
			Lease: w.ID, Session: s.Session(w), Owner: w.Claim.Owner, Note: w.Note,
			Mode: w.Claim.Mode, Permits: w.Claim.Permits, Since: w.Asked,
		})
	}
	return info
}

// Holders describes leases that are held.
func Holders[L, X any](s Store[L, X], leases []*Lease[L, X]) []backend.Holder {
	var holders []backend.Holder
	for _, h := range leases {
		x := backend.Holder{
			Lease: h.ID, Owner: h.Claim.Owner, Note: h.Note, Mode: h.Claim.Mode, Permits: h.Claim.Permits,
			Token: h.Token, Since: h.Since, Left: s.Left(h),
		}
		if !h.Timed {
			x.Session = s.Session(h)
		}
		holders = append(holders, x)
	}
	return holders
}
