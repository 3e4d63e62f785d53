package sqllease

import (
	"errors"
	"math"
	"time"
)

// A hand-over concerns the holders of a lock and the next waiters. Of a long queue only the front
// is read, up to a place that is remembered here. The waiters behind it are counted, so that no
// waiter is overtaken and no limit is forgotten. When the front is used up, the next transaction reads
// the whole queue. A transaction for which the front does not reach far enough is undone and repeated so.

const (
	// frontOf is how many waiters the front has. A longer queue is long.
	frontOf = 16
	// unreadRest is after how long a waiter that joins such a queue polls: a waiter that was not
	// read may end at any time. What the poll finds determines the time of the next one.
	unreadRest = time.Second
	// maxFronts bounds the queues that are remembered.
	maxFronts = 1 << 12
)

// errMore means that more of a queue has to be read. Nothing was changed.
var errMore = errors.New("more of a queue has to be read")

// front returns up to which place the queues of these locks are to be read; nil: all of them as a whole.
func (b *Leases) front(names []string) map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	fronts, some := make(map[string]int64), false
	for _, name := range names {
		place, long := b.fronts[name]
		if !long {
			place = math.MaxInt64
		}
		fronts[name], some = place, some || long
	}
	if !some {
		return nil
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
		switch {
		case l.Rest > 0 && len(l.Queue.Leases) > 1 && l.Queue.Leases[1].Own.place <= l.Own.front:
			// there are two waiters of the front at least
		case l.Rest > 0 || l.QueueLen() <= frontOf:
			delete(b.fronts, name)
		default:
			if len(b.fronts) >= maxFronts {
				clear(b.fronts)
			}
			b.fronts[name] = l.Queue.Leases[frontOf-1].Own.place
		}
	}
}
