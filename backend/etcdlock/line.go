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
)

// lines are the locks that callers of this backend value wait for. Each has one
// watch, whatever the number of waiters, and all watches share one stream.
type lines struct {
	b      *Backend
	mu     sync.Mutex
	byName map[string]*line
}

// line is the waiters of one lock in this process. Guarded by lines.mu.
type line struct {
	name    string
	waiters map[*waiter]struct{}
	byKey   map[string][]*waiter // those that wait for the deletion of one entry
	any     []*waiter            // those that wait for any deletion, in order
	watch   *watch               // nil: none
	broken  int                  // watches that broke since one that did not

	snap    *snapshot     // the newest
	reading chan struct{} // closed when the snapshot under way is there; nil: none
}

// watch is one watch of a line: on one entry while nobody here needs more, else on
// all of the lock. Only deletions are sent.
type watch struct {
	key    string // empty: all of the lock
	from   int64
	seen   int64 // the newest revision that it told
	cancel context.CancelFunc
}

// waiter is a call of Acquire that is in line.
type waiter struct {
	turn
	line  *line
	lease backend.LeaseID
	wake  chan struct{} // capacity 1: look again
	gone  chan struct{} // capacity 1: the entry was taken out by this process

	// Guarded by lines.mu.
	checking bool // it looks: what happens meanwhile is kept in missed
	missed   []deletion
	deaf     int64 // what the watch told up to here, this waiter did not hear
	need     need
	asOf     int64 // what need was read at
	woken    int64 // the revision that woke it
	handed   *hand // by who had the lock
	// ends is how many releases are under way that will say whether it is the waiter's
	// turn; what the watch told meanwhile is kept in owed.
	ends int
	owed int64
}

// hand says that it is a waiter's turn, which was found when the lease before it was
// released.
type hand struct{ asked time.Time }

// turn is what it takes to find out whether it is a waiter's turn.
type turn struct {
	key     string // of the entry; empty: not to be found out by others
	rev     int64
	session backend.SessionID
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

// join adds a waiter, which is about to look.
func (l *lines) join(name string, lease backend.LeaseID, t turn) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.byName[name]
	if !ok {
		ln = &line{name: name, waiters: make(map[*waiter]struct{}), byKey: make(map[string][]*waiter)}
		l.byName[name] = ln
	}
	w := &waiter{
		turn: t, line: ln, lease: lease, checking: true,
		wake: make(chan struct{}, 1), gone: make(chan struct{}, 1),
	}
	ln.waiters[w] = struct{}{}
	if ln.watch != nil {
		w.deaf = ln.watch.seen
	}
	return w
}

// leave removes a waiter. If it stood before others that wait for the same thing, the
// next of them has to look: it may have been this one's turn.
func (l *lines) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := w.line
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

// owedTime is how long a waiter that was woken waits for what a release will say.
const owedTime = 10 * time.Millisecond

// after gives the waiter of this process that stands right behind an entry which is about
// to be released; nil where there is none. It has to be given to hand afterwards.
func (l *lines) after(name string, e entryRef) *waiter {
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

// hand tells a waiter that a release is over, and if h is not nil, that it is its turn.
func (l *lines) hand(w *waiter, h *hand) {
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

// tell wakes a waiter, unless a release will do so in a moment.
func (l *lines) tell(w *waiter, rev int64) {
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

// took gives what a waiter was handed; nil: nothing.
func (l *lines) took(w *waiter) *hand {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.handed
}

// waits reports whether anybody here waits for the lock.
func (l *lines) waits(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.byName[name]
	return ok && len(ln.waiters) > 0
}

// remove tells a waiter that this process took its entry out of the line.
func (l *lines) remove(name string, lease backend.LeaseID) {
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

// check says that the waiter is about to look. It gives the revision that the look
// has to be at least as new as.
func (l *lines) check(w *waiter) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.line.unindex(w)
	w.checking, w.missed = true, nil
	since := max(w.woken, w.asOf+1)
	select {
	case <-w.wake:
	default:
	}
	return since
}

// await has the waiter woken when what it needs happens after the revision asOf. It
// reports false when that has happened already, or may have: then look again.
func (l *lines) await(w *waiter, n need, asOf int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := w.line
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

func (ln *line) index(w *waiter) {
	if !w.need.any {
		ln.byKey[w.need.key] = append(ln.byKey[w.need.key], w)
		return
	}
	i, _ := slices.BinarySearchFunc(ln.any, w.rev, func(o *waiter, rev int64) int { return cmp.Compare(o.rev, rev) })
	ln.any = slices.Insert(ln.any, i, w)
}

func (ln *line) unindex(w *waiter) {
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

// signal has the waiter look, at rev or later.
func (w *waiter) signal(rev int64) {
	w.woken = max(w.woken, rev)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// cover sees to it that the line's watch tells what w needs. It reports false when
// the watch began too late for w.
func (l *lines) cover(ln *line, w *waiter) bool {
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

func (ln *line) stop() {
	if ln.watch != nil {
		ln.watch.cancel()
		ln.watch = nil
	}
}

// pump passes on what the watch tells, until it is stopped or breaks.
func (l *lines) pump(ctx context.Context, ln *line, wt *watch) {
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

// deliver wakes those that the deletions concern.
func (l *lines) deliver(ln *line, wt *watch, events []*clientv3.Event) {
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

// broke has everybody look, after a moment, because the watch tells nothing any more:
// etcd compacted the revisions, has no leader, or went away.
func (l *lines) broke(ctx context.Context, ln *line, wt *watch) {
	l.mu.Lock()
	n := ln.broken
	ln.broken++
	l.mu.Unlock()
	pause(ctx, nil, delay(n))
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

// snapshot reads the whole lock, at the revision since or later; or gives what another
// waiter has read.
func (l *lines) snapshot(ctx context.Context, w *waiter, since int64) (*snapshot, error) {
	ln := w.line
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

func (l *lines) readSnapshot(ctx context.Context, ln *line) (*snapshot, error) {
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
