package consullock

import "context"

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
	b.sessions.Go(func() { b.run(ctx, nil) })
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
