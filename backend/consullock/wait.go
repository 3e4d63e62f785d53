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
	first   uint64             // the place of the first of them, which is watched; 0: none is
	again   context.CancelFunc // ends the question that is under way, if it is about that one
}

// waiter is an Acquire that waits.
type waiter struct {
	lease   backend.LeaseID
	created uint64       // of its key: its place
	verdict chan verdict // capacity 1: out, or gone
}

type verdict struct {
	entry   entry
	byTimer bool
	err     error
}

// wait waits until the lease is out.
func (a *acquisition) wait(ctx context.Context, created uint64) (backend.Grant, error) {
	w := &waiter{lease: a.req.Lease, created: created, verdict: make(chan verdict, 1)}
	f := a.b.follow(a.req.Name, w)
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

func (b *Backend) follow(lock string, w *waiter) *follower {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.lines[lock]
	if !ok {
		f = &follower{name: lock, waiters: make(map[*waiter]struct{}), stop: func() {}, again: func() {}}
		b.lines[lock] = f
		if !b.closed {
			b.start(f)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters[w] = struct{}{}
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
	if w.created == f.first {
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
	prefix := b.lockKey(f.name)
	byTimer := false
	for failures := 0; ctx.Err() == nil; {
		asking, cancel := patiently(ctx, 0, 0)
		pairs, meta, err := b.client.KV().List(prefix, consistent(asking))
		cancel()
		if err == nil {
			failures = 0
			byTimer, err = b.watch(ctx, f, newLine(prefix, pairs), meta.LastIndex, byTimer)
		}
		if err != nil {
			if !pause(ctx, failures) {
				return
			}
			failures++
		}
	}
}

// watch tells those whose time has come by the line as it was at the index, and waits
// until it may be another. It reports whether it only got tired of waiting.
func (b *Backend) watch(ctx context.Context, f *follower, l line, index uint64, byTimer bool) (bool, error) {
	asking, again := context.WithCancel(ctx)
	defer again()
	key, tree := f.tell(l, index, byTimer, again)
	defer f.unwatch()
	if tree {
		key = b.lockKey(f.name)
	}
	tired, err := b.changed(asking, key, tree, index)
	if asking.Err() != nil {
		return false, nil
	}
	return tired, err
}

// tell tells those who are out or gone, and gives the key that the first of the others
// waits for, or true for the whole tree; neither: there are no others. From then on
// again is called when another comes or goes who makes a difference.
func (f *follower) tell(l line, index uint64, byTimer bool, again context.CancelFunc) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first, f.again = 0, again
	first, unseen := -1, false
	for w := range f.waiters {
		i := l.find(w.lease)
		switch {
		case i < 0 && w.created > index: // it came after the look
			unseen = true
		case i < 0 || l.all[i].created != w.created:
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
		return "", false
	}
	f.first = l.all[first].created
	if j, one := l.Blocker(first); one {
		return l.all[j].key, false
	}
	return "", true
}

// unwatch notes that nothing is asked that could be asked in vain.
func (f *follower) unwatch() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.again = func() {}
}

func (w *waiter) tell(v verdict) {
	select {
	case w.verdict <- v:
	default: // it was told
	}
}

// safety is when the line is looked at though nothing was told.
const safety = 30 * time.Second

// changed waits until the key, or the tree, is another than at the index; with neither
// until somebody comes or goes. It reports whether it only got tired of waiting.
func (b *Backend) changed(ctx context.Context, key string, tree bool, index uint64) (bool, error) {
	if key == "" && !tree {
		<-ctx.Done()
		return false, nil
	}
	asking, cancel := patiently(ctx, index, safety)
	defer cancel()
	opts := (&api.QueryOptions{WaitIndex: index, WaitTime: safety}).WithContext(asking)
	var meta *api.QueryMeta
	var err error
	if tree {
		_, meta, err = b.client.KV().Keys(key, "", opts)
	} else {
		_, meta, err = b.client.KV().Get(key, opts)
	}
	switch {
	case err != nil && asking.Err() != nil && ctx.Err() == nil:
		return true, nil // the connection is dead, and does not say so
	case err != nil:
		return false, err
	}
	return meta.LastIndex <= index, nil
}
