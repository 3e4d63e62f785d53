package etcdlock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// memoryTTL and memoryTurn: whatever must be remembered for a while hangs on an etcd lease that
	// is used for memoryTurn and never renewed. So it is remembered for at least the difference,
	// which is longer than a late request can live, and is gone by itself afterwards.
	memoryTTL  = 15 * time.Minute
	memoryTurn = 5 * time.Minute

	// The limits of a revoker.
	revokersAtOnce = 4
	revokeBacklog  = 4096
	drainTime      = time.Second
)

// memoryLease returns the etcd lease for something to be remembered. It may be gone if the process
// slept for longer than it lives.
func (b *Backend) memoryLease(ctx context.Context) (*pooled, error) {
	memory, _, err := b.pools.take(ctx, memoryTTL, memoryTTL-memoryTurn)
	return memory, err
}

// revoker revokes etcd leases that are no longer needed, in the background. A lease that it cannot
// revoke expires.
type revoker struct {
	b       *Backend
	mu      sync.Mutex
	pending []clientv3.LeaseID
	running int
	idle    *sync.Cond
}

func newRevoker(b *Backend) *revoker {
	r := &revoker{b: b}
	r.idle = sync.NewCond(&r.mu)
	return r
}

// revoke revokes the lease soon.
func (r *revoker) revoke(id clientv3.LeaseID) {
	if id == clientv3.NoLease {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) >= revokeBacklog {
		return
	}
	r.pending = append(r.pending, id)
	if r.running < revokersAtOnce {
		r.running++
		r.b.background(r.run)
	}
}

func (r *revoker) run(ctx context.Context) {
	for {
		r.mu.Lock()
		if len(r.pending) == 0 || ctx.Err() != nil {
			r.running--
			r.idle.Broadcast()
			r.mu.Unlock()
			return
		}
		id := r.pending[0]
		r.pending = r.pending[1:]
		r.mu.Unlock()
		if err := r.b.revokeNow(ctx, id); err != nil && ctx.Err() == nil {
			r.b.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "a lease of etcd was left to its end", slog.Any("error", err))
		}
	}
}

// drain waits until everything is revoked, but for at most d.
func (r *revoker) drain(d time.Duration) {
	over := false
	stop := time.AfterFunc(d, func() {
		r.mu.Lock()
		over = true
		r.mu.Unlock()
		r.idle.Broadcast()
	})
	defer stop.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.running > 0 && !over {
		r.idle.Wait()
	}
}

// revokeNow ends an etcd lease, and with it all keys on it.
func (b *Backend) revokeNow(ctx context.Context, id clientv3.LeaseID) error {
	rctx, cancel := b.request(ctx)
	defer cancel()
	_, err := b.client.Revoke(rctx, id)
	if leaseGone(err) {
		return nil
	}
	return fail(ctx, "revoke a lease", err, true)
}
