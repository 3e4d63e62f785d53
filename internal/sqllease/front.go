package sqllease

import (
	"errors"
	"time"
)

// A hand-over concerns the holders of a lock and the next waiters. Of a long queue only the front
// is read, up to a place that is remembered here. The waiters behind it are counted, so that no
// waiter is overtaken and no limit is forgotten. The place is a guess: where it does not reach
// far enough, the transaction is undone and repeated with the whole queue.

const (
	// longQueue is the longest queue that is read as a whole.
	longQueue = 16
	// frontOf is how many waiters the front has. With leastFront or less it is moved on.
	frontOf    = 8
	leastFront = 3
	// unreadRest is after how long a waiter that joins such a queue polls: a waiter that was not
	// read may end at any time. What the poll finds determines the time of the next one.
	unreadRest = time.Second
	// maxFronts bounds the queues that are remembered.
	maxFronts = 1 << 12
)

// errMore means that more of a queue has to be read. Nothing was changed.
var errMore = errors.New("more of a queue has to be read")

// front returns up to which place the queues of these locks are to be read.
func (b *Leases) front(names []string) map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	fronts := make(map[string]int64)
	for _, name := range names {
		if place, long := b.fronts[name]; long {
			fronts[name] = place
		}
	}
	return fronts
}

// readAll makes the next transaction read the whole queues of these locks.
func (b *Leases) readAll(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		delete(b.fronts, name)
	}
}

// stood remembers the fronts of long queues after a transaction.
func (b *Leases) stood(t *txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range t.locks {
		front := 0 // how many waiters of it were read
		for _, w := range l.Queue.Leases {
			if w.Own.place <= l.Own.front {
				front++
			}
		}
		switch {
		case l.QueueLen() <= longQueue:
			delete(b.fronts, name)
		case l.Rest == 0:
			if len(b.fronts) >= maxFronts {
				clear(b.fronts)
			}
			b.fronts[name] = l.Queue.Leases[frontOf-1].Own.place
		case front <= leastFront:
			b.fronts[name] = l.Own.rest + frontOf*Reserve // one more at least, and those that came right after it
		}
	}
}
