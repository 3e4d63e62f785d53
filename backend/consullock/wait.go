package consullock

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
)

// follower follows the queue of one lock for all its waiters here, with one query at a time that
// Consul keeps open until something happens. No waiter is overtaken: only the first of the waiters
// here can be the next, so only what it waits for is watched.
type follower struct {
	name, prefix string // of the lock, and of its keys

	stop func() // with Backend.mu held: no waiter is left

	mu      sync.Mutex
	waiters map[*waiter]struct{}
	came    uint64             // how many waiters have come
	first   uint64             // the place of the first waiter, which is watched; 0: none is
	again   context.CancelFunc // ends the query in progress, if it is about that one
	heard   sight              // the known queue, without the entries that were released here since
	moved   bool               // it differs from the queue that the waiters were told by
	passed  uint64             // the last place that was released: it and all before it are gone
	giving  chan struct{}      // closed when the outcome of releasing the first is known; nil: no release is in progress
}

// sight is a queue as it was at an index of the store.
type sight struct {
	queue

	index uint64
	since uint64 // the index of the known queue when this one was requested
	came  uint64 // how many waiters had come then: those of them that are not in it are gone
}

// waiter is an Acquire that waits.
type waiter struct {
	lease   backend.LeaseID
	created uint64     // of its key: its place
	came    uint64     // its number among the follower's waiters
	uuid    string     // of its session
	verdict chan error // capacity 1: nil if the lease is held
	told    bool       // a verdict was sent; guarded by follower.mu
	byTimer bool       // a query timed out before it was sent; set before that
}

// wait waits until the lease is held. seen is the queue behind which the lease queued; nil: not
// known.
func (a *acquisition) wait(ctx context.Context, seen *sight) error {
	w := &waiter{lease: a.req.Lease, created: a.place, uuid: a.s.uuid, verdict: make(chan error, 1)}
	f := a.b.follow(a.req.Name, w, seen)
	defer a.b.unfollow(f, w)
	select {
	case err := <-w.verdict:
		if err != nil {
			a.s.leases.Forget(a.mine)
		}
		a.waited, a.byTimer = true, w.byTimer
		return err
	case <-a.s.leases.Gone(a.mine):
		return backend.ErrLost
	case <-a.s.Life.Done():
		return backend.ErrSessionLost
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *Backend) follow(lock string, w *waiter, seen *sight) *follower {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.followers[lock]
	if !ok {
		f = &follower{name: lock, prefix: b.lockKey(lock), waiters: make(map[*waiter]struct{}), stop: func() {}, again: func() {}}
		b.followers[lock] = f
		defer b.start(f) // once it knows of w
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.came++
	w.came = f.came
	f.waiters[w] = struct{}{}
	if seen != nil {
		f.hear(seen)
	}
	if f.first == 0 || w.created < f.first {
		f.again()
	}
	return f
}

// unfollow removes the waiter. The last one ends the follower.
func (b *Backend) unfollow(f *follower, w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiters, w)
	if w.created == f.first && !w.told {
		f.again()
	}
	if len(f.waiters) == 0 {
		f.stop()
		delete(b.followers, f.name)
	}
}

// run serves the follower, or, if that is nil, those that share a query.
func (b *Backend) run(ctx context.Context, own *follower) {
	byTimer := false
	for ctx.Err() == nil {
		_ = try(ctx, func() error {
			var err error
			byTimer, err = b.watch(ctx, own, byTimer)
			return err
		})
	}
}

// watch tells the waiters whose turn has come, by the queue as it is read or known, and waits until it
// may have changed. It returns true if it only timed out.
func (b *Backend) watch(ctx context.Context, own *follower, byTimer bool) (bool, error) {
	// A follower that joins the shared query from here on ends it.
	asking, again := context.WithCancel(ctx)
	defer again()
	var all []*follower
	var prefix string
	if own != nil {
		all, prefix = []*follower{own}, own.prefix
	} else {
		all, prefix = b.gather(ctx, again), b.locksKey()
	}
	seen := make([]*sight, len(all))
	if own == nil || !own.recalls(ctx) {
		var err error
		if seen, err = b.see(ctx, prefix, all); err != nil {
			return false, err
		}
	}
	defer func() {
		for _, f := range all {
			f.unwatch()
		}
	}()
	var q question
	for i, f := range all {
		if one := f.tell(seen[i], byTimer, again); one.key != "" {
			q = one
		}
	}
	if own == nil && q.key != "" {
		q = question{key: prefix, tree: true, index: seen[0].index}
	}
	tired, err := b.changed(asking, q)
	if asking.Err() != nil {
		return false, nil
	}
	return tired, err
}

// see reads the queues of the followers, whose keys are below the prefix.
func (b *Backend) see(ctx context.Context, prefix string, all []*follower) ([]*sight, error) {
	seen := make([]*sight, len(all))
	for i, f := range all {
		since, came := f.known()
		seen[i] = &sight{since: since, came: came}
	}
	pairs, index, err := b.below(ctx, prefix)
	if err != nil {
		return nil, err
	}
	byLock := make(map[string][]*api.KVPair)
	for _, p := range pairs {
		lock := p.Key[:strings.LastIndexByte(p.Key, '/')+1]
		byLock[lock] = append(byLock[lock], p)
	}
	for i, f := range all {
		seen[i].queue, seen[i].index = newQueue(f.prefix, byLock[f.prefix]), index
	}
	return seen, nil
}

// question is a query to Consul, which answers when its subject has changed since the index.
type question struct {
	key   string // empty: there is no query
	tree  bool   // all keys below it
	index uint64
}

// tell tells the waiters that hold the lock or are gone, by the queue as it was read; nil: as it is
// known. It returns the query on what the first of the others waits for. From then on, again is
// called when a waiter that makes a difference comes or goes.
func (f *follower) tell(seen *sight, byTimer bool, again context.CancelFunc) question {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seen != nil {
		f.take(seen)
	}
	q := f.heard
	f.first, f.again, f.moved = 0, again, false
	places := places(q.queue)
	first, unseen := -1, false
	for w := range f.waiters {
		i, ok := places[w.lease]
		ok = ok && q.All[i].created == w.created
		switch {
		case w.told:
		case !ok && w.created > q.index && (seen == nil || w.came > seen.came): // it came after the read
			unseen = true
		case !ok:
			w.tell(backend.ErrLost)
		case i < q.Out:
			w.byTimer = byTimer
			w.tell(nil)
		case first < 0 || i < first:
			first = i
		}
	}
	if first < 0 {
		if unseen {
			again()
		}
		return question{}
	}
	f.first = q.All[first].created
	if j, one := q.Blocker(first); one {
		return question{key: q.All[j].key, index: q.index}
	}
	return question{key: f.prefix, tree: true, index: q.index}
}

// unwatch records that no query is running that would have to be ended.
func (f *follower) unwatch() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.again = func() {}
}

// tell reports the verdict to a waiter that was not told yet. follower.mu is held.
func (w *waiter) tell(verdict error) {
	w.told = true
	w.verdict <- verdict
}

// safety is when the queue is read although nothing was reported.
const safety = 30 * time.Second

// changed waits for the answer to the query, or, without one, until ctx ends. It returns true if it
// only timed out.
func (b *Backend) changed(ctx context.Context, q question) (bool, error) {
	if q.key == "" {
		<-ctx.Done()
		return false, nil
	}
	asking, cancel := patiently(ctx, q.index, safety)
	defer cancel()
	opts := (&api.QueryOptions{WaitIndex: q.index, WaitTime: safety}).WithContext(asking)
	var meta *api.QueryMeta
	var err error
	if q.tree {
		_, meta, err = b.polls.KV().Keys(q.key, "", opts)
	} else {
		_, meta, err = b.polls.KV().Get(q.key, opts)
	}
	switch {
	case err != nil && asking.Err() != nil && ctx.Err() == nil:
		return true, nil // the connection is silently dead
	case err != nil:
		return false, err
	}
	return meta.LastIndex <= q.index, nil
}
