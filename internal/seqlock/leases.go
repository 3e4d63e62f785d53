package seqlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

// Key names a lease.
type Key struct {
	Name string // of the lock
	ID   backend.LeaseID
}

// Leases are what is known here of the leases of a session: those with an entry, those that are being
// acquired, and those that must not be granted any more. S is what the store adds to each. The mutex
// guards all of it; the methods lock it, unless they say otherwise.
type Leases[S any] struct {
	sync.Mutex

	session   *sessions.Session
	forget    func(*Lease[S]) // may be nil
	all       map[Key]*Lease[S]
	abandoned []Key // in the order in which they were abandoned
}

// Lease is what is known of one lease.
type Lease[S any] struct {
	Key

	Store S
	// Entry names its entry in the store. Empty: there is none, or it is not known.
	Entry string
	// Unsure is set while there may be an entry that is not known.
	Unsure bool
	// Callers counts what is in progress for the lease.
	Callers int

	gone      atomic.Bool   // set with the mutex held
	held      bool          // it was granted
	stopped   chan struct{} // closed when it is gone; nil until Gone is called
	turn      chan struct{} // capacity 1; nil until Turn is called
	abandoned time.Time
}

// NewLeases returns the leases of a session, which has none yet. forget is called with the mutex held
// before the entry of a lease is forgotten. It may be nil.
func NewLeases[S any](s *sessions.Session, forget func(*Lease[S])) *Leases[S] {
	return &Leases[S]{session: s, forget: forget, all: make(map[Key]*Lease[S])}
}

// IsGone reports whether the lease was released, abandoned or lost. It needs no mutex.
func (l *Lease[S]) IsGone() bool { return l.gone.Load() }

// Gone returns a channel that is closed when the lease was released, abandoned or lost. The callers
// that wait for the lease stop then, and none is granted it.
func (x *Leases[S]) Gone(l *Lease[S]) <-chan struct{} {
	x.Lock()
	defer x.Unlock()
	if l.stopped == nil { // made only now: a lease that is held, of which there are many, needs none
		l.stopped = make(chan struct{})
		if l.IsGone() {
			close(l.stopped)
		}
	}
	return l.stopped
}

// Turn waits until no other caller looks for the entry and makes it, in a store in which two such callers
// could make two. The turn ends with a call of the function. Errors: ErrSessionLost; ctx's cause.
func (x *Leases[S]) Turn(ctx context.Context, l *Lease[S]) (func(), error) {
	x.Lock()
	if l.turn == nil {
		l.turn = make(chan struct{}, 1)
	}
	turn := l.turn
	x.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-x.session.Life.Done():
		return nil, backend.ErrSessionLost
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// IsHeld reports whether the lease was granted, has its entry, and is not gone. The mutex is held.
func (l *Lease[S]) IsHeld() bool { return l.held && l.Entry != "" && !l.IsGone() }

// Grant records that the lease is held. ErrLost: it is gone.
func (x *Leases[S]) Grant(l *Lease[S]) error {
	x.Lock()
	defer x.Unlock()
	l.held = true
	if l.IsGone() {
		return backend.ErrLost
	}
	return nil
}

// stop tells those that wait for the lease that it is gone. The mutex is held.
func (l *Lease[S]) stop() {
	if !l.gone.Swap(true) && l.stopped != nil {
		close(l.stopped)
	}
}

// lease returns what is known of a lease, and begins to know it. The mutex is held.
func (x *Leases[S]) lease(k Key) *Lease[S] {
	l, ok := x.all[k]
	if !ok {
		l = &Lease[S]{Key: k}
		x.all[k] = l
	}
	return l
}

// Join begins an acquire of the lease. ErrLost: it was abandoned, its loss was reported, or its release
// has not ended yet. A release of unknown outcome counts as a release: the entry may be deleted at any
// time, so the lease must not be granted again. ErrSessionLost: the session has ended.
func (x *Leases[S]) Join(k Key) (*Lease[S], error) {
	x.Lock()
	defer x.Unlock()
	if x.session.Life.Err() != nil {
		return nil, backend.ErrSessionLost
	}
	if x.session.IsLost(k.ID) {
		return nil, backend.ErrLost
	}
	l := x.lease(k)
	if l.IsGone() {
		return nil, backend.ErrLost
	}
	l.Callers++
	return l, nil
}

// Part ends what Join began.
func (x *Leases[S]) Part(l *Lease[S]) {
	x.Lock()
	defer x.Unlock()
	l.Callers--
	x.Drop(l)
}

// Drop forgets a lease of which there is nothing to know: it has no entry and no caller, and was not
// abandoned. The mutex is held.
func (x *Leases[S]) Drop(l *Lease[S]) {
	if x.all[l.Key] == l && l.Callers <= 0 && l.Entry == "" && !l.Unsure && l.abandoned.IsZero() {
		delete(x.all, l.Key)
	}
}

// Outcome returns the error of an acquire whose attempt ended with err. Base is that of the backend. Not even a grant
// counts when base has ended (ErrClosed), when the session has (ErrSessionLost), also on the way, and when the loss of
// the lease was reported (ErrLost). The end of ctx alone says nothing about the session.
func (x *Leases[S]) Outcome(ctx, base context.Context, id backend.LeaseID, err error) error {
	switch s := x.session; {
	case base.Err() != nil:
		return backend.ErrClosed
	case err == nil && s.Left() <= 0, s.Life.Err() != nil && ctx.Err() == nil:
		return backend.ErrSessionLost
	case s.IsLost(id):
		return backend.ErrLost
	}
	return err
}

// MayHold returns err, the error of an acquire. An *UnavailableError says that the lease may be held if it has an entry,
// or may have one, whatever was refused since.
func (x *Leases[S]) MayHold(l *Lease[S], err error) error {
	x.Lock()
	defer x.Unlock()
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok && (l.Entry != "" || l.Unsure) {
		away.MayHold = true
	}
	return err
}

// Knows reports whether anything is known of the lease.
func (x *Leases[S]) Knows(k Key) bool {
	x.Lock()
	defer x.Unlock()
	_, ok := x.all[k]
	return ok
}

// Leave stops the callers that wait for the lease, and lets no other join. It returns nil if nothing
// is known of the lease and it is not abandoned.
func (x *Leases[S]) Leave(k Key, abandon bool) *Lease[S] {
	x.Lock()
	defer x.Unlock()
	l := x.all[k]
	if abandon {
		l = x.lease(k)
		if l.abandoned.IsZero() {
			x.abandoned = append(x.abandoned, k)
		}
		l.abandoned = time.Now()
	}
	if l != nil {
		l.stop()
	}
	return l
}

// ForgetAbandoned forgets the leases that were abandoned so long ago that no request for them can be on
// its way any more, and returns them.
func (x *Leases[S]) ForgetAbandoned() []Key {
	x.Lock()
	defer x.Unlock()
	var old []Key
	for len(x.abandoned) > 0 {
		k := x.abandoned[0]
		if l, ok := x.all[k]; ok && !l.abandoned.IsZero() {
			if time.Since(l.abandoned) <= sessions.Remembered {
				break
			}
			delete(x.all, k)
			old = append(old, k)
		}
		x.abandoned = x.abandoned[1:]
	}
	return old
}

// Settle records that a lease was released and has no entry. If the entry is just being made, the lease
// stays known until that has ended.
func (x *Leases[S]) Settle(k Key) {
	x.Lock()
	defer x.Unlock()
	if l, ok := x.all[k]; ok {
		x.noEntry(l, l.Unsure && len(l.turn) > 0)
		x.Drop(l)
	}
}

// Forget records that a lease has no entry, and none is being made.
func (x *Leases[S]) Forget(l *Lease[S]) {
	x.Lock()
	defer x.Unlock()
	x.noEntry(l, false)
}

func (x *Leases[S]) noEntry(l *Lease[S], unsure bool) {
	if x.forget != nil {
		x.forget(l)
	}
	l.Entry, l.Unsure = "", unsure
}

// EntryOf returns the entry of a lease that is held. Empty: it is not held.
func (x *Leases[S]) EntryOf(k Key) string {
	x.Lock()
	defer x.Unlock()
	if l, ok := x.all[k]; ok && l.IsHeld() {
		return l.Entry
	}
	return ""
}

// Held returns the leases that are held, in any order.
func (x *Leases[S]) Held() []Key {
	x.Lock()
	defer x.Unlock()
	var some []Key
	for k, l := range x.all {
		if l.IsHeld() {
			some = append(some, k)
		}
	}
	return some
}

// Count returns how many leases are known.
func (x *Leases[S]) Count() int {
	x.Lock()
	defer x.Unlock()
	return len(x.all)
}

// Report reports a loss, once, and forgets the leases of that ID, for each of which lose is called
// before that, with the mutex held. Lost is final: no lease of that ID is granted again.
func (x *Leases[S]) Report(loss backend.Loss, lose func(*Lease[S])) {
	x.session.Report(loss, func() {
		x.Lock()
		defer x.Unlock()
		for k, l := range x.all {
			if k.ID == loss.Lease {
				lose(l)
				x.noEntry(l, l.Unsure)
				l.stop()
				delete(x.all, k)
			}
		}
	})
}
