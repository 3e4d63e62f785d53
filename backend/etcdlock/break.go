package etcdlock

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// breakAtOnce is how many leases one transaction breaks. Each needs up to five operations, with
// keys and reasons of a few kilobytes: this many stay below the 1.5 MiB and, counted as in
// batchSize, below the 128 operations that etcd accepts.
const breakAtOnce = 32

const opBreak = "break"

// Break takes the lock from its holders, and notifies their sessions and the watchers. The
// first read fixes the victims: all leases with tokens up to the greatest of theirs. A lease
// granted later does not have such a token. Where there are more than breakAtOnce holders, they lose the lock
// in several transactions, each of which keeps out the waiters that cannot share the lock with the
// rest. If Break fails between them, the remaining holders still hold the lock.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	ctx, leave, err := b.enter(ctx, req.Validate())
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer leave()
	br := &breaking{b: b, req: req}
	for n := 0; ; n++ {
		err := br.pass(ctx)
		switch {
		case err == nil:
			return br.res, nil
		case leaseGone(err) && retry.Pause(ctx, delay(n)):
			continue
		case leaseGone(err):
			err = fail(ctx, opBreak, context.Cause(ctx), false)
		}
		if br.begun {
			err = backend.PartDone(name, opBreak, err)
		}
		return backend.BreakResult{}, err
	}
}

// breaking is a Break in progress.
type breaking struct {
	b     *Backend
	req   backend.BreakRequest
	res   backend.BreakResult
	upTo  int64 // the greatest create revision of a victim; 0: not read yet
	begun bool  // something was changed
}

// pass reads the leases to break, and breaks them. If leaseGone reports true for the error, the etcd
// lease that something was to hang on was gone, and nothing of that part was done.
func (br *breaking) pass(ctx context.Context) error {
	st, rev, err := br.b.read(ctx, br.req.Name)
	if err != nil {
		return err
	}
	if br.upTo == 0 {
		if st.Out == 0 {
			br.res.Token = token(rev)
			return nil
		}
		br.upTo = st.All[st.Out-1].rev
		br.res.Token = token(br.upTo + 1)
	}
	victims := slices.DeleteFunc(st.All, func(e *entry) bool { return e.rev > br.upTo || !br.req.Takes(e.LeaseID()) })
	told := br.b.holders(ctx, victims, breakAtOnce)
	for from := 0; from < len(victims); from += breakAtOnce {
		to := min(from+breakAtOnce, len(victims))
		if err := br.part(ctx, victims[from:to], told[from:to]); err != nil {
			return err
		}
	}
	return nil
}

// part deletes those of these entries that still exist. told describes them.
func (br *breaking) part(ctx context.Context, part []*entry, told []backend.Holder) error {
	b := br.b
	memory, err := b.memoryLease(ctx)
	if err != nil {
		return err
	}
	note := brokenRecord{Lock: br.req.Name, Reason: br.req.Reason, Actor: br.req.Actor, At: time.Now().UnixMilli()}
	text := encode(note)
	var ops []clientv3.Op
	for i := range part {
		e := part[i]
		then := []clientv3.Op{
			clientv3.OpDelete(e.key), clientv3.OpDelete(b.keys.claim(br.req.Name, e.LeaseID())),
			clientv3.OpPut(b.keys.tombstone(br.req.Name, e.LeaseID()), text, clientv3.WithLease(memory.id)),
		}
		if e.Session != "" {
			then = append(then, b.tellBroken(e, text))
		}
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{created(e.key, e.rev)}, then, nil))
		note.Leases = append(note.Leases, string(e.LeaseID()))
	}
	ops = append(ops, clientv3.OpPut(b.keys.note(br.req.Name), encode(note), clientv3.WithLease(memory.id)))
	resp, err := b.txn(ctx, opBreak, true, nil, ops)
	if leaseGone(err) {
		memory.gone.Store(true)
	}
	if err != nil {
		return err
	}
	br.begun = true
	for i := range part {
		if !resp.Responses[i].GetResponseTxn().GetSucceeded() {
			continue // it had left
		}
		br.res.Broken = append(br.res.Broken, told[i])
		if part[i].alone() {
			b.revoke(part[i].lease)
		}
	}
	return nil
}

// tellBroken returns the operation that notifies the victim's session, if that is alive.
func (b *Backend) tellBroken(e *entry, told string) clientv3.Op {
	id := backend.SessionID(e.Session)
	put := clientv3.OpPut(b.keys.broken(id, e.LeaseID()), told, clientv3.WithLease(e.lease))
	return clientv3.OpTxn([]clientv3.Cmp{present(b.keys.session(id))}, []clientv3.Op{put}, nil)
}
