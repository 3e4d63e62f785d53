package etcdlock

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// queues are the locks that callers of this backend value wait for. Each has one watch, whatever the
// number of waiters, and all watches share one stream.
type queues struct {
	b      *Backend
	mu     sync.Mutex
	byName map[string]*queue
}

// queue is the waiters of one lock in this process.
type queue struct {
	name string

	// Guarded by queues.mu.
	waiters []*waiter // in the order of their entries
	watch   *watch    // nil: none
	broken  int       // watches that broke since one that did not

	// turn has capacity 1 and is held by the caller that reads the lock. It guards snap.
	turn chan struct{}
	snap *snapshot // the newest; nil: none
}

// watch is one watch of a queue: on one entry as long as no waiter here needs more, else on all of
// the lock. Only deletions are sent. A waiter that reads while they arrive finds them here afterwards.
type watch struct {
	key     string           // empty: all of the lock
	from    int64            // the first revision that is watched, and that deleted is complete from
	deleted map[string]int64 // by key: the newest revision at which it was deleted
	last    int64            // the newest revision of all these
	cancel  context.CancelFunc
}

// keptDeletions bounds watch.deleted: beyond that it begins again, empty.
const keptDeletions = 1024

// waiter is a call of Acquire that is in the queue. It reads where it stands, then registers what it
// needs to happen and waits until it is woken, then reads again.
type waiter struct {
	queue *queue
	lease backend.LeaseID
	rev   int64         // create revision of the entry
	sess  *session      // that the entry is under
	key   string        // of the entry; empty: a release cannot decide for this waiter
	wake  chan struct{} // capacity 1

	// Guarded by queues.mu.
	waits bool // it waits for need; otherwise it reads
	need  need
	asOf  int64     // the revision that need was read at
	ends  int       // how many releases are under way that will report whether the waiter is next
	next  time.Time // when the release was sent that found that the waiter is next; zero: none did
}

// snapshot is a lock at one revision.
type snapshot struct {
	st    state
	rev   int64
	asked time.Time
}

// join adds a waiter, which is about to read.
func (l *queues) join(name string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, ok := l.byName[name]
	if !ok {
		q = &queue{name: name, turn: make(chan struct{}, 1)}
		l.byName[name] = q
	}
	w.queue, w.wake = q, make(chan struct{}, 1)
	i, _ := slices.BinarySearchFunc(q.waiters, w.rev, func(o *waiter, rev int64) int { return cmp.Compare(o.rev, rev) })
	q.waiters = slices.Insert(q.waiters, i, w)
}

// leave removes a waiter. If it stood before others that wait for any deletion, the first of them
// has to read: it may have been this waiter's turn.
func (l *queues) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := w.queue
	i := slices.Index(q.waiters, w)
	q.waiters = slices.Delete(q.waiters, i, i+1)
	if len(q.waiters) == 0 {
		q.stop()
		delete(l.byName, q.name)
		return
	}
	q.wakeFirst()
}

// wakeFirst makes the first of those read that wait for any deletion.
func (q *queue) wakeFirst() {
	if i := slices.IndexFunc(q.waiters, func(w *waiter) bool { return w.waits && w.need.any }); i >= 0 {
		q.waiters[i].signal()
	}
}

// owedTime is how long a waiter that was woken waits for the result of a release.
const owedTime = 10 * time.Millisecond

// after returns the waiter of this process that stands right behind an entry about to be released,
// or nil if there is none. The caller must pass it to hand afterwards.
func (l *queues) after(name string, e entryRef) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, ok := l.byName[name]
	if !ok {
		return nil
	}
	for _, w := range q.waiters {
		if w.waits && w.need == (need{key: e.key, rev: e.rev}) && w.key != "" {
			w.ends++
			return w
		}
	}
	return nil
}

// hand reports to a waiter that a release has finished, which was sent at that moment, and whether it found that
// the waiter is next.
func (l *queues) hand(w *waiter, asked time.Time, isNext bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.ends--
	if isNext {
		w.next = asked
	}
	w.signal()
}

// took returns when the release was sent that found that the waiter is next; zero: none did.
func (l *queues) took(w *waiter) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.next
}

// waits reports whether a caller of this backend value waits for the lock.
func (l *queues) waits(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byName[name] != nil
}

// remove makes the waiters of a lease read, of which this process has removed the entry.
func (l *queues) remove(name string, lease backend.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q, ok := l.byName[name]; ok {
		for _, w := range q.waiters {
			if w.lease == lease {
				w.signal()
			}
		}
	}
}

// check records that the waiter is about to read. It returns the revision that the read has to be
// at least as new as.
func (l *queues) check(w *waiter) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.waits = false
	select {
	case <-w.wake:
	default:
	}
	if w.queue.watch == nil {
		return w.asOf + 1
	}
	return max(w.queue.watch.last, w.asOf+1)
}

// await arranges for the waiter to be woken when what it needs happens after the revision asOf. It
// returns false if that has happened already, or may have: then the waiter must read again.
func (l *queues) await(w *waiter, n need, asOf int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.need, w.asOf = n, asOf
	l.cover(w)
	w.waits = !w.queue.watch.met(n, asOf)
	return w.waits
}

// met reports whether what a waiter needs has happened after the revision asOf, or may have, before
// the watch began.
func (wt *watch) met(n need, asOf int64) bool {
	if n.any {
		return wt.from > asOf+1 || wt.last > asOf
	}
	return wt.from > asOf+1 || wt.deleted[n.key] > asOf
}

// signal makes the waiter read.
func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// cover makes sure that the queue's watch delivers what w needs.
func (l *queues) cover(w *waiter) {
	q, key := w.queue, ""
	if len(q.waiters) == 1 {
		key = w.need.key
	}
	if q.watch != nil && (q.watch.key == "" || q.watch.key == key) {
		return
	}
	q.stop()
	from := w.asOf + 1
	for _, o := range q.waiters {
		if o.waits {
			from = min(from, o.asOf+1)
		}
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(l.b.base))
	wt := &watch{key: key, from: from, deleted: make(map[string]int64), cancel: cancel}
	q.watch = wt
	l.b.calls.Go(func() { // w's call is inside, so that Close waits
		defer cancel()
		l.pump(ctx, q, wt, from)
	})
}

func (q *queue) stop() {
	if q.watch != nil {
		q.watch.cancel()
		q.watch = nil
	}
}

// pump passes on what the watch delivers, until the watch is stopped or breaks.
func (l *queues) pump(ctx context.Context, q *queue, wt *watch, from int64) {
	opts := []clientv3.OpOption{clientv3.WithRev(from), clientv3.WithFilterPut(), clientv3.WithCreatedNotify()}
	key := wt.key
	if key == "" {
		all := l.b.keys.entries(q.name)
		key, opts = all.from, append(opts, clientv3.WithRange(all.to))
	}
	for resp := range l.b.client.Watch(ctx, key, opts...) {
		if resp.Err() != nil {
			break
		}
		l.deliver(q, wt, resp.Events)
	}
	if ctx.Err() == nil {
		l.broke(ctx, q, wt)
	}
}

// deliver wakes the waiters that the deletions concern.
func (l *queues) deliver(q *queue, wt *watch, events []*clientv3.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.watch != wt {
		return
	}
	q.broken = 0
	for _, ev := range events {
		key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
		if len(wt.deleted) >= keptDeletions {
			clear(wt.deleted)
			wt.from = rev + 1
		}
		wt.deleted[key], wt.last = rev, rev
		for _, w := range q.waiters {
			switch {
			case !w.waits || w.need.any || w.need.key != key:
			case w.ends > 0: // the release is about to wake it
				time.AfterFunc(owedTime, w.signal)
			default:
				w.signal()
			}
		}
		q.wakeFirst()
	}
}

// broke makes every waiter read, after a moment, because the watch delivers nothing any more: etcd
// compacted the revisions, has no leader, or became unreachable.
func (l *queues) broke(ctx context.Context, q *queue, wt *watch) {
	l.mu.Lock()
	n := q.broken
	q.broken++
	l.mu.Unlock()
	retry.Pause(ctx, delay(n))
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.watch != wt {
		return
	}
	q.watch = nil
	for _, w := range q.waiters {
		if w.waits {
			w.signal()
		}
	}
}

// snapshot reads the whole lock, at the revision since or later, or returns what another waiter has
// read.
func (l *queues) snapshot(ctx context.Context, w *waiter, since int64) (*snapshot, error) {
	q := w.queue
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return nil, fail(ctx, opAcquire, context.Cause(ctx), false)
	}
	if q.snap != nil && q.snap.rev >= since {
		return q.snap, nil
	}
	asked := time.Now()
	st, rev, err := l.b.read(ctx, q.name)
	if err != nil {
		return nil, err
	}
	q.snap = &snapshot{st: st, rev: rev, asked: asked}
	return q.snap, nil
}
