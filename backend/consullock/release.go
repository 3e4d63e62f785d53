package consullock

import (
	"context"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Release releases a lease, or its place in the queue. With req.Abandon it can never be granted
// afterwards. Errors: ErrLost if there is no such lease, unless req.Abandon is set; *InvalidError;
// *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	k := seqlock.Key{Name: req.Name, ID: req.Lease}
	s, ok := b.sessions.Find(req.Session, func(s *session) bool { return s.leases.Knows(k) })
	if ok {
		s.leave(k, req.Abandon)
	}
	switch {
	case ok && req.Abandon:
		return b.fail(ctx, opRelease, b.abandon(ctx, s, k), true)
	case req.Abandon:
		return b.fail(ctx, opRelease, b.remove(ctx, k), true)
	}
	key := b.leaseKey(k)
	heir := b.heirTo(req.Name, key)
	err = b.giveBack(ctx, req.Name, key, heir)
	if heir != "" && refusedOnly(err, opOfHeir) {
		err = b.giveBack(ctx, req.Name, key, "")
	}
	absent := isRefused(err, becauseAbsent)
	if ok && (err == nil || absent) {
		s.settle(k)
	}
	if absent {
		return backend.ErrLost
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

// leave stops the callers that wait for the lease.
func (s *session) leave(k seqlock.Key, abandon bool) {
	s.leases.Lock()
	defer s.leases.Unlock()
	s.leases.Leave(k, abandon)
}

// settle records that a lease was released and has no key.
func (s *session) settle(k seqlock.Key) {
	s.leases.Lock()
	defer s.leases.Unlock()
	if l := s.leases.Get(k); l != nil {
		s.leases.Settle(k, l, false)
	}
}

// abandon deletes the key of the lease, and replaces it with one that an acquire still on its way
// finds.
func (b *Backend) abandon(ctx context.Context, s *session, k seqlock.Key) error {
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

// forgetAbandoned deletes what an acquire of an abandoned lease would find, once no such request can be
// on its way any more.
func (s *session) forgetAbandoned() {
	s.leases.Lock()
	old := s.leases.Forgotten()
	s.leases.Unlock()
	if len(old) == 0 {
		return
	}
	s.b.sessions.Go(func() {
		for _, k := range old {
			_ = s.b.delete(s.Life, s.b.abandonedKey(k)) // otherwise it goes with the session
		}
	})
}
