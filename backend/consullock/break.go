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

// Break takes the lock from all its holders. The first look fixes who they are: nobody who
// gets the lock later is among them. Where they are more than go into one transaction, they
// lose the lock in several, the oldest first, each of which leaves those in line who cannot
// share it with the rest. If it fails between them, the rest hold it still. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
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

// breaking is a Break under way.
type breaking struct {
	b     *Backend
	req   *backend.BreakRequest
	res   backend.BreakResult
	rest  []victim // those that may hold the lock still
	begun bool     // a transaction has changed something, or may have
}

// victim is a holder as the first look found it.
type victim struct {
	entry

	told backend.Holder
}

const (
	// maxVictims and maxTxnOps bound a transaction, of which Consul takes 64 operations: two
	// for each victim, and one for each session that is told.
	maxVictims = 30
	maxTxnOps  = 64
	// maxNotices bounds how many breaks a session is told of: the newest of them. It finds out
	// about the others by itself.
	maxNotices = 100
	// maxOld bounds the bytes of those that were there before. Consul takes half a MiB in a
	// transaction, in base 64, with the notices of as many sessions as there are victims.
	maxOld = 8 << 10
)

// encode puts fresh notices behind those that were there, as many of them as there is room
// for. The first is marked where older ones made room.
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
// changes, so whatever is granted later has it or a greater one. Where there is nobody a change
// of its own gives the token, and who was granted the lock before that is a victim.
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

// find takes those as victims whose token is below.
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

// part deletes the keys of the oldest victims and tells their sessions, in one transaction.
func (br *breaking) part(ctx context.Context) error {
	part := br.next()
	var ops api.KVTxnOps
	fresh := make(map[string][]notice)
	for i := range part {
		e := &part[i]
		// A delete with an index is a success, too, where the key is gone: by a release, which
		// has told its caller so.
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: e.key, Index: e.modified}, &api.KVTxnOp{Verb: api.KVDelete, Key: e.key})
		fresh[e.uuid] = append(fresh[e.uuid], notice{Lease: e.lease, Reason: br.req.Reason})
	}
	for uuid, notices := range fresh {
		op, err := br.b.notify(ctx, uuid, notices)
		if err != nil {
			return err
		}
		if op != nil { // else the session is gone, and its leases are about to
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

// next is how many victims go into one transaction, with what their sessions are told.
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

// notify is the operation that adds to the notices of a session; nil: it is gone.
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

// refused drops the victims that have left, which made Consul refuse the transaction of the
// first of them. Nothing of it was done. Other reasons are its error.
func (br *breaking) refused(ctx context.Context, err *txnError, victims int) error {
	left := make(map[string]bool)
	for _, x := range err.errs {
		i := x.OpIndex / 2
		if i >= victims {
			if !strings.Contains(x.What, becauseStale) { // another break has told a session
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
		case pair.ModifyIndex == e.modified: // nothing has happened to it: it is another reason
			return err
		default:
			e.modified = pair.ModifyIndex
		}
	}
	br.rest = slices.DeleteFunc(br.rest, func(v victim) bool { return left[v.key] })
	return nil
}
