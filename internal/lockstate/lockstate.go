// Package lockstate has the rules of one lock: which lease is granted, which one waits, which one is
// refused, and which one is next. Stores that keep their leases as rows, in memory or in tables, share them.
//
// A rule reads and changes what the store has read of a lock, within one transaction of the store, and
// reports each change to the store. The package has no clock and sends nothing: see Store.
package lockstate

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Capabilities returns those of a store that keeps leases as rows, and can do everything.
func Capabilities(name string) backend.Capabilities {
	return backend.Capabilities{
		Name: name, Sessions: true, Timed: true, Shared: true, Permits: true, FIFO: true, Push: true,
		LossPush: true, Watch: true, Durable: true, TokenKind: "clock",
		MinTTL: 100 * time.Millisecond, MaxTTL: 365 * 24 * time.Hour, ExpiryLag: time.Second,
	}
}

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
	Queue   Group[L, X] // the queue, first come first
	// Rest counts the waiters behind Queue that the store has not read. RestLimit is the limit of the
	// shared ones among them; negative: there are none.
	Rest, RestLimit int
	Own             L

	changed bool // it is in a Changed
}

// Changed has the locks that may have something to hand over, each once. The zero value is empty.
type Changed[L, X any] struct{ locks []*Lock[L, X] }

// Add adds a lock.
func (c *Changed[L, X]) Add(l *Lock[L, X]) {
	if !l.changed {
		l.changed = true
		c.locks = append(c.locks, l)
	}
}

// Next removes a lock and returns it, or nil where there is none.
func (c *Changed[L, X]) Next() *Lock[L, X] {
	last := len(c.locks) - 1
	if last < 0 {
		return nil
	}
	l := c.locks[last]
	c.locks = c.locks[:last]
	l.changed = false
	return l
}

// Lease is an acquisition, with what a store keeps of it in addition.
type Lease[L, X any] struct {
	Lock   *Lock[L, X]
	ID     backend.LeaseID
	Claim  backend.Claim
	Owner  string
	Note   string
	TTL    time.Duration
	Timed  bool // it has an end of its own once it is held
	State  State
	Waited bool      // it was in the queue
	Asked  time.Time // when it was requested
	Token  fence.Token
	Since  time.Time // of the grant
	Own    X
}

// Group is a list of leases in order, with the claim of each.
type Group[L, X any] struct {
	Leases []*Lease[L, X]
	Claims []backend.Claim
}

func (g *Group[L, X]) add(l *Lease[L, X]) {
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
	return l.Queue.Find(id)
}

// Add puts a lease that the store has read behind the others that are held, or behind those that wait.
func (l *Lock[L, X]) Add(x *Lease[L, X]) {
	if x.State == Held {
		l.Holders.add(x)
	} else {
		l.Queue.add(x)
	}
}

// Key identifies a lease: the same ID with another name is another lease.
type Key struct {
	Name string
	ID   backend.LeaseID
}

// Compare orders keys: it returns -1, 0 or 1.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Name, o.Name), cmp.Compare(k.ID, o.ID))
}

// Key returns what identifies the lease.
func (l *Lease[L, X]) Key() Key { return Key{l.Lock.Name, l.ID} }

// All returns the leases that are held, and then those in the queue.
func (l *Lock[L, X]) All() []*Lease[L, X] { return slices.Concat(l.Holders.Leases, l.Queue.Leases) }

// Free reports whether no lease holds the lock or waits for it.
func (l *Lock[L, X]) Free() bool { return len(l.Holders.Leases)+l.QueueLen() == 0 }

// QueueLen returns the length of the queue.
func (l *Lock[L, X]) QueueLen() int { return len(l.Queue.Leases) + l.Rest }

// unread returns a claim that stands for the shared waiters that the store has not read, if there are any.
func (l *Lock[L, X]) unread() []backend.Claim {
	if l.Rest <= 0 || l.RestLimit < 0 {
		return nil
	}
	return []backend.Claim{{Mode: backend.Shared, Limit: l.RestLimit}}
}

// admits reports whether a claim that is not in the queue may be granted now: it fits and no lease is
// ahead of it.
func (l *Lock[L, X]) admits(c backend.Claim) bool {
	return l.QueueLen() == 0 && c.Fits(l.Holders.Claims)
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
	// Extend sets the end of a timed lease that is held: its TTL from now.
	Extend(*Lease[L, X])
	// Lost: the lease, which has ended, was taken from its holder. If its session lives, that is
	// notified.
	Lost(l *Lease[L, X], cause backend.Cause, reason string)
	// Abandon keeps a lease from ever being granted.
	Abandon(Key)
	// Abandoned reports whether the lease was abandoned.
	Abandoned(Key) bool
	// Join puts a new lease, or one in the queue, under the session of its request, if there is one.
	// It reports false, and does nothing, if that session has ended.
	Join(*Lease[L, X], backend.SessionID) bool
	// Session returns the session that the lease, or its place in the queue, lives under; empty:
	// none.
	Session(*Lease[L, X]) backend.SessionID
	// Left returns how long a lease that is held lives if it is not renewed.
	Left(*Lease[L, X]) time.Duration
}

// Acquire returns the lease of a request, held or in the queue, as Answer expects it. The error says why
// there is none; nothing has changed then. Errors: ErrLost for a lease that was abandoned,
// ErrSessionLost, *LimitError, *HeldError.
func Acquire[L, X any](s Store[L, X], lock *Lock[L, X], req *backend.AcquireRequest) (*Lease[L, X], error) {
	if l := lock.Find(req.Lease); l != nil {
		if err := again(s, l, req); err != nil {
			return nil, err
		}
		return l, nil
	}
	if s.Abandoned(Key{lock.Name, req.Lease}) {
		return nil, backend.ErrLost
	}
	l := &Lease[L, X]{Lock: lock, ID: req.Lease, Claim: req.Claim(), Owner: req.Owner, Note: req.Note, Timed: req.Timed, TTL: req.TTL}
	if !s.Join(l, req.Session) {
		return nil, backend.ErrSessionLost
	}
	if err := refuse(s, lock, l.Claim, req.Wait); err != nil {
		return nil, err
	}
	l.Asked = s.Now()
	if lock.admits(l.Claim) {
		grant(s, l)
		return l, nil
	}
	l.Waited = true
	lock.Queue.add(l)
	s.Queued(l)
	return l, nil
}

// Refused reports whether the error of a request says no more than that the lock is held, or has another
// limit. A caller acts on that no longer than until its next attempt, so it need not survive a crash. Any
// other answer must: a waiter would act on a grant, and a holder on a loss, that the store has forgotten.
func Refused(err error) bool {
	var held *backend.HeldError
	var limit *backend.LimitError
	return errors.As(err, &held) || errors.As(err, &limit)
}

// again returns why the repeated request of a lease gets neither the lease nor its place in the queue:
// C6. A place passes to the session of the newest request.
func again[L, X any](s Store[L, X], l *Lease[L, X], req *backend.AcquireRequest) error {
	switch {
	case l.State == Held:
		return nil
	case req.Session != "" && s.Session(l) != req.Session && !s.Join(l, req.Session):
		return backend.ErrSessionLost
	case !req.Wait:
		return heldError(s, l.Lock, slices.Index(l.Lock.Queue.Leases, l))
	}
	return nil
}

// Answer returns the grant of a lease that is held, for a request under the session that was sent at
// that local time. The error is ErrLost where the lease lives under another session: it ends with that.
func Answer[L, X any](s Store[L, X], l *Lease[L, X], session backend.SessionID, asked time.Time) (backend.Grant, error) {
	if !l.Timed && s.Session(l) != session {
		return backend.Grant{}, backend.ErrLost
	}
	g := backend.Grant{Token: l.Token, Asked: asked, Since: l.Since, Waited: l.Waited}
	if l.Timed {
		g.Left = min(s.Left(l), l.TTL)
	}
	return g, nil
}

// EndedFor returns what a request under that session gets of a lease whose end err is. A place in the queue
// passes to the session of the newest request, and may end with that: the end of another session is no end of
// the request's own, so it is ErrLost then.
func EndedFor[L, X any](s Store[L, X], l *Lease[L, X], session backend.SessionID, err error) error {
	if errors.Is(err, backend.ErrSessionLost) && s.Session(l) != session {
		return backend.ErrLost
	}
	return err
}

// Renew extends, or shortens, a timed lease that is held. Without a ttl it keeps its own. l is nil where
// there is none.
func Renew[L, X any](s Store[L, X], l *Lease[L, X], ttl time.Duration) backend.Renewal {
	if l == nil || !l.Timed || l.State != Held {
		return backend.Renewal{Err: backend.ErrLost}
	}
	if ttl > 0 {
		l.TTL = ttl
	}
	s.Extend(l)
	return backend.Renewal{Token: l.Token, Left: l.TTL}
}

// Release ends a lease, or its place in the queue. A lease that is abandoned is never granted
// afterwards. The error is ErrLost where there is no such lease, unless it is abandoned.
func Release[L, X any](s Store[L, X], lock *Lock[L, X], req *backend.ReleaseRequest) error {
	l := lock.Find(req.Lease)
	if l != nil {
		End(s, l, backend.EventReleased, backend.ErrLost, "")
	}
	if req.Abandon {
		s.Abandon(Key{lock.Name, req.Lease})
		return nil
	}
	if l == nil {
		return backend.ErrLost
	}
	return nil
}

// Break takes the lock from its holders, or from one of them, and issues a token: the next one is greater than theirs.
func Break[L, X any](s Store[L, X], lock *Lock[L, X], req *backend.BreakRequest) backend.BreakResult {
	victims := slices.DeleteFunc(slices.Clone(lock.Holders.Leases), func(l *Lease[L, X]) bool { return !req.Takes(l.ID) })
	res := backend.BreakResult{Token: s.Token(lock), Broken: Holders(s, victims)}
	for _, h := range victims {
		Lose(s, h, backend.EventBroken, backend.CauseBroken, req.Reason)
	}
	return res
}

// refuse returns why a new lease with this claim can neither be granted nor queued.
func refuse[L, X any](s Store[L, X], lock *Lock[L, X], c backend.Claim, wait bool) error {
	if err := c.CheckLimit(lock.Name, lock.Holders.Claims, lock.Queue.Claims, lock.unread()); err != nil {
		return err
	}
	if wait || lock.admits(c) {
		return nil
	}
	return heldError(s, lock, lock.QueueLen())
}

func heldError[L, X any](s Store[L, X], lock *Lock[L, X], ahead int) error {
	out := lock.Holders.Leases
	return backend.NewHeldError(lock.Name, Holders(s, backend.FirstHolders(out)), len(out), ahead)
}

// Settle grants the lock to the first waiters that it has room for. until, if it is not nil, reports
// whether a waiter may not be granted yet, nor any behind it.
func Settle[L, X any](s Store[L, X], lock *Lock[L, X], until func(*Lease[L, X]) bool) {
	for range backend.Admit(lock.Holders.Claims, lock.Queue.Claims) {
		next := lock.Queue.Leases[0]
		if until != nil && until(next) {
			return
		}
		lock.Queue.remove(next)
		grant(s, next)
	}
}

// grant adds a lease, which is not in the queue any more, to the holders.
func grant[L, X any](s Store[L, X], l *Lease[L, X]) {
	l.Token = s.Token(l.Lock)
	l.Lock.Holders.add(l)
	l.State, l.Since = Held, s.Now()
	if l.Timed {
		s.Extend(l)
	}
	s.Granted(l)
}

// End removes a lease for good. The next Settle hands over what it held. Its waiters get err.
func End[L, X any](s Store[L, X], l *Lease[L, X], event backend.EventKind, err error, reason string) {
	was := l.State
	switch was {
	case Waiting:
		l.Lock.Queue.remove(l)
		event = backend.EventLeft
	case Held:
		l.Lock.Holders.remove(l)
	case Over:
		return
	}
	l.State = Over
	s.Ended(l, was, event, err, reason)
}

// Lose ends a lease that its holder did not release. Its session is notified, if it lives.
func Lose[L, X any](s Store[L, X], l *Lease[L, X], event backend.EventKind, cause backend.Cause, reason string) {
	End(s, l, event, backend.ErrLost, reason)
	s.Lost(l, cause, reason)
}

// Event describes what happened to a lease.
func Event[L, X any](s Store[L, X], kind backend.EventKind, l *Lease[L, X], reason string) backend.Event {
	e := backend.Event{
		Kind: kind, Name: l.Lock.Name, Lease: l.ID, Owner: l.Owner, Mode: l.Claim.Mode, Reason: reason, At: s.Now(),
	}
	if kind != backend.EventWaiting && kind != backend.EventLeft {
		e.Token = l.Token
	}
	return e
}

// Info describes a lock. Its token is the greatest of the holders'.
func Info[L, X any](s Store[L, X], lock *Lock[L, X]) backend.LockInfo {
	info := backend.LockInfo{
		Name: lock.Name, Limit: backend.InfoLimit(lock.Holders.Claims, lock.Queue.Claims), Holders: Holders(s, lock.Holders.Leases),
	}
	for _, h := range lock.Holders.Leases {
		info.Token = max(info.Token, h.Token)
	}
	for _, w := range lock.Queue.Leases {
		info.Waiters = append(info.Waiters, backend.Waiter{
			Lease: w.ID, Session: s.Session(w), Owner: w.Owner, Note: w.Note,
			Mode: w.Claim.Mode, Permits: w.Claim.Permits, Since: w.Asked,
		})
	}
	return info
}

// List describes locks that have holders or waiters: the first of those names, which are in order and of
// which there is one more than the page has room for if the page is not the last.
func List[L, X any](s Store[L, X], req backend.ListRequest, names []string, lock func(name string) *Lock[L, X]) backend.ListPage {
	var page backend.ListPage
	if limit := req.Size(); len(names) > limit {
		names = names[:limit]
		page.Next = names[limit-1]
	}
	for _, n := range names {
		if l := lock(n); !l.Free() {
			page.Locks = append(page.Locks, Info(s, l))
		}
	}
	return page
}

// Page describes the first size locks, of those in order, that have holders or waiters. info describes one. Next is set
// if there is another. The error is the first of info.
func Page[T any](size int, locks []T, info func(T) (backend.LockInfo, error)) (backend.ListPage, error) {
	var page backend.ListPage
	for _, l := range locks {
		i, err := info(l)
		switch {
		case err != nil:
			return backend.ListPage{}, err
		case len(i.Holders)+len(i.Waiters) == 0:
			continue
		case len(page.Locks) == size:
			page.Next = page.Locks[size-1].Name
			return page, nil
		}
		page.Locks = append(page.Locks, i)
	}
	return page, nil
}

// Holders describes leases that are held.
func Holders[L, X any](s Store[L, X], leases []*Lease[L, X]) []backend.Holder {
	var holders []backend.Holder
	for _, h := range leases {
		x := backend.Holder{
			Lease: h.ID, Owner: h.Owner, Note: h.Note, Mode: h.Claim.Mode, Permits: h.Claim.Permits,
			Token: h.Token, Since: h.Since, Left: s.Left(h),
		}
		if !h.Timed {
			x.Session = s.Session(h)
		}
		holders = append(holders, x)
	}
	return holders
}
