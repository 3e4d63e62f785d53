package consullock

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
)

// follower follows the line of one lock for all who wait for it here, with one question
// at a time that Consul keeps until something happens. Nobody is overtaken: only the
// first of those who wait here can be the next, so only what it waits for is watched.
type follower struct {
	name string
	stop func() // with Backend.mu held: nobody waits any more

	mu      sync.Mutex
	waiters map[*waiter]struct{}
	came    uint64             // how many have come to wait
	first   uint64             // the place of the first of them, which is watched; 0: none is
	again   context.CancelFunc // ends the question that is under way, if it is about that one
	heard   sight              // what they were told by, without those that were given back here since
	moved   bool               // it is another than who waits was told by
	passed  uint64             // the last place that was given back: it and all before it are gone
	giving  chan struct{}      // closed when it is known what became of giving back the first; nil: nobody does
}

// sight is a line as it was at an index of the store.
type sight struct {
	line

	index uint64
	since uint64 // the index of what had been heard when it was asked for
	came  uint64 // how many had come to wait then: those of them that are not in it are gone
}

// waiter is an Acquire that waits.
type waiter struct {
	lease   backend.LeaseID
	created uint64       // of its key: its place
	came    uint64       // which of the follower's it is
	uuid    string       // of its session
	verdict chan verdict // capacity 1: out, or gone
	told    bool         // guarded by follower.mu
}

type verdict struct {
	entry   entry
	byTimer bool
	err     error
}

// wait waits until the lease is out. seen is the line behind which it came; nil: not known.
func (a *acquisition) wait(ctx context.Context, created uint64, seen *sight) (backend.Grant, error) {
	w := &waiter{lease: a.req.Lease, created: created, uuid: a.s.uuid, verdict: make(chan verdict, 1)}
	f := a.b.follow(a.req.Name, w, seen)
	defer a.b.unfollow(f, w)
	select {
	case v := <-w.verdict:
		if v.err != nil {
			return backend.Grant{}, v.err
		}
		return a.grant(v.entry, true, v.byTimer), nil
	case <-a.mine.gone:
		return backend.Grant{}, backend.ErrLost
	case <-a.s.life.Done():
		return backend.Grant{}, backend.ErrSessionLost
	case <-ctx.Done():
		return backend.Grant{}, context.Cause(ctx)
	}
}

func (b *Backend) follow(lock string, w *waiter, seen *sight) *follower {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.lines[lock]
	if !ok {
		f = &follower{name: lock, waiters: make(map[*waiter]struct{}), stop: func() {}, again: func() {}}
		b.lines[lock] = f
		if !b.closed {
			defer b.start(f) // once it knows of w
		}
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

// unfollow leaves; the last one ends the follower.
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
		delete(b.lines, f.name)
	}
}

// run looks at the line, tells those whose time has come, and waits for what the first
// of the others waits for.
func (b *Backend) run(ctx context.Context, f *follower) {
	byTimer := false
	for failures := 0; ctx.Err() == nil; {
		var seen *sight
		var err error
		if !f.recalls(ctx) {
			seen, err = b.see(ctx, f)
		}
		if err == nil {
			failures = 0
			byTimer, err = b.watch(ctx, f, seen, byTimer)
		}
		if err != nil {
			if !pause(ctx, failures) {
				return
			}
			failures++
		}
	}
}

// see looks at the line of the follower.
func (b *Backend) see(ctx context.Context, f *follower) (*sight, error) {
	prefix := b.lockKey(f.name)
	since, came := f.known()
	pairs, index, err := b.below(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return &sight{newLine(prefix, pairs), index, since, came}, nil
}

// watch tells those whose time has come by the line as it was seen, or by what was heard,
// and waits until it may be another. It reports whether it only got tired of waiting.
func (b *Backend) watch(ctx context.Context, f *follower, seen *sight, byTimer bool) (bool, error) {
	asking, again := context.WithCancel(ctx)
	defer again()
	q := f.tell(seen, byTimer, again)
	defer f.unwatch()
	if q.tree {
		q.key = b.lockKey(f.name)
	}
	tired, err := b.changed(asking, q)
	if asking.Err() != nil {
		return false, nil
	}
	return tired, err
}

// question is what is asked of Consul, which answers when it is another than at the index.
type question struct {
	key   string // empty: nothing is asked
	tree  bool   // all keys of the lock
	index uint64
}

// tell tells those who are out or gone, by the line as it was seen; nil: by what was heard.
// It gives the question about what the first of the others waits for. From then on again is
// called when another comes or goes who makes a difference.
func (f *follower) tell(seen *sight, byTimer bool, again context.CancelFunc) question {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seen != nil {
		f.take(seen)
	}
	l := f.heard
	f.first, f.again, f.moved = 0, again, false
	places := l.places()
	first, unseen := -1, false
	for w := range f.waiters {
		i, ok := places[w.lease]
		ok = ok && l.all[i].created == w.created
		switch {
		case w.told:
		case !ok && w.created > l.index && (seen == nil || w.came > seen.came): // it came after the look
			unseen = true
		case !ok:
			w.tell(verdict{err: backend.ErrLost})
		case i < l.Out:
			w.tell(verdict{entry: l.all[i], byTimer: byTimer})
		case first < 0 || i < first:
			first = i
		}
	}
	if first < 0 {
		if unseen {
			again()
		}
		return question{index: l.index}
	}
	f.first = l.all[first].created
	if j, one := l.Blocker(first); one {
		return question{key: l.all[j].key, index: l.index}
	}
	return question{tree: true, index: l.index}
}

// unwatch notes that nothing is asked that could be asked in vain.
func (f *follower) unwatch() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.again = func() {}
}

// tell has follower.mu held.
func (w *waiter) tell(v verdict) {
	w.told = true
	select {
	case w.verdict <- v:
	default: // it was told
	}
}

// safety is when the line is looked at though nothing was told.
const safety = 30 * time.Second

// changed waits for the answer to the question; without one until somebody comes or goes.
// It reports whether it only got tired of waiting.
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
		_, meta, err = b.client.KV().Keys(q.key, "", opts)
	} else {
		_, meta, err = b.client.KV().Get(q.key, opts)
	}
	switch {
	case err != nil && asking.Err() != nil && ctx.Err() == nil:
		return true, nil // the connection is dead, and does not say so
	case err != nil:
		return false, err
	}
	return meta.LastIndex <= q.index, nil
}
