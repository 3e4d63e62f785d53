package consullock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Break takes the lock from all its holders. The first read fixes the victims: a lease granted
// later is not among them. If they do not fit into one transaction, they lose the lock in several,
// the oldest first, each of which keeps out the waiters that cannot share the lock with the rest.
// If Break fails between them, the remaining holders still hold the lock. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return backend.BreakResult{}, context.Cause(ctx)
	}
	br := &breaking{b: b, req: &req}
	err := br.look(ctx)
	for err == nil && len(br.rest) > 0 {
		err = br.part(ctx)
	}
	if err != nil && br.begun {
		return backend.BreakResult{}, backend.PartDone(name, opBreak, b.fail(ctx, opBreak, err, true))
	}
	return br.res, b.fail(ctx, opBreak, err, false)
}

// breaking is a Break in progress.
type breaking struct {
	b     *Backend
	req   *backend.BreakRequest
	res   backend.BreakResult
	rest  []victim // the victims that may still hold the lock
	begun bool     // a transaction has changed something, or may have
}

// victim is a holder as the first read found it.
type victim struct {
	entry

	told backend.Holder
}

const (
	// maxVictims and maxTxnOps bound a transaction, in which Consul accepts 64 operations: two for
	// each victim, and one for each session that is notified.
	maxVictims = 30
	maxTxnOps  = 64
	// maxNotices bounds the notices of breaks to a session. The newest are kept. The session finds
	// the other breaks by itself.
	maxNotices = 100
	// maxOld bounds the bytes of the old notices. Consul accepts half a MiB in a transaction, in
	// base 64, with the notices of as many sessions as there are victims.
	maxOld = 8 << 10
)

// encode appends fresh notices to the old ones, of which it keeps as many as fit. The first is
// marked if older ones were dropped.
func encode(old, fresh []notice) ([]byte, error) {
	all := slices.Concat(old, fresh)
	for {
		if n := len(all) - maxNotices; n > 0 {
			all = all[n:]
			all[0].Cut = true
		}
		value, err := json.Marshal(all)
		if err != nil {
			return nil, fmt.Errorf("encode the notices: %w", err)
		}
		n := len(all) - len(fresh) // of the old ones
		if len(value) <= maxOld || n <= 0 {
			return value, nil
		}
		all = all[(n+1)/2:]
		all[0].Cut = true
	}
}

// look finds the victims. The token is the one after the greatest of theirs: Consul counts its
// changes, so every later grant has it or a greater one. If there are no holders, a write of its
// own gives the token, and a lease granted before that write is a victim.
func (br *breaking) look(ctx context.Context) error {
	if err := br.find(ctx, math.MaxUint64); err != nil || len(br.rest) > 0 {
		return err
	}
	pairs, err := br.b.txn(ctx, api.KVTxnOps{{Verb: api.KVSet, Key: br.b.tokenKey(), Value: []byte(rand.Text())}})
	if err == nil && len(pairs) == 0 {
		err = errors.New("the token is not in the answer")
	}
	if err != nil {
		return err
	}
	br.res.Token = fence.Token(pairs[0].ModifyIndex)
	return br.find(ctx, br.res.Token)
}

// find selects the holders whose tokens are below the given one as victims.
func (br *breaking) find(ctx context.Context, below fence.Token) error {
	l, err := br.b.look(ctx, br.req.Name)
	if err != nil {
		return err
	}
	victims := l.holders()
	for i, h := range describe(br.req.Name, victims).Holders {
		if h.Token < below {
			br.rest = append(br.rest, victim{victims.all[i], h})
			br.res.Token = h.Token + 1
		}
	}
	return nil
}

// part deletes the keys of the oldest victims and notifies their sessions, in one transaction.
func (br *breaking) part(ctx context.Context) error {
	part := br.next()
	var ops api.KVTxnOps
	fresh := make(map[string][]notice)
	for i := range part {
		e := &part[i]
		// A delete with an index also succeeds if the key is gone: by a release, which has reported
		// success to its caller.
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: e.key, Index: e.modified}, &api.KVTxnOp{Verb: api.KVDelete, Key: e.key})
		fresh[e.uuid] = append(fresh[e.uuid], notice{Lease: e.lease, Reason: br.req.Reason})
	}
	for uuid, notices := range fresh {
		op, err := br.b.notify(ctx, uuid, notices)
		if err != nil {
			return err
		}
		if op != nil { // otherwise the session is gone, and its leases are about to be
			ops = append(ops, op)
		}
	}
	_, err := br.b.txn(ctx, ops)
	if e, ok := errors.AsType[*txnError](err); ok {
		return br.refused(ctx, e, len(part))
	}
	br.begun = br.begun || err == nil || !refused(err)
	if err != nil {
		return err
	}
	for i := range part {
		br.res.Broken = append(br.res.Broken, part[i].told)
	}
	br.rest = br.rest[len(part):]
	return nil
}

// next returns the victims that fit into one transaction, with the notices to their sessions.
func (br *breaking) next() []victim {
	sessions := make(map[string]bool)
	for i := range br.rest {
		sessions[br.rest[i].uuid] = true
		if i == maxVictims || 2*(i+1)+len(sessions) > maxTxnOps {
			return br.rest[:i]
		}
	}
	return br.rest
}

// notify returns the operation that adds to the notices of a session, or nil if the session is
// gone.
func (b *Backend) notify(ctx context.Context, uuid string, fresh []notice) (*api.KVTxnOp, error) {
	pair, err := b.get(ctx, b.noticeKey(uuid))
	if err != nil || pair == nil {
		return nil, err
	}
	var old []notice
	_ = json.Unmarshal(pair.Value, &old)
	value, err := encode(old, fresh)
	if err != nil {
		return nil, err
	}
	return &api.KVTxnOp{Verb: api.KVCAS, Key: pair.Key, Index: pair.ModifyIndex, Value: value}, nil
}

// refused drops the victims that have left: the first of them made Consul refuse the transaction,
// of which nothing was done. For any other reason it returns Consul's error.
func (br *breaking) refused(ctx context.Context, err *txnError, victims int) error {
	left := make(map[string]bool)
	for _, x := range err.errs {
		i := x.OpIndex / 2
		if i >= victims {
			if !strings.Contains(x.What, becauseStale) { // another break has notified a session
				return err
			}
			continue
		}
		e := &br.rest[i]
		pair, failed := br.b.get(ctx, e.key)
		switch {
		case failed != nil:
			return failed
		case pair == nil || pair.Session == "" || pair.CreateIndex != e.created:
			left[e.key] = true
		case pair.ModifyIndex == e.modified: // nothing has happened to it: there is another reason
			return err
		default:
			e.modified = pair.ModifyIndex
		}
	}
	br.rest = slices.DeleteFunc(br.rest, func(v victim) bool { return left[v.key] })
	return nil
}
