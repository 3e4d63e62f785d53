package seqlock

import (
	"sync"
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
	fresh     func() S // may be nil
	all       map[Key]*Lease[S]
	abandoned []Key // in the order in which they were abandoned
}

// Lease is what is known of one lease.
type Lease[S any] struct {
	Store S
	// Entry names its entry in the store. Empty: not known.
	Entry string
	// Unsure is set while there may be an entry that is not known.
	Unsure bool
	// Callers counts what is in progress for the lease.
	Callers int
	// Gone is closed when the lease was released, abandoned or lost. The callers that wait for it
	// stop, and none is granted it.
	Gone chan struct{}

	held      bool // it was granted
	abandoned time.Time
}

// NewLeases returns the leases of a session, which has none yet. fresh returns what the store adds to a
// new one. nil: the zero value.
func NewLeases[S any](s *sessions.Session, fresh func() S) *Leases[S] {
	return &Leases[S]{session: s, fresh: fresh, all: make(map[Key]*Lease[S])}
}

// IsGone reports whether the lease was released, abandoned or lost.
func (l *Lease[S]) IsGone() bool {
	select {
	case <-l.Gone:
		return true
	default:
		return false
	}
}

// IsHeld reports whether the lease was granted, has its entry, and is not gone. The mutex is held.
func (l *Lease[S]) IsHeld() bool { return l.held && l.Entry != "" && !l.IsGone() }

// Grant records that the lease is held. It returns false if the lease is gone. The mutex is held.
func (l *Lease[S]) Grant() bool {
	l.held = true
	return !l.IsGone()
}

func (l *Lease[S]) stop() {
	if !l.IsGone() {
		close(l.Gone)
	}
}

// lease returns what is known of a lease, and begins to know it. The mutex is held.
func (x *Leases[S]) lease(k Key) *Lease[S] {
	l, ok := x.all[k]
	if !ok {
		l = &Lease[S]{Gone: make(chan struct{})}
		if x.fresh != nil {
			l.Store = x.fresh()
		}
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
func (x *Leases[S]) Part(k Key, l *Lease[S]) {
	x.Lock()
	defer x.Unlock()
	l.Callers--
	x.Drop(k, l)
}

// Drop forgets a lease of which there is nothing to know: it has no entry and no caller, and was not
// abandoned. The mutex is held.
func (x *Leases[S]) Drop(k Key, l *Lease[S]) {
	if x.all[k] == l && l.Callers <= 0 && l.Entry == "" && !l.Unsure && l.abandoned.IsZero() {
		delete(x.all, k)
	}
}

// MayHave reports whether the lease has an entry, or may have one.
func (x *Leases[S]) MayHave(l *Lease[S]) bool {
	x.Lock()
	defer x.Unlock()
	return l.Entry != "" || l.Unsure
}

// Knows reports whether anything is known of the lease.
func (x *Leases[S]) Knows(k Key) bool {
	x.Lock()
	defer x.Unlock()
	_, ok := x.all[k]
	return ok
}

// Leave stops the callers that wait for the lease, and lets no other join. It returns nil if nothing
// is known of the lease, except if it is abandoned. The mutex is held.
func (x *Leases[S]) Leave(k Key, abandon bool) *Lease[S] {
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

// Forgotten forgets the leases that were abandoned so long ago that no request for them can be on its
// way any more, and returns them. The mutex is held.
func (x *Leases[S]) Forgotten() []Key {
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

// Settle records that a lease was released and has no entry that is known. If unsure is set, there may
// be another one: the lease stays known until that is settled. The mutex is held.
func (x *Leases[S]) Settle(k Key, l *Lease[S], unsure bool) {
	l.Entry, l.Unsure = "", unsure
	x.Drop(k, l)
}

// Get returns what is known of the lease, or nil. The mutex is held.
func (x *Leases[S]) Get(k Key) *Lease[S] { return x.all[k] }

// Count returns how many leases are known.
func (x *Leases[S]) Count() int {
	x.Lock()
	defer x.Unlock()
	return len(x.all)
}

// Select returns the leases for which f returns true. The mutex is held.
func (x *Leases[S]) Select(f func(*Lease[S]) bool) map[Key]*Lease[S] {
	some := make(map[Key]*Lease[S])
	for k, l := range x.all {
		if f(l) {
			some[k] = l
		}
	}
	return some
}

// Report reports a loss, once, and forgets the leases of that ID, for each of which lose is called
// before that, with the mutex held. Lost is final: no lease of that ID is granted again.
func (x *Leases[S]) Report(loss backend.Loss, lose func(Key, *Lease[S])) {
	x.session.Report(loss, func() {
		x.Lock()
		defer x.Unlock()
		for k, l := range x.all {
			if k.ID == loss.Lease {
				lose(k, l)
				l.stop()
				delete(x.all, k)
			}
		}
	})
}
