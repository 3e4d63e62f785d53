package zklock

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// maxBreak bounds the bytes of a transaction of a break, but for the last victim. The ensemble accepts 1 MiB
// (jute.maxbuffer), and the library as much as sendBuffer. A victim takes up to opsOfVictim operations.
const maxBreak, opsOfVictim = 96 << 10, 2

// Evictor begins a break.
func (st store) Evictor(ctx context.Context, req *backend.BreakRequest) (seqlock.Evictor[entry], error) {
	l, err := st.controlLink(ctx)
	if err == nil {
		err = st.makeNodes(ctx, l)
	}
	return &breaking{b: st.Backend, l: l, req: req, lock: st.lockPath(req.Name), read: make(map[string]backend.Holder)}, err
}

type victim = seqlock.Victim[entry]

// breaking is a Break in progress. It implements seqlock.Evictor.
type breaking struct {
	b    *Backend
	l    *link
	req  *backend.BreakRequest
	lock string                    // path
	read map[string]backend.Holder // those that were read, by node: of thousands, some leave while they are read
}

// Stamp returns the ID of a write: the ensemble counts its transactions.
func (br *breaking) Stamp(ctx context.Context) (fence.Token, error) {
	stat, err := br.l.touch(ctx, br.b.locksPath())
	if err != nil {
		return 0, err
	}
	return fence.Token(stat.Mzxid), nil //nolint:gosec // it counts up from 0
}

// Holders reads the front of the queue, and each node in it once. If all of it left while it was read, other
// leases hold the lock by now, and it reads again.
func (br *breaking) Holders(ctx context.Context) ([]victim, error) {
	for {
		now, err := br.b.look(ctx, br.l, br.lock, true)
		if err != nil {
			return nil, err
		}
		front := now.Holders()
		fresh := seqlock.QueueOf(slices.DeleteFunc(slices.Clone(front.All), func(e entry) bool { return br.read[e.node].Lease != "" }))
		info, err := br.b.describe(ctx, br.l, br.req.Name, fresh)
		if err != nil {
			return nil, err
		}
		for _, h := range info.Holders {
			br.read[fresh.All[fresh.Find(h.Lease)].node] = h
		}
		var all []victim
		for _, e := range front.All {
			if h, ok := br.read[e.node]; ok { // the others have left
				all = append(all, victim{Entry: e, Holder: h})
			}
		}
		if len(all) > 0 || len(front.All) == 0 {
			return all, nil
		}
	}
}

// Evict deletes the entries of the first victims and notifies their sessions, in one transaction.
func (br *breaking) Evict(ctx context.Context, victims []victim) (int, seqlock.Outcome, error) {
	var ops []any
	fresh := make(map[backend.SessionID][]seqlock.Notice)
	n, size := 0, 0
	for n < len(victims) && size <= maxBreak && n+len(fresh)+opsOfVictim <= maxOps {
		e := &victims[n].Entry
		ops = append(ops, &zk.DeleteRequest{Path: br.lock + "/" + e.node, Version: -1})
		size += opSize + len(br.lock) + len(e.node)
		if fresh[e.session] == nil {
			size += opSize + len(br.b.noticePath(e.session)) + seqlock.MaxNoticeBytes
		}
		fresh[e.session] = append(fresh[e.session], seqlock.Notice{Lease: e.lease, Reason: br.req.Reason})
		n++
	}
	for id, notices := range fresh {
		op, err := br.b.notify(ctx, br.l, id, notices)
		switch {
		case errors.Is(err, zk.ErrNoNode): // the session is gone, and its entries go by themselves
		case err != nil:
			return n, seqlock.Nothing, err
		default:
			ops = append(ops, op)
		}
	}
	_, err := call(ctx, br.l, func() ([]zk.MultiResponse, error) { return br.l.conn.Multi(ops...) })
	switch {
	case err == nil:
		return n, seqlock.Done, nil
	case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode): // another break has notified a session; one of them has left
		return n, seqlock.Moved, nil
	case refused(err):
		return n, seqlock.Nothing, err
	}
	return n, seqlock.Unknown, err
}

// notify returns the operation that adds to the notices of a session. zk.ErrNoNode: the session is
// gone.
func (b *Backend) notify(ctx context.Context, l *link, id backend.SessionID, fresh []seqlock.Notice) (*zk.SetDataRequest, error) {
	path := b.noticePath(id)
	old, err := l.get(ctx, path)
	if err != nil {
		return nil, err
	}
	data, err := seqlock.AddNotices(old.data, fresh, 1)
	if err != nil {
		return nil, err
	}
	return &zk.SetDataRequest{Path: path, Data: data, Version: old.stat.Version}, nil
}
