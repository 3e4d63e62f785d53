package remotelock

import (
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
	// maxItems and maxBytes bound one request. They are below the bounds of the server.
	maxItems = 128
	maxBytes = 60 << 10
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
	work     sync.WaitGroup // batches in progress
	late     time.Duration  // lateTime, except in tests
	until    time.Time      // no batches before this time: the server does not know the call
	// asking counts the acquires in progress. crowded has the locks for which another waiter
	// was in the queue recently. A lock that is in either is requested by the call that waits:
	// an acquire in a batch does not wait in the queue, and would need a second request.
	asking  map[string]int
	crowded map[string]struct{}
}

// item is one operation in a batch.
type item struct {
	op   string
	req  backend.AcquireRequest // of a release: the name and the lease
	done chan outcome           // capacity 1; gets one value
}

func (it *item) call() call {
	return call{op: it.op, name: it.req.Name, limit: it.req.Limit, changes: true}
}

// size returns an upper bound for the bytes that the item takes in a request: a byte of a text may
// become six of JSON.
func (it *item) size() int {
	const frame = len(`{"name":"","lease":"","ttl":"2562047h47m16.854775807s","owner":"","shared":true,"limit":1048576,"permits":1048576,"note":""},`)
	return frame + len(it.req.Lease) + 6*(len(it.req.Name)+len(it.req.Owner)+len(it.req.Note))
}

// pending is a request in progress that holds back queued items.
type pending struct {
	t    *together
	late *time.Timer
	over bool // guarded by together.mu
}

// enqueue queues an operation, unless its caller has to send it alone: then it returns the caller's request, which is
// nil while batches are off.
func (t *together) enqueue(op string, req backend.AcquireRequest) (*item, *pending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case time.Now().Before(t.until):
		return nil, nil
	case len(t.queue) == 0 && t.requests < maxRequests:
		return nil, t.leaveLocked()
	}
	it := &item{op: op, req: req, done: make(chan outcome, 1)}
	t.queue = append(t.queue, it)
	return it, nil
}

// close ends the backend's life, and waits for the batches in progress. None is sent afterwards.
func (t *together) close() {
	t.mu.Lock()
	t.b.end(backend.ErrClosed)
	t.mu.Unlock()
	t.work.Wait()
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
// nothing, nor do those for nil.
func (f *pending) finish() {
	if f == nil {
		return
	}
	t := f.t
	t.mu.Lock()
	defer t.mu.Unlock()
	f.late.Stop()
	if f.over || t.b.life.Err() != nil {
		return
	}
	f.over = true
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
	t.work.Go(func() { t.b.sendBatch(next, batch) })
}

// loadLocked takes the next batch from the queue.
func (t *together) loadLocked() []*item {
	n := fit(t.queue, maxItems, (*item).size)
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

// fit returns how many of the items, from the first, one request takes: one at least.
func fit[T any](items []T, most int, size func(T) int) int {
	n, total := 0, 0
	for n < min(len(items), most) {
		total += size(items[n])
		if n > 0 && total > maxBytes {
			break
		}
		n++
	}
	return n
}
