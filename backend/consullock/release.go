package consullock

import (
	"context"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Release deletes the key of a lease, and hands the lock to the next waiter here. An abandoned lease of
// a session that lives can never be granted afterwards.
func (st store) Release(ctx context.Context, s *session, _ *lease, k seqlock.Key, abandon bool) (bool, error) {
	if abandon && s != nil {
		return true, st.abandon(ctx, s, k)
	}
	key := st.leaseKey(k)
	next := st.beginHandOver(k.Name, key)
	err := st.giveBack(ctx, k.Name, key, next)
	if next != "" && refusedOnly(err, opOfNext) {
		err = st.giveBack(ctx, k.Name, key, "")
	}
	if isRefused(err, becauseAbsent) {
		return false, nil
	}
	return err == nil, err
}

// opOfNext is the index of the operation of giveBack's transaction that is about the next waiter.
const opOfNext = 2

// giveBack deletes a key, and tells the next waiter if one is known. A get of a key that does not exist
// refuses the transaction.
func (b *Backend) giveBack(ctx context.Context, lock, key, next string) error {
	ops := api.KVTxnOps{{Verb: api.KVGet, Key: key}, {Verb: api.KVDelete, Key: key}}
	if next != "" {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVGet, Key: next})
	}
	pairs, err := b.txn(ctx, ops)
	if next != "" {
		b.endHandOver(lock, createdOf(pairs, key), pairs)
	}
	return err
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
		return b.delete(ctx, b.leaseKey(k))
	}
	if err == nil {
		s.forgetAbandoned()
	}
	return err
}

// forgetAbandoned deletes what an acquire of an abandoned lease would find, once no such request can be
// on its way any more.
func (s *session) forgetAbandoned() {
	old := s.leases.ForgetAbandoned()
	if len(old) == 0 {
		return
	}
	s.b.sessions.Go(func() {
		for _, k := range old {
			_ = s.b.delete(s.Life, s.b.abandonedKey(k)) // otherwise it goes with the session
		}
	})
}
