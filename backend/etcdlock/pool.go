package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// poolTTL is the longest TTL of timed leases that share etcd leases: when its entries are gone,
	// a shared etcd lease still stays until it expires.
	poolTTL = 5 * time.Minute
	// poolStep is for how long an etcd lease is used.
	poolStep = time.Second
)

// pooled is an etcd lease that is shared. It is used for as long as it lasts for what is put on it,
// and is never renewed or revoked: a timed lease moves to another one when it is renewed.
type pooled struct {
	id     clientv3.LeaseID
	asked  time.Time     // before etcd was asked for it
	term   uint64        // that etcd had reached then
	life   time.Duration // counted from asked, at least
	marker atomic.Bool   // a caller puts, or has put, the key whose end reports its end
	gone   atomic.Bool   // it turned out to be gone
}

// pools holds the newest pooled lease for each life.
type pools struct {
	b      *Backend
	mu     sync.Mutex
	byLife map[time.Duration]*pool
}

// pool is pooled leases of one life, of which one is used at a time.
type pool struct {
	turn   chan struct{} // capacity 1: held by the caller that uses the other fields
	newest *pooled       // nil: none
	failed time.Time     // when a request for another one failed last
	err    error         // why
}

// sharesLeases reports whether timed leases of that TTL share etcd leases.
func sharesLeases(ttl time.Duration) bool { return ttl <= poolTTL }

// poolLife returns how long an etcd lease lives that timed leases of that TTL share.
func poolLife(ttl time.Duration) time.Duration { return ttl.Truncate(poolStep) + poolStep }

// late returns by how much a lease requested at that moment outlasts the etcd lease. If the result
// is 0 or less, the etcd lease lasts for the TTL. The monotonic clock stands still while the
// machine is suspended, the wall clock does not. Whichever shows that more time has passed is
// right, or errs on the safe side: an etcd lease is then made needlessly.
func (p *pooled) late(asked time.Time, ttl time.Duration) time.Duration {
	passed := max(asked.Sub(p.asked), asked.Round(0).Sub(p.asked.Round(0)))
	return passed + ttl - p.life
}

// covers reports whether the etcd lease lasts for the TTL of a lease requested at that moment.
func (p *pooled) covers(asked time.Time, ttl time.Duration) bool {
	return !p.gone.Load() && p.late(asked, ttl) <= 0
}

func (ps *pools) of(life time.Duration) *pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, ok := ps.byLife[life]
	if !ok {
		p = &pool{turn: make(chan struct{}, 1)}
		ps.byLife[life] = p
	}
	return p
}

// take returns an etcd lease of that life, and a moment from which on it lasts for the TTL. The moment
// is now or, where etcd was slow, earlier.
func (ps *pools) take(ctx context.Context, life, ttl time.Duration) (*pooled, time.Time, error) {
	p, came := ps.of(life), time.Now()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, time.Time{}, fail(ctx, opGrant, context.Cause(ctx), false)
	}
	asked := time.Now()
	if p.newest != nil && p.newest.covers(asked, ttl) {
		return p.newest, asked, nil
	}
	if p.failed.After(came) { // those that waited for it share its failure, too
		return nil, time.Time{}, p.err
	}
	id, term, err := ps.b.grantLease(ctx, life)
	if err != nil {
		if ctx.Err() == nil {
			p.failed, p.err = time.Now(), err
		}
		return nil, time.Time{}, err
	}
	p.newest = &pooled{id: id, asked: asked, term: term, life: life}
	now := time.Now()
	return p.newest, now.Add(-max(0, p.newest.late(now, ttl))), nil
}

// mark returns the operation to commit with the first entry on the etcd lease. It puts a key whose
// end shows watchers that the entries that end with it expired.
func (k keys) mark(p *pooled) []clientv3.Op {
	if p.marker.Swap(true) {
		return nil
	}
	return []clientv3.Op{clientv3.OpPut(k.pool(p.id), "", clientv3.WithLease(p.id))}
}

// pool returns the key that ends with a pooled etcd lease.
func (k keys) pool(id clientv3.LeaseID) string { return fmt.Sprintf("%sl/%x", k.prefix, int64(id)) }

func (k keys) isPool(key string) bool { return strings.HasPrefix(key, k.prefix+"l/") }
