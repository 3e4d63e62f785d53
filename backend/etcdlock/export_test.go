package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// The internals that the tests outside of the package use.

// Waiting returns how many callers wait for a lock, as far as b knows.
func (b *Backend) Waiting(lock string) int {
	b.queues.mu.Lock()
	defer b.queues.mu.Unlock()
	ln, ok := b.queues.byName[lock]
	if !ok {
		return 0
	}
	n := 0
	for _, w := range ln.waiters {
		if w.waits {
			n++
		}
	}
	return n
}

// RideFor sets to d how long a change that joins a queue waits for another change to travel with.
func (b *Backend) RideFor(d time.Duration) {
	b.commits.mu.Lock()
	defer b.commits.mu.Unlock()
	b.commits.patience = d
}

// Riding returns how many changes of a lock wait to travel with another one.
func (b *Backend) Riding(lock string) int {
	b.commits.mu.Lock()
	defer b.commits.mu.Unlock()
	n := 0
	for _, ch := range b.commits.riders {
		if ch.name == lock {
			n++
		}
	}
	return n
}

// Slots returns how many leases b tracks.
func (b *Backend) Slots() int {
	b.slots.mu.Lock()
	defer b.slots.mu.Unlock()
	return len(b.slots.placed)
}

// Move moves a session to another etcd lease, as a new leader of etcd makes it necessary, and
// returns the one that it was on.
func (b *Backend) Move(ctx context.Context, id backend.SessionID) (clientv3.LeaseID, error) {
	s, err := b.session(ctx, id)
	if err != nil {
		return clientv3.NoLease, err
	}
	term, err := b.readTerm(ctx, opRenew)
	if err != nil {
		return clientv3.NoLease, err
	}
	b.mu.Lock()
	on := *s.on.Load()
	was := on.lease
	on.term = 0
	s.on.Store(&on)
	b.mu.Unlock()
	return was, b.move(ctx, s, term)
}
