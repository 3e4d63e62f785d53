package consullock

import (
	"context"
	"strings"

	"github.com/hashicorp/consul/api"
)

// maxQuestions bounds how many followers have a query of their own. Each keeps a connection, of which
// Consul accepts 200 from one address by default (limits.http_max_conns_per_client). Without a
// bound the waiters would take them all, and the renewals would find none.
const maxQuestions = 32

// maxHearing bounds how many sessions listen for their losses concurrently, for the same reason.
const maxHearing = 16

// shared is the set of followers that have no query of their own. They share one, on all locks.
// Backend.mu guards it.
type shared struct {
	members map[*follower]struct{}
	again   context.CancelFunc // ends the query in progress
	stop    context.CancelFunc // nil: no query is running
}

// start gives a new follower a query of its own, or adds it to those that share one. Backend.mu is held.
func (b *Backend) start(f *follower) {
	if b.questions < maxQuestions {
		b.questions++
		ctx, stop := context.WithCancel(b.sessions.Base())
		f.stop = func() { stop(); b.questions-- }
		b.sessions.Go(func() { b.run(ctx, f) })
		return
	}
	c := &b.shared
	c.members[f] = struct{}{}
	f.stop = func() { b.leaveShared(f) }
	if c.stop != nil {
		c.again()
		return
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(b.sessions.Base())
	b.sessions.Go(func() { b.runShared(ctx) })
}

// leaveShared removes a follower that no waiter needs any more, or that gets a query of its own.
// Backend.mu is held.
func (b *Backend) leaveShared(f *follower) {
	delete(b.shared.members, f)
	if len(b.shared.members) == 0 {
		b.shared.stop()
		b.shared.stop = nil
	}
}

// runShared does for the followers that share a query what run does for one follower.
func (b *Backend) runShared(ctx context.Context) {
	byTimer := false
	for ctx.Err() == nil {
		_ = try(ctx, func() error {
			var err error
			byTimer, err = b.watchShared(ctx, byTimer)
			return err
		})
	}
}

func (b *Backend) watchShared(ctx context.Context, byTimer bool) (bool, error) {
	// A follower that joins from here on ends the query.
	asking, again := context.WithCancel(ctx)
	defer again()
	members := b.gather(ctx, again)
	since, came := make([]uint64, len(members)), make([]uint64, len(members))
	for i, f := range members {
		since[i], came[i] = f.known()
	}
	looking, cancel := patiently(ctx, 0, 0)
	defer cancel()
	pairs, index, err := b.below(looking, b.locksKey())
	if err != nil {
		return false, err
	}
	byLock := make(map[string][]*api.KVPair)
	for _, p := range pairs {
		prefix := p.Key[:strings.LastIndexByte(p.Key, '/')+1]
		byLock[prefix] = append(byLock[prefix], p)
	}
	waits := false
	for i, f := range members {
		prefix := b.lockKey(f.name)
		q := f.tell(&sight{newQueue(prefix, byLock[prefix]), index, since[i], came[i]}, byTimer, again)
		waits = waits || q.key != "" || q.tree
	}
	defer func() {
		for _, f := range members {
			f.unwatch()
		}
	}()
	q := question{tree: true, index: index}
	if waits {
		q.key = b.locksKey()
	}
	tired, err := b.changed(asking, q)
	if asking.Err() != nil {
		return false, nil
	}
	return tired, err
}

// gather gives queries of their own to as many followers as may have one now, and returns the
// others. ctx is that of the shared query that calls it.
func (b *Backend) gather(ctx context.Context, again context.CancelFunc) []*follower {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil { // there may be another shared query already
		return nil
	}
	b.shared.again = again
	var others []*follower
	for f := range b.shared.members {
		if b.questions < maxQuestions {
			b.leaveShared(f)
			b.start(f)
		} else {
			others = append(others, f)
		}
	}
	return others
}
