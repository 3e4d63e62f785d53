package zklock

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// mostChecks is how many of the entries before it a request that steps back checks.
const mostChecks = 100

// stepBack leaves the queue that filled up after it was read, and reports whether it did. It does
// not if an entry before its own has gone in the meantime, because then its own may hold the lock,
// and other requests have been refused because of it.
func (a *acquisition) stepBack(ctx context.Context, q queue, i int, path string) (bool, error) {
	var ops []any
	for _, e := range q.All[q.Decisive(i, mostChecks):i] {
		ops = append(ops, &zk.CheckVersionRequest{Path: a.lock + "/" + e.node, Version: -1})
	}
	ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	_, err := call(ctx, a.s.link, func() ([]zk.MultiResponse, error) { return a.s.batcher.write(ops, "") })
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	a.s.leases.Forget(a.mine)
	return true, nil
}

func (a *acquisition) refusal(ctx context.Context, q queue, ahead int) error {
	return q.Refusal(a.req, ahead, func(named seqlock.Queue[entry]) ([]backend.Holder, error) {
		info, err := a.b.describe(ctx, a.s.link, a.req.Name, named)
		if err != nil || len(info.Holders) > 0 {
			return info.Holders, err
		}
		// They left since the queue was read: at that time they were in the way.
		return named.Describe(a.req.Name, func(i int) (backend.Holder, bool) {
			return backend.Holder{Session: named.All[i].session}, true
		}).Holders, nil
	})
}
