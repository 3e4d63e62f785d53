package consullock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Acquire makes the key of the lease, and waits until it is held.
func (st store) Acquire(ctx context.Context, s *session, l *lease, req *backend.AcquireRequest) (backend.Grant, error) {
	a := &acquisition{b: st.Backend, s: s, mine: l, req: req}
	if err := a.run(ctx); err != nil {
		return backend.Grant{}, err
	}
	return backend.Grant{Token: fence.Token(a.place), Since: time.Now(), Waited: a.waited, ByTimer: a.byTimer}, nil
}

// clear deletes what exists of a lease that must not be granted, also if its request arrives later.
func (s *session) clear(k seqlock.Key) {
	s.leases.Leave(k, true)
	s.b.sessions.Go(func() { _ = try(s.Life, func() error { return s.b.abandon(s.Life, s, k) }) })
}

// acquisition is one Acquire in progress. It implements seqlock.Place.
type acquisition struct {
	b     *Backend
	s     *session
	mine  *lease
	req   *backend.AcquireRequest
	place uint64 // the index of the transaction that made the key

	waited, byTimer bool
}

// run returns when the lease is held.
func (a *acquisition) run(ctx context.Context) error {
	inQueue := false
	if !a.req.Wait {
		q, err := a.Read(ctx)
		if err != nil {
			return err
		}
		if inQueue = q.Find(a.req.Lease) >= 0; !inQueue {
			if err := seqlock.CheckRoom(ctx, a, a.req, q); err != nil {
				return err
			}
		}
	}
	blind, joined := false, func() {}
	if a.req.Wait && a.req.Mode == backend.Exclusive {
		blind, joined = a.b.joinsBlind(a.req.Name)
	}
	if blind { // it joins the queue without reading it
		if _, err := a.enter(ctx); err != nil {
			return err
		}
		return a.wait(ctx, nil)
	}
	prefix := a.b.lockKey(a.req.Name)
	pairs, err := a.enter(ctx, &api.KVTxnOp{Verb: api.KVGetTree, Key: prefix})
	joined()
	if err != nil {
		return err
	}
	return seqlock.Stand(ctx, a, a.req, newQueue(prefix, pairs), !inQueue)
}

// Read reads the queue.
func (a *acquisition) Read(ctx context.Context) (queue, error) { return a.b.look(ctx, a.req.Name) }

// Check notes the place of the key. ErrLost: it was deleted immediately.
func (a *acquisition) Check(_ context.Context, q queue, i int) error {
	if i < 0 {
		a.s.leases.Forget(a.mine)
		return backend.ErrLost
	}
	a.place = q.All[i].created
	return nil
}

// Leave deletes the key if the others exist.
func (a *acquisition) Leave(ctx context.Context, others []entry) (bool, error) {
	var ops api.KVTxnOps
	for _, e := range others {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVGet, Key: e.key})
	}
	_, err := a.b.txn(ctx, append(ops, &api.KVTxnOp{Verb: api.KVDelete, Key: a.b.leaseKey(a.mine.Key)}))
	if isRefused(err, becauseAbsent) {
		return false, nil
	}
	if err == nil {
		a.s.leases.Forget(a.mine)
	}
	return err == nil, err
}

// Wait waits until the lease is held. The index of the queue is that of the transaction which read it.
func (a *acquisition) Wait(ctx context.Context, q queue, i int) (queue, bool, error) {
	err := a.wait(ctx, &sight{queue: q, index: q.All[i].modified})
	return queue{}, err == nil, err
}

// Describe describes holders.
func (a *acquisition) Describe(_ context.Context, holders queue) ([]backend.Holder, error) {
	return describe(a.req.Name, holders).Holders, nil
}

// made records how the request that makes the key ended.
func (a *acquisition) made(err error) {
	a.s.leases.Lock()
	defer a.s.leases.Unlock()
	switch {
	case err == nil:
		a.mine.Entry, a.mine.Unsure = string(a.mine.ID), false // its name below that of the lock
	case !refused(err):
		a.mine.Unsure = true
	}
}

// enter makes the key of the lease, and executes more operations with it, in one transaction, which
// may be repeated. A key that another session holds belongs to that session, even while it only
// waits: it may be granted before it could be taken over.
func (a *acquisition) enter(ctx context.Context, more ...*api.KVTxnOp) ([]*api.KVPair, error) {
	value, err := json.Marshal(content{
		Mode: a.req.Mode, Limit: a.req.Limit, Permits: a.req.Permits, Session: a.req.Session,
		Owner: a.req.Owner, Note: a.req.Note, Since: time.Now().UnixNano(),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the lease: %w", err)
	}
	ops := append(api.KVTxnOps{
		{Verb: api.KVCheckNotExists, Key: a.b.abandonedKey(a.mine.Key)},
		{Verb: api.KVLock, Key: a.b.leaseKey(a.mine.Key), Value: value, Session: a.s.uuid},
	}, more...)
	for failures := 0; ; failures++ {
		if a.mine.IsGone() {
			return nil, backend.ErrLost
		}
		pairs, err := a.b.txn(ctx, ops)
		a.made(err)
		if a.mine.IsGone() && !refused(err) { // its release may not have seen the key
			a.s.clear(a.mine.Key)
			return nil, backend.ErrLost
		}
		if err == nil {
			if a.place = createdOf(pairs, a.b.leaseKey(a.mine.Key)); a.place == 0 {
				return nil, errors.New("the key is not in the answer")
			}
			return pairs, nil
		}
		switch {
		case isRefused(err, becauseExists, becauseHeld):
			return nil, backend.ErrLost
		case isRefused(err, becauseSession):
			a.s.Expire(backend.CauseGone)
			return nil, backend.ErrSessionLost
		case !isRefused(err, becauseDelay):
			return nil, err
		case !pause(ctx, failures): // it was another session's, which ended just now
			return nil, context.Cause(ctx)
		}
	}
}

// look lists the queue.
func (b *Backend) look(ctx context.Context, lock string) (queue, error) {
	prefix := b.lockKey(lock)
	pairs, _, err := b.below(ctx, prefix)
	return newQueue(prefix, pairs), err
}
