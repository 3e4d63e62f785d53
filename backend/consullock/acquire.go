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
	return a.run(ctx)
}

// clear deletes what exists of a lease that must not be granted, also if its request arrives later.
func (s *session) clear(k seqlock.Key) {
	s.leases.Leave(k, true)
	s.b.sessions.Go(func() {
		for failures := 0; s.b.abandon(s.Life, s, k) != nil && pause(s.Life, failures); {
			failures++
		}
	})
}

// acquisition is one Acquire in progress.
type acquisition struct {
	b    *Backend
	s    *session
	mine *lease
	req  *backend.AcquireRequest
}

func (a *acquisition) run(ctx context.Context) (backend.Grant, error) {
	inQueue := false
	if !a.req.Wait {
		// A request that does not wait must leave no trace in a queue that has no room.
		q, err := a.b.look(ctx, a.req.Name)
		if err != nil {
			return backend.Grant{}, err
		}
		inQueue = q.Find(a.req.Lease) >= 0
		if !inQueue && !q.Admits(a.req.Claim()) {
			return backend.Grant{}, a.refusal(q, len(q.All))
		}
	}
	prefix := a.b.lockKey(a.req.Name)
	blind, joined := false, func() {}
	if a.req.Wait && a.req.Mode == backend.Exclusive {
		blind, joined = a.b.joinsBlind(a.req.Name)
	}
	if blind {
		return a.waitBlind(ctx)
	}
	pairs, err := a.enter(ctx, &api.KVTxnOp{Verb: api.KVGetTree, Key: prefix})
	joined()
	if err != nil {
		return backend.Grant{}, err
	}
	q := newQueue(prefix, pairs)
	for {
		i := q.Find(a.req.Lease)
		if i < 0 {
			a.s.leases.Forget(a.mine)
			return backend.Grant{}, backend.ErrLost // it was deleted immediately
		}
		if err := a.checkLimit(ctx, q, i); err != nil {
			return backend.Grant{}, err
		}
		switch {
		case i < q.Out:
			return a.grant(q.All[i], false, false), nil
		case a.req.Wait:
			return a.wait(ctx, q.All[i].created, &sight{queue: q, index: q.All[i].modified}) // the index of this transaction
		case inQueue: // it keeps the place that it had
			return backend.Grant{}, a.refusal(q, i)
		}
		left, err := a.stepBack(ctx, q, i)
		if err == nil && left {
			err = a.refusal(q, i)
		} else if err == nil {
			q, err = a.b.look(ctx, a.req.Name)
		}
		if err != nil {
			return backend.Grant{}, err
		}
	}
}

// waitBlind joins the queue without reading it.
func (a *acquisition) waitBlind(ctx context.Context) (backend.Grant, error) {
	pairs, err := a.enter(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	place := createdOf(pairs, a.b.leaseKey(a.mine.Key))
	if place == 0 {
		return backend.Grant{}, errors.New("the key is not in the answer")
	}
	return a.wait(ctx, place, nil)
}

// mostChecks is how many of the entries before it a request that steps back checks: a transaction
// has at most 64 operations.
const mostChecks = 60

// stepBack leaves the queue that filled up after it was read, and reports whether it did. It does
// not if an entry before its own has gone in the meantime, because then its own may hold the lock,
// and other requests have been refused because of it.
func (a *acquisition) stepBack(ctx context.Context, q queue, i int) (bool, error) {
	var ops api.KVTxnOps
	for _, e := range q.All[q.Decisive(i, mostChecks):i] {
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
		switch {
		case err == nil:
			return pairs, nil
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

// remove deletes the key of a lease, which may be gone.
func (b *Backend) remove(ctx context.Context, k seqlock.Key) error {
	return b.delete(ctx, b.leaseKey(k))
}

// checkLimit gives up the place in the queue if another limit is in force.
func (a *acquisition) checkLimit(ctx context.Context, q queue, i int) error {
	other := q.CheckLimit(a.req, i)
	if other == nil {
		return nil
	}
	if err := a.b.remove(ctx, a.mine.Key); err != nil {
		return err
	}
	a.s.leases.Forget(a.mine)
	return other
}

func (a *acquisition) refusal(q queue, ahead int) error {
	return q.Refusal(a.req, ahead, func(named queue) ([]backend.Holder, error) {
		return describe(a.req.Name, named).Holders, nil
	})
}

func (a *acquisition) grant(e entry, waited, byTimer bool) backend.Grant {
	return backend.Grant{Token: fence.Token(e.created), Since: time.Now(), Waited: waited, ByTimer: byTimer}
}
