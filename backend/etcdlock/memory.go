package etcdlock

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// memoryTTL and memoryTurn: whatever must be remembered for a while hangs on an etcd lease that
	// is used for memoryTurn and never renewed. So it is remembered for at least the difference,
	// which is longer than a late request can live, and is gone by itself afterwards.
	memoryTTL  = 15 * time.Minute
	memoryTurn = 5 * time.Minute
	// revokeTime is how long Close waits for the etcd leases that are being revoked.
	revokeTime = time.Second
	// revokesAtOnce bounds the etcd leases that are being revoked. etcd revokes each in an entry of its log, while
	// one entry has the releases of many locks: these would wait behind hundreds of them.
	revokesAtOnce = 4
)

// memoryLease returns the etcd lease for something to be remembered. It may be gone if the process
// slept for longer than it lives.
func (b *Backend) memoryLease(ctx context.Context) (*pooled, error) {
	memory, _, err := b.pools.take(ctx, memoryTTL, memoryTTL-memoryTurn)
	return memory, err
}

// revoke revokes an etcd lease that is no longer needed, in the background. If it cannot be revoked, it
// expires.
func (b *Backend) revoke(id clientv3.LeaseID) {
	if id == clientv3.NoLease {
		return
	}
	b.start(&b.revokes, func(ctx context.Context) {
		select {
		case b.revoking <- struct{}{}:
			defer func() { <-b.revoking }()
		case <-ctx.Done():
			return
		}
		if err := b.revokeNow(ctx, id); err != nil && ctx.Err() == nil {
			b.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "a lease of etcd was left to its end", slog.Any("error", err))
		}
	})
}

// finishRevokes waits until everything is revoked, and ends what takes longer than revokeTime. The
// backend is closed: nothing more is started.
func (b *Backend) finishRevokes() {
	late := time.AfterFunc(revokeTime, func() { b.cancel(backend.ErrClosed) })
	defer late.Stop()
	b.revokes.Wait()
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
