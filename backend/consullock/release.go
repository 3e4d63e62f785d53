package consullock

import (
	"context"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
)

// Release releases a lease, or its place in the queue. With req.Abandon it can never be granted
// afterwards. Errors: ErrLost if there is no such lease, unless req.Abandon is set; *InvalidError;
// *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k := leaseKey{req.Name, req.Lease}
	s := b.leave(k, req)
	if s != nil && req.Abandon {
		return b.fail(ctx, opRelease, b.abandon(ctx, s, k), true)
	}
	if req.Abandon {
		return b.fail(ctx, opRelease, b.remove(ctx, k), true)
	}
	key := b.leaseKey(k)
	heir := b.heirTo(req.Name, key)
	err := b.giveBack(ctx, req.Name, key, heir)
	if heir != "" && refusedOnly(err, opOfHeir) {
		err = b.giveBack(ctx, req.Name, key, "")
	}
	if isRefused(err, becauseAbsent) {
		return backend.ErrLost
	}
	if s != nil && err != nil && !refused(err) {
		s.doubt(k)
	}
	return b.fail(ctx, opRelease, err, true)
}

// opOfHeir is the index of the operation of giveBack's transaction that is about the heir.
const opOfHeir = 2

// giveBack deletes a key, and tells the heir if there is one. A get of a key that does not exist
// refuses the transaction.
func (b *Backend) giveBack(ctx context.Context, lock, key, heir string) error {
	ops := api.KVTxnOps{{Verb: api.KVGet, Key: key}, {Verb: api.KVDelete, Key: key}}
	if heir != "" {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVGet, Key: heir})
	}
	pairs, err := b.txn(ctx, ops)
	if heir != "" {
		b.settle(lock, createdOf(pairs, key), pairs)
	}
	return err
}

// doubt remembers a lease whose release has an unknown outcome, which counts as a release: the key
// may be deleted at any time, so the lease must not be granted again.
func (s *session) doubt(k leaseKey) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	o := s.own(k)
	o.abandoned, o.at = true, time.Now()
	o.stop()
}

// leave stops the callers that wait for the lease, and returns its session if that is here.
func (b *Backend) leave(k leaseKey, req backend.ReleaseRequest) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found *session
	for _, s := range b.sessions {
		_, held := s.out[k]
		delete(s.out, k)
		o := s.leases[k]
		if s.ended || !s.isOpen() || !held && o == nil && (!req.Abandon || s.id != req.Session) {
			continue
		}
		if req.Abandon {
			o = s.own(k)
			o.abandoned, o.at = true, time.Now()
		}
		if o != nil {
			o.stop()
		}
		found = s
	}
	return found
}

// stop makes the callers that wait for the lease stop. Backend.mu is held.
func (o *own) stop() {
	if !o.isGone() {
		close(o.gone)
	}
}

// isGone reports whether the lease was released, abandoned or reported as lost.
func (o *own) isGone() bool {
	select {
	case <-o.gone:
		return true
	default:
		return false
	}
}

// abandon deletes the key of the lease, and replaces it with one that an acquire still on its way
// finds.
func (b *Backend) abandon(ctx context.Context, s *session, k leaseKey) error {
	_, err := b.txn(ctx, api.KVTxnOps{
		{Verb: api.KVLock, Key: b.abandonedKey(k), Value: []byte("{}"), Session: s.uuid},
		{Verb: api.KVDelete, Key: b.leaseKey(k)},
	})
	if isRefused(err, becauseHeld, becauseSession) {
		// The session has ended, or another one has the lease: no request of this one can still
		// come.
		return b.remove(ctx, k)
	}
	if err == nil {
		s.forgetAbandoned()
	}
	return err
}

// forgetAbandoned forgets leases that were abandoned so long ago that no request for them can be on
// its way any more.
func (s *session) forgetAbandoned() {
	var old []leaseKey
	s.b.mu.Lock()
	for k, o := range s.leases {
		if o.abandoned && o.waiters <= 0 && time.Since(o.at) > rememberDead {
			old = append(old, k)
			delete(s.leases, k)
		}
	}
	s.b.mu.Unlock()
	if len(old) == 0 {
		return
	}
	s.b.background(func() {
		for _, k := range old {
			_ = s.b.delete(s.life, s.b.abandonedKey(k)) // otherwise it goes with the session
		}
	})
}
