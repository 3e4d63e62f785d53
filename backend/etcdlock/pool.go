package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

// pooled is an etcd lease shared by timed leases that were granted within a second. It lives for
// that second longer than they need, and is never renewed or revoked: each of them moves to another
// one when it is renewed.
type pooled struct {
	id     clientv3.LeaseID
	asked  time.Time     // before etcd was asked for it
	term   uint64        // that etcd had reached then
	life   time.Duration // counted from asked, at least
	users  int           // callers that took it
	marker bool          // a caller puts, or has put, the key whose end reports its end
}

// pools holds the newest pooled lease for each life.
type pools struct {
	b      *Backend
	mu     sync.Mutex
	newest map[time.Duration]*pooled
	making map[time.Duration]*making
}

// making is an etcd lease that was requested.
type making struct {
	done chan struct{}
	pl   *pooled
	err  error
}

func newPools(b *Backend) *pools {
	return &pools{b: b, newest: make(map[time.Duration]*pooled), making: make(map[time.Duration]*making)}
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
func (p *pooled) covers(asked time.Time, ttl time.Duration) bool { return p.late(asked, ttl) <= 0 }

// take returns an etcd lease, and a moment from which on it lasts for the TTL. The moment is now
// or, where etcd was slow, earlier.
func (ps *pools) take(ctx context.Context, ttl time.Duration) (*pooled, time.Time, error) {
	life := poolLife(ttl)
	ps.mu.Lock()
	now := time.Now()
	if pl := ps.newest[life]; pl != nil && pl.covers(now, ttl) {
		pl.users++
		if pl.users > 1 && !pl.covers(now.Add((life-ttl)/2), ttl) {
			ps.make(life) // in time, so that no caller has to wait for it
		}
		ps.mu.Unlock()
		return pl, now, nil
	}
	m := ps.make(life)
	ps.mu.Unlock()
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, now, fail(ctx, opGrant, context.Cause(ctx), false)
	}
	if m.err != nil {
		return nil, now, m.err
	}
	now = time.Now()
	return m.pl, now.Add(-max(0, m.pl.late(now, ttl))), nil
}

// make requests an etcd lease, unless a request is under way. ps.mu is held.
func (ps *pools) make(life time.Duration) *making {
	if m := ps.making[life]; m != nil {
		return m
	}
	m := &making{done: make(chan struct{})}
	ps.making[life] = m
	ps.b.background(func(ctx context.Context) { ps.grant(ctx, life, m) })
	return m
}

func (ps *pools) grant(ctx context.Context, life time.Duration, m *making) {
	asked := time.Now()
	id, term, err := ps.b.grantLease(ctx, life)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	defer close(m.done)
	delete(ps.making, life)
	if err != nil {
		m.err = err
		return
	}
	m.pl = &pooled{id: id, asked: asked, term: term, life: life}
	ps.newest[life] = m.pl
	for other, pl := range ps.newest {
		if time.Since(pl.asked) > poolTTL+2*poolStep {
			delete(ps.newest, other)
		}
	}
}

// forget drops an etcd lease that turned out to be gone.
func (ps *pools) forget(pl *pooled) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if pl != nil && ps.newest[pl.life] == pl {
		delete(ps.newest, pl.life)
	}
}

// mark returns the operation to commit with the first entry on the etcd lease. It puts a key whose
// end shows watchers that the entries that end with it expired.
func (ps *pools) mark(pl *pooled) []clientv3.Op {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if pl == nil || pl.marker {
		return nil
	}
	pl.marker = true
	return []clientv3.Op{clientv3.OpPut(ps.b.keys.pool(pl.id), "", clientv3.WithLease(pl.id))}
}

// unmark records that the key was perhaps not put.
func (ps *pools) unmark(pl *pooled, marked []clientv3.Op) {
	if len(marked) == 0 {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	pl.marker = false
}

// pool returns the key that ends with a pooled etcd lease.
func (k keys) pool(id clientv3.LeaseID) string { return fmt.Sprintf("%sl/%x", k.prefix, int64(id)) }

func (k keys) isPool(key string) bool { return strings.HasPrefix(key, k.prefix+"l/") }
