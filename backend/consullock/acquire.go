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
)

// Acquire takes the lock, or waits in line for it when req.Wait is set. When ctx ends
// meanwhile the place in line stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return backend.Grant{}, context.Cause(ctx)
	}
	s, err := b.session(req.Session)
	if err != nil {
		return backend.Grant{}, err
	}
	a := &acquisition{b: b, s: s, req: &req, key: leaseKey{req.Name, req.Lease}, asked: time.Now()}
	if a.mine, err = s.join(a.key); err != nil {
		return backend.Grant{}, err
	}
	defer s.part(a.key)
	g, err := a.run(ctx)
	switch {
	case b.base.Err() != nil:
		return backend.Grant{}, backend.ErrClosed
	case err == nil && a.isAbandoned():
		return backend.Grant{}, backend.ErrLost
	case err == nil && s.left() <= 0: // it ended on the way
		return backend.Grant{}, backend.ErrSessionLost
	case err != nil && s.life.Err() != nil && ctx.Err() == nil:
		return backend.Grant{}, backend.ErrSessionLost
	case err == nil:
		s.has(a.key)
	}
	err = b.fail(ctx, opAcquire, err, true)
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok && a.entered {
		away.MayHold = true // whatever was refused since
	}
	return g, err
}

// join notes that somebody asks for the lease. ErrLost: it was abandoned.
func (s *session) join(k leaseKey) (*own, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.ended {
		return nil, backend.ErrSessionLost
	}
	o := s.own(k)
	if o.abandoned {
		return nil, backend.ErrLost
	}
	o.waiters++
	return o, nil
}

// has notes that the lease is out.
func (s *session) has(k leaseKey) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.out[k] = struct{}{}
}

// isAbandoned reports whether the lease was given up meanwhile.
func (a *acquisition) isAbandoned() bool {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	return a.mine.abandoned
}

// own is what is known of the lease. Backend.mu is held.
func (s *session) own(k leaseKey) *own {
	o, ok := s.leases[k]
	if !ok {
		o = &own{gone: make(chan struct{})}
		s.leases[k] = o
	}
	return o
}

// part is the end of what join began.
func (s *session) part(k leaseKey) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	o := s.leases[k]
	if o == nil {
		return
	}
	if o.waiters--; o.waiters <= 0 && !o.abandoned {
		delete(s.leases, k)
	}
}

// acquisition is one Acquire under way.
type acquisition struct {
	b     *Backend
	s     *session
	req   *backend.AcquireRequest
	key   leaseKey
	mine  *own
	asked time.Time

	entered bool // the key was made, and may be there
}

func (a *acquisition) run(ctx context.Context) (backend.Grant, error) {
	inLine := false
	if !a.req.Wait {
		// Who does not wait leaves no trace in a line that has no room.
		l, err := a.b.look(ctx, a.req.Name)
		if err != nil {
			return backend.Grant{}, err
		}
		inLine = l.find(a.req.Lease) >= 0
		if !inLine && !l.Admits(a.req.Claim()) {
			return backend.Grant{}, a.refusal(l, len(l.all))
		}
	}
	prefix := a.b.lockKey(a.req.Name)
	blind, joined := false, func() {}
	if a.req.Wait && a.req.Mode == backend.Exclusive {
		blind, joined = a.b.comes(a.req.Name)
	}
	if blind {
		return a.waitBlind(ctx)
	}
	pairs, err := a.enter(ctx, &api.KVTxnOp{Verb: api.KVGetTree, Key: prefix})
	joined()
	if err != nil {
		return backend.Grant{}, err
	}
	l := newLine(prefix, pairs)
	for {
		i := l.find(a.req.Lease)
		if i < 0 {
			return backend.Grant{}, backend.ErrLost // it was taken away at once
		}
		if err := a.checkLimit(ctx, l, i); err != nil {
			return backend.Grant{}, err
		}
		switch {
		case i < l.Out:
			return a.grant(l.all[i], false, false), nil
		case a.req.Wait:
			return a.wait(ctx, l.all[i].created, &sight{line: l, index: l.all[i].modified}) // the index of this transaction
		case inLine: // it keeps the place that it had
			return backend.Grant{}, a.refusal(l, i)
		}
		left, err := a.stepBack(ctx, l, i)
		if err == nil && left {
			err = a.refusal(l, i)
		} else if err == nil {
			l, err = a.b.look(ctx, a.req.Name)
		}
		if err != nil {
			return backend.Grant{}, err
		}
	}
}

// waitBlind joins the line without seeing it.
func (a *acquisition) waitBlind(ctx context.Context) (backend.Grant, error) {
	pairs, err := a.enter(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	place := createdOf(pairs, a.b.leaseKey(a.key))
	if place == 0 {
		return backend.Grant{}, errors.New("the key is not in the answer")
	}
	return a.wait(ctx, place, nil)
}

// mostChecks is how many of those before it who steps back looks after: a transaction has
// 64 operations at most.
const mostChecks = 60

// stepBack leaves the line that filled up after it was looked at, and reports whether it
// did: not when one of those before it has gone meanwhile, because it may be out then, and
// others have been refused because of it.
func (a *acquisition) stepBack(ctx context.Context, l line, i int) (bool, error) {
	var ops api.KVTxnOps
	for _, e := range l.all[l.Decisive(i, mostChecks):i] {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVGet, Key: e.key})
	}
	_, err := a.b.txn(ctx, append(ops, &api.KVTxnOp{Verb: api.KVDelete, Key: a.b.leaseKey(a.key)}))
	if isRefused(err, becauseAbsent) {
		return false, nil
	}
	return err == nil, err
}

// enter makes the key of the lease, and does more with it: one transaction, which may be
// asked twice. A key that another session has is that one's, also when it only waits: it
// may be granted before anybody could take it away.
func (a *acquisition) enter(ctx context.Context, more ...*api.KVTxnOp) ([]*api.KVPair, error) {
	value, err := json.Marshal(content{
		Mode: a.req.Mode, Limit: a.req.Limit, Permits: a.req.Permits, Session: a.req.Session,
		Owner: a.req.Owner, Note: a.req.Note, Since: time.Now().UnixNano(),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the lease: %w", err)
	}
	ops := append(api.KVTxnOps{
		{Verb: api.KVCheckNotExists, Key: a.b.abandonedKey(a.key)},
		{Verb: api.KVLock, Key: a.b.leaseKey(a.key), Value: value, Session: a.s.uuid},
	}, more...)
	for failures := 0; ; failures++ {
		pairs, err := a.b.txn(ctx, ops)
		switch {
		case err == nil:
			a.entered = true
			return pairs, nil
		case isRefused(err, becauseExists, becauseHeld):
			return nil, backend.ErrLost
		case isRefused(err, becauseSession):
			a.s.expire(backend.CauseGone)
			return nil, backend.ErrSessionLost
		case !isRefused(err, becauseDelay):
			return nil, err
		case !pause(ctx, failures): // it was another session's, which ended just now
			return nil, context.Cause(ctx)
		}
	}
}

// look lists the line.
func (b *Backend) look(ctx context.Context, lock string) (line, error) {
	prefix := b.lockKey(lock)
	pairs, _, err := b.below(ctx, prefix)
	return newLine(prefix, pairs), err
}

// remove deletes the key of a lease, which may be gone.
func (b *Backend) remove(ctx context.Context, k leaseKey) error {
	return b.delete(ctx, b.leaseKey(k))
}

// checkLimit gives the place back when another limit is in force.
func (a *acquisition) checkLimit(ctx context.Context, l line, i int) error {
	if a.req.Mode != backend.Shared {
		return nil
	}
	limit, ok := backend.LimitInForce(l.Claims[:i])
	if !ok || limit == a.req.Limit {
		return nil
	}
	if err := a.b.remove(ctx, a.key); err != nil {
		return err
	}
	return &backend.LimitError{Name: a.req.Name, Asked: a.req.Limit, InForce: limit}
}

func (a *acquisition) refusal(l line, ahead int) error {
	if a.req.Mode == backend.Shared {
		if limit, ok := backend.LimitInForce(l.Claims); ok && limit != a.req.Limit {
			return &backend.LimitError{Name: a.req.Name, Asked: a.req.Limit, InForce: limit}
		}
	}
	named := describe(a.req.Name, l.first(min(l.Out, backend.MaxHeldHolders)))
	return backend.NewHeldError(a.req.Name, named.Holders, l.Out, max(0, ahead-l.Out))
}

func (a *acquisition) grant(e entry, waited, byTimer bool) backend.Grant {
	return backend.Grant{Token: fence.Token(e.created), Asked: a.asked, Since: time.Now(), Waited: waited, ByTimer: byTimer}
}
