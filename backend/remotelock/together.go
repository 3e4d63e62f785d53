package remotelock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// maxRequests is how many shareable requests are in progress at the same time. An operation
	// that arrives while there are that many goes into the next batch.
	maxRequests = 2
	// lateTime is how long a request holds back the next batch: a lock whose answer takes long,
	// or that is waited for, delays no other lock for longer.
	lateTime = 10 * time.Millisecond
	// maxItems and maxItemBytes bound one request. They are below the bounds of the server.
	maxItems     = 128
	maxItemBytes = 60 << 10
	// againAfter is how long batches are not used with a server that does not know the call.
	againAfter = 5 * time.Minute
	// maxCrowded bounds the locks that are known to have a queue.
	maxCrowded = 1024
)

// together sends concurrent acquires and releases in one request. A single operation is sent as
// a request of its own, as without batches. The network never blocks a caller: it waits for its
// answer or for the end of its context.
type together struct {
	b        *Backend
	mu       sync.Mutex
	queue    []*item
	requests int
	late     time.Duration // lateTime, except in tests
	until    time.Time     // no batches before this time: the server does not know the call
	// asking counts the acquires in progress. crowded has the locks for which another waiter
	// was in the queue recently. A lock that is in either is requested by the call that waits:
	// an acquire in a batch does not wait in the queue, and would need a second request.
	asking  map[string]int
	crowded map[string]struct{}
}

// item is one operation in a batch.
type item struct {
	op, name string
	lease    backend.LeaseID
	acquire  backend.AcquireRequest // of an acquire
	size     int                    // upper bound of the bytes that it takes in a request
	done     chan outcome           // capacity 1; gets one value
}

// pending is a request in progress that holds back queued items.
type pending struct {
	t    *together
	late *time.Timer
	over bool // guarded by together.mu
}

// alone returns a request for the caller alone, or nil if the caller has to queue.
func (t *together) alone() *pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.aloneLocked()
}

func (t *together) aloneLocked() *pending {
	if len(t.queue) > 0 || t.requests >= maxRequests {
		return nil
	}
	return t.leaveLocked()
}

// enqueue queues the item, unless the caller can now have a request of its own, which it then
// returns.
func (t *together) enqueue(it *item) *pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.aloneLocked(); f != nil {
		return f
	}
	it.done = make(chan outcome, 1)
	t.queue = append(t.queue, it)
	return nil
}

// off reports whether batches are off for now.
func (t *together) off() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.until.IsZero() && time.Now().Before(t.until)
}

// turnOff turns batches off for a while.
func (t *together) turnOff() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = time.Now().Add(againAfter)
}

// leaveLocked begins a request.
func (t *together) leaveLocked() *pending {
	t.requests++
	f := &pending{t: t}
	f.late = time.AfterFunc(t.late, f.finish)
	return f
}

// finish ends the hold of the request on the queue: the next batch is sent now. Further calls do
// nothing.
func (f *pending) finish() {
	t := f.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.over {
		return
	}
	f.over = true
	f.late.Stop()
	t.requests--
	batch := t.loadLocked()
	if len(batch) == 0 {
		return
	}
	next := t.leaveLocked()
	if len(batch) == 1 {
		batch[0].done <- outcome{alone: true, request: next}
		return
	}
	// A caller with a queued item is inside a counted call, and removes its item from the queue
	// before it returns. So work is above zero here, and Close waits for this goroutine too.
	t.b.work.Go(func() { t.b.sendBatch(next, batch) })
}

// loadLocked takes the next batch from the queue.
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

// forget removes an item from the queue, if it is still there.
func (t *together) forget(it *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, it); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	}
}

// asks counts an acquire of the lock as in progress, until the function that it returns is
// called. It reports whether another client may be before it.
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

// saw records whether there was a queue for the lock.
func (t *together) saw(name string, queue bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !queue {
		delete(t.crowded, name)
		return
	}
	if len(t.crowded) >= maxCrowded {
		clear(t.crowded)
	}
	t.crowded[name] = struct{}{}
}

// ride waits for the outcome of a queued item.
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
		if unwanted.request != nil {
			unwanted.request.finish()
		}
	default:
	}
	return o
}
