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

// maxBreak bounds the bytes of a transaction of a break. The ensemble accepts 1 MiB
// (jute.maxbuffer), and the library as much as sendBuffer.
const maxBreak = 96 << 10

// Evictor begins a break.
func (st store) Evictor(ctx context.Context, req *backend.BreakRequest) (seqlock.Evictor[entry], error) {
	l, err := st.controlLink(ctx)
	if err == nil {
		err = st.makeNodes(ctx, l)
	}
	return &breaking{b: st.Backend, l: l, req: req, lock: st.lockPath(req.Name)}, err
}

type victim = seqlock.Victim[entry]

// breaking is a Break in progress. It implements seqlock.Evictor.
type breaking struct {
	b    *Backend
	l    *link
	req  *backend.BreakRequest
	lock string // path
}

// Stamp returns the ID of a write: the ensemble counts its transactions.
func (br *breaking) Stamp(ctx context.Context) (fence.Token, error) {
	stat, err := br.l.touch(ctx, br.b.locksPath())
	if err != nil {
		return 0, err
	}
	return fence.Token(stat.Mzxid), nil //nolint:gosec // it counts up from 0
}

// Holders reads the front of the queue. If all of it left while it was read, other leases hold the
// lock by now, and it reads again.
func (br *breaking) Holders(ctx context.Context) ([]victim, error) {
	for {
		now, err := br.b.look(ctx, br.l, br.lock, true)
		if err != nil {
			return nil, err
		}
		front := now.Holders()
		info, err := br.b.describe(ctx, br.l, br.req.Name, front)
		if err != nil {
			return nil, err
		}
		var all []victim
		for _, h := range info.Holders { // the others have left
			all = append(all, victim{Entry: front.All[front.Find(h.Lease)], Holder: h})
		}
		if len(all) > 0 || len(front.All) == 0 {
			return all, nil
		}
	}
}

// Evict deletes the entries of the first n victims and notifies their sessions, in one transaction.
func (br *breaking) Evict(ctx context.Context, victims []victim, n int) ([]victim, seqlock.Outcome, error) {
	var ops []any
	fresh := make(map[backend.SessionID][]seqlock.Notice)
	for i := range n {
		e := &victims[i].Entry
		ops = append(ops, &zk.DeleteRequest{Path: br.lock + "/" + e.node, Version: -1})
		fresh[e.session] = append(fresh[e.session], seqlock.Notice{Lease: e.lease, Reason: br.req.Reason})
	}
	for id, notices := range fresh {
		op, err := br.b.notify(ctx, br.l, id, notices)
		switch {
		case errors.Is(err, zk.ErrNoNode): // the session is gone, and its entries go by themselves
		case err != nil:
			return victims, seqlock.Nothing, err
		default:
			ops = append(ops, op)
		}
	}
	_, err := call(ctx, br.l, func() ([]zk.MultiResponse, error) { return br.l.conn.Multi(ops...) })
	switch {
	case err == nil:
		return nil, seqlock.Done, nil
	case errors.Is(err, zk.ErrBadVersion): // another break has notified a session
		return victims, seqlock.Nothing, nil
	case errors.Is(err, zk.ErrNoNode): // one of them has left, or a session has ended
		victims, err = br.present(ctx, victims)
		return victims, seqlock.Nothing, err
	case refused(err):
		return victims, seqlock.Nothing, err
	}
	return victims, seqlock.Unknown, err
}

// Fits returns how many victims fit into one transaction, with the notices to their sessions.
func (br *breaking) Fits(victims []victim) int {
	size := 0
	sessions := make(map[backend.SessionID]bool)
	for i := range victims {
		e := &victims[i].Entry
		size += opSize + len(br.lock) + len(e.node)
		if !sessions[e.session] {
			sessions[e.session] = true
			size += opSize + len(br.b.noticePath(e.session)) + seqlock.MaxNoticeBytes
		}
		if i > 0 && (size > maxBreak || i+len(sessions) > maxOps) {
			return i
		}
	}
	return len(victims)
}

// present returns those of the victims that have not left.
func (br *breaking) present(ctx context.Context, victims []victim) ([]victim, error) {
	now, err := br.b.look(ctx, br.l, br.lock, true)
	if err != nil {
		return victims, err
	}
	there := make(map[string]bool, len(now.All))
	for _, e := range now.All {
		there[e.node] = true
	}
	return slices.DeleteFunc(victims, func(v victim) bool { return !there[v.Entry.node] }), nil
}

// notify returns the operation that adds to the notices of a session. zk.ErrNoNode: the session is
// gone.
func (b *Backend) notify(ctx context.Context, l *link, id backend.SessionID, fresh []seqlock.Notice) (*zk.SetDataRequest, error) {
	type found struct {
		data    []byte
		version int32
	}
	path := b.noticePath(id)
	old, err := call(ctx, l, func() (found, error) {
		data, stat, err := l.conn.Get(path)
		if err != nil {
			return found{}, err
		}
		return found{data, stat.Version}, nil
	})
	if err != nil {
		return nil, err
	}
	data, err := seqlock.AddNotices(old.data, fresh, 1)
	if err != nil {
		return nil, err
	}
	return &zk.SetDataRequest{Path: path, Data: data, Version: old.version}, nil
}
