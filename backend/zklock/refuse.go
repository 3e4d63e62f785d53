package zklock

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
)

// mostChecks is how many of the entries before it a request that steps back checks.
const mostChecks = 100

// stepBack leaves the queue that filled up after it was read, and reports whether it did. It does
// not if an entry before its own has gone in the meantime, because then its own may hold the lock,
// and other requests have been refused because of it.
func (a *acquisition) stepBack(ctx context.Context, l line, i int, path string) (bool, error) {
	var ops []any
	for _, e := range l.all[l.Decisive(i, mostChecks):i] {
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
	a.s.forget(a.mine)
	return true, nil
}

func (a *acquisition) refusal(ctx context.Context, l line, ahead int) error {
	if a.req.Mode == backend.Shared {
		if limit, ok := backend.LimitInForce(l.Claims); ok && limit != a.req.Limit {
			return &backend.LimitError{Name: a.req.Name, Asked: a.req.Limit, InForce: limit}
		}
	}
	info, err := a.b.describe(ctx, a.s.link, a.req.Name, l.first(min(l.Out, backend.MaxHeldHolders)))
	if err != nil {
		return err
	}
	holders := info.Holders
	if len(holders) == 0 { // they left since the queue was read: at that time they were in the way
		for _, e := range backend.FirstHolders(l.all[:l.Out]) {
			holders = append(holders, backend.Holder{Lease: e.lease, Session: e.session, Mode: e.claim.Mode, Permits: e.claim.Permits})
		}
	}
	return backend.NewHeldError(a.req.Name, holders, l.Out, max(0, ahead-l.Out))
}
