package remotelock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// maxFlights is how many requests that others could share are under way at once. What is
	// asked while all of them are travels in the next.
	maxFlights = 2
	// lateTime is how long a request keeps others from leaving: a lock whose answer takes
	// long, or that is waited for, holds up nobody else's.
	lateTime = 10 * time.Millisecond
	// maxItems and maxItemBytes bound one request, below the bounds of the server.
	maxItems     = 128
	maxItemBytes = 60 << 10
	// againAfter is how long a server that does not know the call is not asked for it.
	againAfter = 5 * time.Minute
	// maxCrowded bounds the locks that are known to have a line.
	maxCrowded = 1024
)

// together has acquires and releases that are asked for at the same time travel in one
// request. Who asks alone sends a request of its own, as if there were nobody else. A
// caller is never blocked by the network: it waits for its answer or for the end of its
// context.
type together struct {
	b       *Backend
	mu      sync.Mutex
	queue   []*item
	flights int
	late    time.Duration // lateTime, but in tests
	until   time.Time     // before that everybody asks alone: the server does not know the call
	// asking counts the acquires under way, and crowded are the locks for which somebody else
	// was in line lately. A lock that is in either is asked for by the call that waits: what
	// travels with others does not stand in line, and would have to ask twice.
	asking  map[string]int
	crowded map[string]struct{}
}

// item is one operation on its way.
type item struct {
	op, name string
	lease    backend.LeaseID
	acquire  backend.AcquireRequest // of an acquire
	size     int                    // bytes that it takes in a request, at most
	done     chan outcome           // capacity 1; gets one value
}

// flight is a request under way that keeps others from leaving.
type flight struct {
	t    *together
	late *time.Timer
	over bool // guarded by together.mu
}

// alone gives the caller a flight of its own, where nobody is to be waited for.
func (t *together) alone() *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.aloneLocked()
}

func (t *together) aloneLocked() *flight {
	if len(t.queue) > 0 || t.flights >= maxFlights {
		return nil
	}
	return t.leaveLocked()
}

// board queues the item, unless the caller has a flight of its own by now.
func (t *together) board(it *item) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.aloneLocked(); f != nil {
		return f
	}
	it.done = make(chan outcome, 1)
	t.queue = append(t.queue, it)
	return nil
}

// grounded reports whether nobody travels with others.
func (t *together) grounded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.until.IsZero() && time.Now().Before(t.until)
}

// ground has everybody ask alone for a while.
func (t *together) ground() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = time.Now().Add(againAfter)
}

// leaveLocked begins a flight.
func (t *together) leaveLocked() *flight {
	t.flights++
	f := &flight{t: t}
	f.late = time.AfterFunc(t.late, f.land)
	return f
}

// land ends the flight for the others: what was asked meanwhile leaves now. Calling it
// again does nothing.
func (f *flight) land() {
	t := f.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.over {
		return
	}
	f.over = true
	f.late.Stop()
	t.flights--
	batch := t.loadLocked()
	if len(batch) == 0 {
		return
	}
	next := t.leaveLocked()
	if len(batch) == 1 {
		batch[0].done <- outcome{alone: true, flight: next}
		return
	}
	// Who queued is inside a call, and takes itself out of the queue before it leaves that:
	// so Close waits for this one too.
	t.b.work.Go(func() { t.b.fly(next, batch) })
}

// loadLocked takes the next batch off the queue.
func (t *together) loadLocked() []*item {
	n, size := 0, 0
	for n < len(t.queue) && n < maxItems && (n == 0 || size+t.queue[n].size <= maxItemBytes) {
		size += t.queue[n].size
		n++
	}
	batch := slices.Clone(t.queue[:n])
	t.queue = slices.Delete(t.queue, 0, n)
	return batch
}

// forget takes an item out of the queue, if it has not left.
func (t *together) forget(it *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, it); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	}
}

// asks counts an acquire of the lock that is under way, until the function that it gives is
// called, and reports whether others may be before it.
func (t *together) asks(name string) (bool, func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, crowded := t.crowded[name]
	crowded = crowded || t.asking[name] > 0
	t.asking[name]++
	return crowded, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.asking[name]--; t.asking[name] == 0 {
			delete(t.asking, name)
		}
	}
}

// saw notes whether there was a line for the lock.
func (t *together) saw(name string, line bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !line {
		delete(t.crowded, name)
		return
	}
	if len(t.crowded) >= maxCrowded {
		clear(t.crowded)
	}
	t.crowded[name] = struct{}{}
}

// ride waits for what becomes of a queued item.
func (t *together) ride(ctx context.Context, it *item) outcome {
	var o outcome
	select {
	case o = <-it.done:
		return o
	case <-ctx.Done():
		o.err = context.Cause(ctx)
	case <-t.b.life.Done():
		o.err = context.Cause(t.b.life)
	}
	t.forget(it)
	select {
	case unwanted := <-it.done:
		if unwanted.flight != nil {
			unwanted.flight.land()
		}
	default:
	}
	return o
}
