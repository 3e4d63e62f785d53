package etcdlock

import (
	"cmp"
	"context"
	"math"
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

// queue is the waiters of one lock in this process. Guarded by queues.mu.
type queue struct {
	name    string
	waiters map[*waiter]struct{}
	byKey   map[string][]*waiter // those that wait for the deletion of one entry
	any     []*waiter            // those that wait for any deletion, in order
	watch   *watch               // nil: none
	broken  int                  // watches that broke since one that did not

	snap    *snapshot     // the newest
	reading chan struct{} // closed when the snapshot being read is there; nil: none
}

// watch is one watch of a queue: on one entry as long as no waiter here needs more, else on all of
// the lock. Only deletions are sent.
type watch struct {
	key    string // empty: all of the lock
	from   int64
	seen   int64 // the newest revision that it delivered
	cancel context.CancelFunc
}

// waiter is a call of Acquire that is in the queue.
type waiter struct {
	turn
	queue *queue
	lease backend.LeaseID
	wake  chan struct{} // capacity 1: read again
	gone  chan struct{} // capacity 1: this process removed the entry

	// Guarded by queues.mu.
	checking bool // it reads: what happens in the meantime is kept in missed
	missed   []deletion
	deaf     int64 // what the watch delivered up to here, this waiter did not get
	need     need
	asOf     int64 // the revision that need was read at
	woken    int64 // the revision that woke it
	handed   *hand // from the previous holder
	// ends is how many releases are under way that will report whether the waiter is next. What the
	// watch delivered in the meantime is kept in owed.
	ends int
	owed int64
}

// hand tells a waiter that it is next, as the release of the lease before it found.
type hand struct{ asked time.Time }

// turn is what it takes to find out whether a waiter is next.
type turn struct {
	key  string // of the entry; empty: a release cannot decide for this waiter
	rev  int64
	sess *session
}

type deletion struct {
	key string
	rev int64
}

// snapshot is a lock at one revision.
type snapshot struct {
	st    state
	rev   int64
	asked time.Time
}

// join adds a waiter, which is about to read.
func (l *queues) join(name string, lease backend.LeaseID, t turn) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.byName[name]
	if !ok {
		ln = &queue{name: name, waiters: make(map[*waiter]struct{}), byKey: make(map[string][]*waiter)}
		l.byName[name] = ln
	}
	w := &waiter{
		turn: t, queue: ln, lease: lease, checking: true,
		wake: make(chan struct{}, 1), gone: make(chan struct{}, 1),
	}
	ln.waiters[w] = struct{}{}
	if ln.watch != nil {
		w.deaf = ln.watch.seen
	}
	return w
}

// leave removes a waiter. If it stood before others that wait for any deletion, the first of them
// has to read: it may have been this waiter's turn.
func (l *queues) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := w.queue
	ln.unindex(w)
	delete(ln.waiters, w)
	if len(ln.waiters) == 0 {
		ln.stop()
		delete(l.byName, ln.name)
		return
	}
	if len(ln.any) > 0 {
		ln.any[0].signal(0)
	}
}

// owedTime is how long a waiter that was woken waits for the result of a release.
const owedTime = 10 * time.Millisecond

// after returns the waiter of this process that stands right behind an entry about to be released,
// or nil if there is none. The caller must pass it to hand afterwards.
func (l *queues) after(name string, e entryRef) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.byName[name]
	if !ok {
		return nil
	}
	for _, w := range ln.byKey[e.key] {
		if w.need.rev == e.rev && w.key != "" {
			w.ends++
			return w
		}
	}
	return nil
}

// hand reports to a waiter that a release has finished, and, if h is not nil, that the waiter is
// next.
func (l *queues) hand(w *waiter, h *hand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.ends--
	if h != nil {
		w.handed = h
	}
	if h != nil || w.owed > 0 {
		w.signal(w.owed)
	}
}

// tell wakes a waiter, unless a release is about to.
func (l *queues) tell(w *waiter, rev int64) {
	if w.ends == 0 {
		w.signal(rev)
		return
	}
	w.owed = rev
	time.AfterFunc(owedTime, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		w.signal(rev)
	})
}

// took returns what a waiter was handed, or nil.
func (l *queues) took(w *waiter) *hand {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.handed
}

// waits reports whether a caller of this backend value waits for the lock.
func (l *queues) waits(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.byName[name]
	return ok && len(ln.waiters) > 0
}

// remove tells a waiter that this process removed its entry from the queue.
func (l *queues) remove(name string, lease backend.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.byName[name]
	if !ok {
		return
	}
	for w := range ln.waiters {
		if w.lease == lease {
			select {
			case w.gone <- struct{}{}:
			default:
			}
		}
	}
}

// check records that the waiter is about to read. It returns the revision that the read has to be
// at least as new as.
func (l *queues) check(w *waiter) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.queue.unindex(w)
	w.checking, w.missed = true, nil
	since := max(w.woken, w.asOf+1)
	select {
	case <-w.wake:
	default:
	}
	return since
}

// await arranges for the waiter to be woken when what it needs happens after the revision asOf. It
// returns false if that has happened already, or may have: then the waiter must read again.
func (l *queues) await(w *waiter, n need, asOf int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := w.queue
	w.need, w.asOf = n, asOf
	if asOf < w.deaf {
		return false
	}
	for _, d := range w.missed {
		if d.rev > asOf && (n.any || d.key == n.key) {
			w.woken = d.rev
			return false
		}
	}
	w.checking, w.missed = false, nil
	ln.index(w)
	if !l.cover(ln, w) {
		ln.unindex(w)
		w.checking = true
		return false
	}
	return true
}

func (ln *queue) index(w *waiter) {
	if !w.need.any {
		ln.byKey[w.need.key] = append(ln.byKey[w.need.key], w)
		return
	}
	i, _ := slices.BinarySearchFunc(ln.any, w.rev, func(o *waiter, rev int64) int { return cmp.Compare(o.rev, rev) })
	ln.any = slices.Insert(ln.any, i, w)
}

func (ln *queue) unindex(w *waiter) {
	if w.checking {
		return
	}
	isW := func(o *waiter) bool { return o == w }
	if w.need.any {
		ln.any = slices.DeleteFunc(ln.any, isW)
		return
	}
	if ws := slices.DeleteFunc(ln.byKey[w.need.key], isW); len(ws) > 0 {
		ln.byKey[w.need.key] = ws
	} else {
		delete(ln.byKey, w.need.key)
	}
}

// signal makes the waiter read, at rev or later.
func (w *waiter) signal(rev int64) {
	w.woken = max(w.woken, rev)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// cover makes sure that the queue's watch delivers what w needs. It returns false if the watch began
// too late for w.
func (l *queues) cover(ln *queue, w *waiter) bool {
	if ln.watch != nil {
		all := ln.watch.key == ""
		if all || len(ln.waiters) == 1 && !w.need.any && ln.watch.key == w.need.key {
			return ln.watch.from <= w.asOf+1
		}
		ln.stop()
	}
	key := w.need.key
	if len(ln.waiters) > 1 {
		key = ""
	}
	from := int64(math.MaxInt64)
	for o := range ln.waiters {
		if !o.checking {
			from = min(from, o.asOf+1)
		}
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(l.b.base))
	wt := &watch{key: key, from: from, cancel: cancel}
	ln.watch = wt
	l.b.calls.Go(func() { // w's call is inside, so that Close waits
		defer cancel()
		l.pump(ctx, ln, wt)
	})
	return true
}

func (ln *queue) stop() {
	if ln.watch != nil {
		ln.watch.cancel()
		ln.watch = nil
	}
}

// pump passes on what the watch delivers, until the watch is stopped or breaks.
func (l *queues) pump(ctx context.Context, ln *queue, wt *watch) {
	sp := l.b.keys.entries(ln.name)
	opts := []clientv3.OpOption{clientv3.WithRev(wt.from), clientv3.WithFilterPut(), clientv3.WithCreatedNotify()}
	from := sp.from
	if wt.key != "" {
		from = wt.key
	} else {
		opts = append(opts, clientv3.WithRange(sp.to))
	}
	for resp := range l.b.client.Watch(ctx, from, opts...) {
		if resp.Err() != nil {
			break
		}
		l.deliver(ln, wt, resp.Events)
	}
	if ctx.Err() == nil {
		l.broke(ctx, ln, wt)
	}
}

// deliver wakes the waiters that the deletions concern.
func (l *queues) deliver(ln *queue, wt *watch, events []*clientv3.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.watch != wt {
		return
	}
	ln.broken = 0
	for _, ev := range events {
		key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
		wt.seen = rev
		for w := range ln.waiters {
			if w.checking {
				w.missed = append(w.missed, deletion{key, rev})
			}
		}
		for _, w := range ln.byKey[key] {
			l.tell(w, rev)
		}
		if len(ln.any) > 0 {
			ln.any[0].signal(rev)
		}
	}
}

// broke makes every waiter read, after a moment, because the watch delivers nothing any more: etcd
// compacted the revisions, has no leader, or became unreachable.
func (l *queues) broke(ctx context.Context, ln *queue, wt *watch) {
	l.mu.Lock()
	n := ln.broken
	ln.broken++
	l.mu.Unlock()
	retry.Pause(ctx, delay(n))
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.watch != wt {
		return
	}
	ln.watch = nil
	for w := range ln.waiters {
		if !w.checking {
			w.signal(0)
		}
	}
}

// snapshot reads the whole lock, at the revision since or later, or returns what another waiter has
// read.
func (l *queues) snapshot(ctx context.Context, w *waiter, since int64) (*snapshot, error) {
	ln := w.queue
	force := since == math.MaxInt64
	for {
		l.mu.Lock()
		if ln.snap != nil && ln.snap.rev >= since && !force {
			defer l.mu.Unlock()
			return ln.snap, nil
		}
		under := ln.reading
		if under == nil {
			ln.reading = make(chan struct{})
			l.mu.Unlock()
			return l.readSnapshot(ctx, ln)
		}
		l.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
			return nil, fail(ctx, opAcquire, context.Cause(ctx), false)
		}
	}
}

func (l *queues) readSnapshot(ctx context.Context, ln *queue) (*snapshot, error) {
	asked := time.Now()
	st, rev, err := l.b.read(ctx, ln.name)
	l.mu.Lock()
	defer l.mu.Unlock()
	close(ln.reading)
	ln.reading = nil
	if err != nil {
		return nil, err
	}
	ln.snap = &snapshot{st: st, rev: rev, asked: asked}
	return ln.snap, nil
}
