package sqllease

import (
	"errors"
	"time"
)

// A hand-over is about who holds the lock and who is next. Of a long line only the front is
// read, up to a place that is remembered here: what stands behind is counted, so that
// nobody is overtaken and no limit is forgotten. That place is a guess: where it does not
// reach far enough, the transaction is undone and done again with all of the line.

const (
	// longLine is how many stand in a line of which only the front is read.
	longLine = 16
	// frontOf is how many of them that is; with less than leastFront it is moved on.
	frontOf    = 8
	leastFront = 3
	// unreadRest is after what time who joins such a line looks: whoever was not read may end
	// at any time. What it sees then tells when to look again.
	unreadRest = time.Second
	// maxFronts bounds the lines that are remembered.
	maxFronts = 1 << 12
)

// errMore: more of a line has to be read. Nothing was changed.
var errMore = errors.New("more of a line has to be read")

// front is up to where the lines are to be read for the requests.
func (b *Leases) front(reqs []*request) map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	fronts := make(map[string]int64)
	for _, r := range reqs {
		if place, long := b.fronts[r.scope.Names[0]]; long {
			fronts[r.scope.Names[0]] = place
		}
	}
	for _, r := range reqs {
		if r.full {
			delete(fronts, r.scope.Names[0])
		}
	}
	return fronts
}

// readAll has the lines of the locks read as they are, the next time.
func (b *Leases) readAll(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		delete(b.fronts, name)
	}
}

// stood remembers where the front of long lines is, after a transaction.
func (b *Leases) stood(t *txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range t.locks {
		front := 0 // that were read of it
		for _, w := range l.line.leases {
			if w.place <= l.front {
				front++
			}
		}
		switch {
		case l.waiting() <= longLine:
			delete(b.fronts, name)
		case l.rest == 0:
			if len(b.fronts) >= maxFronts {
				clear(b.fronts)
			}
			b.fronts[name] = l.line.leases[frontOf-1].place
		case front <= leastFront:
			b.fronts[name] = l.front + frontOf*Reserve // one who comes takes so many
		}
	}
}
