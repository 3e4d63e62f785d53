package consullock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Release gives a lease back, or its place in line. With req.Abandon it can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon is
// set; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
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
	return b.fail(ctx, opRelease, err, true)
}

// opOfHeir is which operation of giveBack's transaction is about the heir.
const opOfHeir = 2

// giveBack deletes a key, and tells the heir where there is one. A get of what is not there
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

// leave has who waits for the lease stop, and gives its session where that is here.
func (b *Backend) leave(k leaseKey, req backend.ReleaseRequest) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		delete(s.out, k)
	}
	for _, s := range b.sessions {
		if s.ended || !s.isOpen() {
			continue
		}
		_, ok := s.leases[k]
		if !ok && (!req.Abandon || s.id != req.Session) {
			continue
		}
		o := s.own(k)
		if req.Abandon {
			o.abandoned, o.at = true, time.Now()
		}
		select {
		case <-o.gone:
		default:
			close(o.gone)
		}
		return s
	}
	return nil
}

// abandon deletes the key of the lease, and puts one in its place that an acquire which
// is still on its way finds.
func (b *Backend) abandon(ctx context.Context, s *session, k leaseKey) error {
	_, err := b.txn(ctx, api.KVTxnOps{
		{Verb: api.KVLock, Key: b.abandonedKey(k), Value: []byte("{}"), Session: s.uuid},
		{Verb: api.KVDelete, Key: b.leaseKey(k)},
	})
	if isRefused(err, becauseHeld, becauseSession) {
		// The session is over, or another one has the lease: nothing of this one can come.
		return b.remove(ctx, k)
	}
	if err == nil {
		s.forgetAbandoned()
	}
	return err
}

// forgetAbandoned forgets leases that were abandoned so long ago that no request for them
// can be on its way any more.
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
			_ = s.b.delete(s.life, s.b.abandonedKey(k)) // else it goes with the session
		}
	})
}

// Break takes the lock from all its holders. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return backend.BreakResult{}, context.Cause(ctx)
	}
	br := &breaking{req: &req}
	for failures := 0; ; failures++ {
		done, err := b.tryBreak(ctx, br)
		stale := isRefused(err, becauseStale) // somebody came or went between the look and the act
		switch {
		case err != nil && !stale:
			return backend.BreakResult{}, b.fail(ctx, opBreak, err, true)
		case done:
			return br.res, nil
		case stale && !pause(ctx, failures):
			return backend.BreakResult{}, b.fail(ctx, opBreak, context.Cause(ctx), true)
		}
	}
}

// breaking is a Break under way.
type breaking struct {
	req   *backend.BreakRequest
	res   backend.BreakResult
	begun bool
	last  uint64 // the place of the last victim: who comes out behind it is none
}

// maxVictims bounds how many leases one transaction breaks: Consul takes 64 operations,
// and each needs two.
const maxVictims = 30

const (
	// maxNotices bounds how many breaks a session is told of: the newest of them.
	maxNotices = 100
	// maxOld bounds the bytes of those that were there before. Consul takes half a MiB in a
	// transaction, in base 64, with the notices of as many sessions as there are victims.
	maxOld = 8 << 10
)

// encode puts fresh notices behind those that were there, as many of them as there is room for.
func encode(old, fresh []notice) ([]byte, error) {
	for {
		all := slices.Concat(old, fresh)
		value, err := json.Marshal(all[max(0, len(all)-maxNotices):])
		if err != nil {
			return nil, fmt.Errorf("encode the notices: %w", err)
		}
		if len(value) <= maxOld || len(old) == 0 {
			return value, nil
		}
		old = old[(len(old)+1)/2:]
	}
}

// tryBreak deletes the keys of the holders and tells their sessions, in one transaction,
// whose index is the token. It reports whether that was the last of them.
func (b *Backend) tryBreak(ctx context.Context, br *breaking) (bool, error) {
	l, err := b.look(ctx, br.req.Name)
	if err != nil {
		return false, err
	}
	victims := l.holders()
	if br.begun {
		victims = victims.upTo(br.last)
	}
	last := uint64(0)
	if n := len(victims.all); n > 0 {
		last = victims.all[n-1].created
	}
	done := len(victims.all) <= maxVictims
	if !done {
		victims = victims.upTo(victims.all[maxVictims-1].created)
	}
	ops := api.KVTxnOps{{Verb: api.KVSet, Key: b.tokenKey(), Value: []byte(rand.Text())}}
	bySession := make(map[string][]notice)
	for _, e := range victims.all {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: e.key, Index: e.modified})
		bySession[e.uuid] = append(bySession[e.uuid], notice{Lease: e.lease, Reason: br.req.Reason})
	}
	for uuid, fresh := range bySession {
		pair, err := b.get(ctx, b.noticeKey(uuid))
		if err != nil {
			return false, err
		}
		if pair == nil {
			continue // the session is gone, and its leases are about to
		}
		var all []notice
		_ = json.Unmarshal(pair.Value, &all)
		value, err := encode(all, fresh)
		if err != nil {
			return false, err
		}
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCAS, Key: pair.Key, Index: pair.ModifyIndex, Value: value})
	}
	pairs, err := b.txn(ctx, ops)
	if err != nil {
		return false, err
	}
	if len(pairs) == 0 {
		return false, errors.New("the token is not in the answer")
	}
	if !br.begun {
		br.begun, br.last = true, last
	}
	br.res.Broken = append(br.res.Broken, describe(br.req.Name, victims).Holders...)
	br.res.Token = fence.Token(pairs[0].ModifyIndex)
	return done, nil
}
