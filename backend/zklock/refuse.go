package zklock

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
)

// Leave deletes the entry if the others exist.
func (a *acquisition) Leave(ctx context.Context, others []entry) (bool, error) {
	var ops []any
	for _, e := range others {
		ops = append(ops, &zk.CheckVersionRequest{Path: a.lock + "/" + e.node, Version: -1})
	}
	ops = append(ops, &zk.DeleteRequest{Path: a.own.path, Version: -1})
	_, err := call(ctx, a.s.link, func() ([]zk.MultiResponse, error) { return a.s.batcher.write(&change{ops: ops}) })
	absent := errors.Is(err, zk.ErrNoNode)
	if absent && len(others) > 0 {
		return false, nil // any of them may be gone
	}
	if err != nil && !absent {
		return false, err
	}
	a.s.leases.Forget(a.mine)
	return true, nil
}

// Describe describes holders. If all of them have left since the queue was read, they were in the way then.
func (a *acquisition) Describe(ctx context.Context, holders queue) ([]backend.Holder, error) {
	info, err := a.b.describe(ctx, a.s.link, a.req.Name, holders)
	if err != nil || len(info.Holders) > 0 {
		return info.Holders, err
	}
	return holders.Describe(a.req.Name, func(i int) (backend.Holder, bool) {
		return backend.Holder{Session: holders.All[i].session}, true
	}).Holders, nil
}
