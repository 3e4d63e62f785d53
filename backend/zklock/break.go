package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	// maxBreak bounds the bytes of a transaction of a break. The ensemble accepts 1 MiB
	// (jute.maxbuffer), and the library as much as sendBuffer.
	maxBreak = 96 << 10
	// refusalsToLook is after how many refusals, each of which names one victim that has left, the
	// queue is read again to check the others: a whole session may have ended.
	refusalsToLook = 8
)

// Break takes the lock from all its holders. The first read fixes the victims; entries are never
// reused, so a lease granted later is not among them. If they do not fit into one transaction, they
// lose the lock in several, the oldest first, each of which keeps out the waiters that cannot share
// the lock with the rest. If Break fails between them, the remaining holders still hold the lock.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return backend.BreakResult{}, context.Cause(ctx)
	}
	l, err := b.controlLink(ctx)
	if err == nil {
		err = b.makeNodes(ctx, l)
	}
	if err != nil {
		return backend.BreakResult{}, b.fail(ctx, opBreak, err, false)
	}
	br := &breaking{b: b, l: l, req: &req, lock: b.lockPath(req.Name), told: make(map[backend.LeaseID]backend.Holder)}
	err = br.look(ctx)
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
	b    *Backend
	l    *link
	req  *backend.BreakRequest
	lock string // path
	res  backend.BreakResult
	told map[backend.LeaseID]backend.Holder // the victims, as they are described

	rest     []entry // the victims that may still hold the lock
	begun    bool    // a transaction has changed something, or may have
	refusals int
}

// look finds the victims. The token is the one after the greatest of theirs: the ensemble counts
// its transactions, so every later grant has it or a greater one. If there are no holders, a write
// of its own gives the token, and a lease granted before that write is a victim.
func (br *breaking) look(ctx context.Context) error {
	if err := br.find(ctx, math.MaxUint64); err != nil || len(br.rest) > 0 {
		return err
	}
	stat, err := call(ctx, br.l, func() (*zk.Stat, error) { return br.l.conn.Set(br.b.locksPath(), nil, -1) })
	if err != nil {
		return err
	}
	br.res.Token = fence.Token(stat.Mzxid) //nolint:gosec // it counts up from 0
	return br.find(ctx, br.res.Token)
}

// find selects the holders whose tokens are below the given one as victims. If all of the front
// left while it was read, other leases hold the lock by now, and it reads again.
func (br *breaking) find(ctx context.Context, below fence.Token) error {
	var victims line
	var info backend.LockInfo
	for again := true; again; again = len(victims.all) > 0 && len(info.Holders) == 0 {
		now, err := br.b.look(ctx, br.l, br.lock, true)
		if err != nil {
			return err
		}
		victims = now.holders()
		if info, err = br.b.describe(ctx, br.l, br.req.Name, victims); err != nil {
			return err
		}
	}
	var token fence.Token
	for _, h := range info.Holders {
		if h.Token < below {
			br.told[h.Lease] = h
			token = max(token, h.Token+1)
		}
	}
	for _, e := range victims.all {
		if _, ok := br.told[e.lease]; ok { // otherwise it has left
			br.rest = append(br.rest, e)
		}
	}
	if token > 0 {
		br.res.Token = token
	}
	return nil
}

// part deletes the entries of the oldest victims and notifies their sessions, in one transaction.
func (br *breaking) part(ctx context.Context) error {
	part := br.next()
	var ops []any
	fresh := make(map[backend.SessionID][]notice)
	for _, e := range part {
		ops = append(ops, &zk.DeleteRequest{Path: br.lock + "/" + e.node, Version: -1})
		fresh[e.session] = append(fresh[e.session], notice{Lease: e.lease, Reason: br.req.Reason})
	}
	for id, notices := range fresh {
		op, err := br.b.notify(ctx, br.l, id, notices)
		switch {
		case errors.Is(err, zk.ErrNoNode): // the session is gone, and its entries go by themselves
		case err != nil:
			return err
		default:
			ops = append(ops, op)
		}
	}
	res, err := call(ctx, br.l, func() ([]zk.MultiResponse, error) { return br.l.conn.Multi(ops...) })
	switch {
	case err == nil:
		br.begun = true
		br.rest = br.rest[len(part):]
		for _, e := range part {
			br.res.Broken = append(br.res.Broken, br.told[e.lease])
		}
		return nil
	case errors.Is(err, zk.ErrBadVersion): // another break has notified a session
		return nil
	case errors.Is(err, zk.ErrNoNode): // one of them has left, or a session has ended
		return br.refused(ctx, res, len(part))
	}
	br.begun = br.begun || !refused(err)
	return err
}

// next returns the victims that fit into one transaction, with the notices to their sessions.
func (br *breaking) next() []entry {
	size := 0
	sessions := make(map[backend.SessionID]bool)
	for i, e := range br.rest {
		size += opSize + len(br.lock) + len(e.node)
		if !sessions[e.session] {
			sessions[e.session] = true
			size += opSize + len(br.b.noticePath(e.session)) + maxNotified
		}
		if i > 0 && (size > maxBreak || i+len(sessions) > maxOps) {
			return br.rest[:i]
		}
	}
	return br.rest
}

// refused drops the victim that has left, whose delete the ensemble refused.
func (br *breaking) refused(ctx context.Context, res []zk.MultiResponse, deletes int) error {
	i := slices.IndexFunc(res, func(r zk.MultiResponse) bool { return errors.Is(r.Error, zk.ErrNoNode) })
	if i >= 0 && i < deletes {
		br.rest = slices.Delete(br.rest, i, i+1)
	}
	if br.refusals++; br.refusals%refusalsToLook != 0 {
		return nil
	}
	now, err := br.b.look(ctx, br.l, br.lock, true)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(now.all))
	for _, e := range now.all {
		there[e.node] = true
	}
	br.rest = slices.DeleteFunc(br.rest, func(e entry) bool { return !there[e.node] })
	return nil
}

// maxNotices and maxNotified bound the notices of breaks to a session, in number and in bytes. The
// newest are kept. The session finds the other breaks by itself.
const maxNotices, maxNotified = 100, 8 << 10

// notify returns the operation that adds to the notices of a session. zk.ErrNoNode: the session is
// gone.
func (b *Backend) notify(ctx context.Context, l *link, id backend.SessionID, fresh []notice) (*zk.SetDataRequest, error) {
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
	var all []notice
	_ = json.Unmarshal(old.data, &all)
	all = append(all, fresh...)
	for most := maxNotices; ; most /= 2 {
		if len(all) > most {
			all = all[len(all)-most:]
			all[0].Cut = true
		}
		data, err := json.Marshal(all)
		if err != nil {
			return nil, fmt.Errorf("encode notices: %w", err)
		}
		if len(data) <= maxNotified || most == 1 {
			return &zk.SetDataRequest{Path: path, Data: data, Version: old.version}, nil
		}
	}
}
