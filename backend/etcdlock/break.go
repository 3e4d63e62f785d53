package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// breakAtOnce is how many leases one transaction breaks. A semaphore with more
// holders is broken in several.
const breakAtOnce = 24

// Break takes the lock from all its holders, in one transaction, which also tells
// their sessions and the watchers. The token is its revision.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer leave()
	for n := 0; ; n++ {
		st, rev, err := b.read(ctx, req.Name)
		if err != nil {
			return backend.BreakResult{}, err
		}
		if len(st.holders) == 0 {
			return backend.BreakResult{Token: token(rev)}, nil
		}
		res := backend.BreakResult{Broken: b.holders(ctx, st.holders, breakAtOnce)}
		done := true
		for from := 0; from < len(st.holders) && done; from += breakAtOnce {
			part := st.holders[from:min(from+breakAtOnce, len(st.holders))]
			if rev, done, err = b.breakPart(ctx, req, part, rev, len(st.holders) <= breakAtOnce); err != nil {
				return backend.BreakResult{}, err
			}
		}
		if done {
			res.Token = token(rev)
			return res, nil
		}
		if !pause(ctx, nil, delay(n)) {
			return backend.BreakResult{}, fail(ctx, "break", context.Cause(ctx), false)
		}
	}
}

// breakPart deletes these entries, if they are all there still. strict means that
// nobody else may have got in since the revision.
func (b *Backend) breakPart(ctx context.Context, req backend.BreakRequest, part []entry, since int64, strict bool) (int64, bool, error) {
	memory, err := b.memoryLease(ctx)
	if err != nil {
		return 0, false, err
	}
	var cmps []clientv3.Cmp
	if strict && part[0].mode() == backend.Shared {
		cmps = append(cmps, b.keys.entries(req.Name).unchanged(since))
	}
	note := brokenRecord{Lock: req.Name, Reason: req.Reason, Actor: req.Actor, At: time.Now().UnixMilli()}
	told := encode(note)
	var ops []clientv3.Op
	for i := range part {
		e := &part[i]
		cmps = append(cmps, created(e.key, e.rev))
		ops = append(ops,
			clientv3.OpDelete(e.key), clientv3.OpDelete(b.keys.claim(req.Name, e.id())),
			clientv3.OpPut(b.keys.tombstone(req.Name, e.id()), "", clientv3.WithLease(memory)))
		if e.Session != "" {
			ops = append(ops, b.tellBroken(backend.SessionID(e.Session), e, told)...)
		}
		note.Leases = append(note.Leases, string(e.id()))
	}
	ops = append(ops, clientv3.OpPut(b.keys.note(req.Name), encode(note), clientv3.WithLease(memory)))
	resp, err := b.txn(ctx, "break", true, cmps, ops, nil)
	if err != nil {
		if leaseGone(err) {
			b.forgetMemory(memory)
		}
		return 0, false, err
	}
	if !resp.Succeeded {
		return 0, false, nil
	}
	for i := range part {
		if part[i].alone() {
			b.revoker.revoke(part[i].lease)
		}
	}
	return resp.Header.Revision, true, nil
}

// tellBroken writes to the session of the victim, if that lives. The etcd lease of
// the session is that of its record; for a timed lease that is not the entry's.
func (b *Backend) tellBroken(id backend.SessionID, e *entry, told string) []clientv3.Op {
	key := b.keys.session(id)
	put := clientv3.OpPut(b.keys.broken(id, e.id()), told, clientv3.WithLease(e.lease))
	return []clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{present(key)}, []clientv3.Op{put}, nil)}
}
