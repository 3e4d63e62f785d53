package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// The internals that the tests outside of the package use.

// EntryKey returns the key of an entry in a slot.
func EntryKey(prefix, name, at string, mode backend.Mode, limit int) string {
	return keys{prefix + "/"}.entry(name, slot(at), mode, limit)
}

// ParseKey parses the key of an entry: the name, the limit and the slot.
func ParseKey(prefix, key string) (string, int, string, bool) {
	p, ok := keys{prefix + "/"}.parse(key)
	return p.name, p.limit, string(p.slot), ok
}

// Target is the content of a URL.
type Target struct {
	Hosts                  []string
	User, Password, Prefix string
	TLS                    bool
}

// URL parses a URL.
func URL(raw string) (Target, error) {
	t, err := parseURL(raw, Config{})
	return Target{t.endpoints, t.user, t.password, t.cfg.Prefix, t.tls != nil}, err
}

// VersionSound reports whether a version of etcd is used without a warning.
func VersionSound(version string) bool { return versionSound(version) }

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

// Leaves, Joins and Alone are the kinds of changes.
const (
	Alone  = alone
	Leaves = leaves
	Joins  = joins
)

// Change is a change of a lock.
type Change struct {
	Lock  string
	Kind  kind
	Rides bool
}

// Batch returns the first of those changes that travel in one transaction, in the order in which
// they are in it.
func Batch(changes ...Change) []Change {
	c := &committer{running: true}
	for _, ch := range changes {
		p := &change{name: ch.Lock, kind: ch.Kind, rides: ch.Rides}
		if ch.Rides {
			c.riders = append(c.riders, p)
		} else {
			c.pending = append(c.pending, p)
		}
	}
	var batch []Change
	for _, p := range c.take() {
		batch = append(batch, Change{p.name, p.kind, p.rides})
	}
	return batch
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
