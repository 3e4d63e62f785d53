package memlock

import (
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/schedule"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// Store keeps the leases. It plays the server: the Backends that Open returns share its locks
// and nothing else. Its methods are safe for concurrent use.
type Store struct {
	epoch time.Time // instants count from it; never changes

	mu       sync.Mutex // guards the fields below, and the fields of everything in them
	now      instant    // the time of the call that is in the store
	token    fence.Token
	locks    map[string]*lock // those with a holder or a waiter
	sessions map[backend.SessionID]*session
	due      schedule.Schedule[instant, any]

	abandoned *lockstate.Ended[lockstate.Key]
	ended     *lockstate.Ended[backend.SessionID]

	changed  lockstate.Changed[ofLock, ofLease] // may also be forgotten
	spare    []*lock                            // forgotten, for reuse
	told     []notice
	watchers map[*waiters.Watcher]struct{}

	opened  int         // the number of open Backends
	timer   *time.Timer // expires what is due while there are no calls
	timerAt instant     // when it fires; never: it is not set
}

// instant is a point of the monotonic clock, counted from Store.epoch.
type instant time.Duration

const never instant = 1<<63 - 1

// remembered is how long what ended, or was abandoned, is kept from coming back, at least.
const remembered = 10 * time.Minute

// NewStore creates an empty store.
func NewStore() *Store {
	return &Store{
		epoch:     time.Now(),
		locks:     make(map[string]*lock),
		sessions:  make(map[backend.SessionID]*session),
		abandoned: lockstate.NewEnded[lockstate.Key](remembered),
		ended:     lockstate.NewEnded[backend.SessionID](remembered),
		watchers:  make(map[*waiters.Watcher]struct{}),
		timerAt:   never,
	}
}

// New creates a store of its own and the one Backend on it.
func New() *Backend { return NewStore().Open() }

// Open returns another Backend on the store, as another process would have one. Close it when
// it is not needed any more.
func (s *Store) Open() *Backend {
	s.enter()
	defer s.leave()
	s.opened++
	return &Backend{store: s, done: make(chan struct{})}
}

// enter locks the store and brings it up to the present: it ends what has expired, and hands
// over what that freed. Every enter is followed by a leave.
func (s *Store) enter() {
	s.mu.Lock()
	s.now = instant(time.Since(s.epoch))
	s.expire()
	s.settle()
}

// leave hands over what the call freed, unlocks the store and then reports the losses: a
// listener may call the store.
func (s *Store) leave() {
	s.settle()
	s.arm()
	told := s.told
	s.told = nil
	s.mu.Unlock()
	for _, n := range told {
		n.tell(n.loss)
	}
}

// wall returns the current time for display. It has no monotonic part: it is not for
// computing.
func (s *Store) wall() time.Time {
	return s.epoch.Add(time.Duration(s.now)).Round(0)
}

// settle grants every lock that changed to the waiters that it now has room for, and forgets
// locks that are neither held nor waited for.
func (s *Store) settle() {
	for l := s.changed.Next(); l != nil; l = s.changed.Next() {
		lockstate.Settle(s.rules(), l, nil)
		if l.Free() {
			s.forget(l)
		}
	}
}

// lock returns the lock, and creates it if needed. settle forgets a lock that stays free.
func (s *Store) lock(name string) *lock {
	if l, ok := s.locks[name]; ok {
		return l
	}
	var l *lock
	if n := len(s.spare); n > 0 {
		l = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else {
		l = new(lock)
	}
	l.Name = name
	s.locks[name] = l
	s.changed.Add(l)
	return l
}

func (s *Store) forget(l *lock) {
	const spares, small = 64, 16
	delete(s.locks, l.Name)
	if len(s.spare) < spares && cap(l.Holders.Leases) <= small && cap(l.Queue.Leases) <= small {
		l.Name, l.Own.token = "", 0
		s.spare = append(s.spare, l)
	}
}
