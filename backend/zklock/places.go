package zklock

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// fullError is returned for an entry that got no place: its container has given all of them.
type fullError struct {
	container int64 // the ID of the transaction that made it
}

func (*fullError) Error() string { return "the container of the lock has given all its places" }

// startOver waits until the container that has given all its places is empty, and deletes it: the next
// one gives them again from 0. No entry gets a place in the meantime, so those that hold the lock or
// wait leave, and there are never two containers with entries. Where another client has deleted the
// container, it returns immediately. A request that does not wait is refused if the queue is not empty.
func (a *acquisition) startOver(ctx context.Context, container int64) error {
	for !a.mine.IsGone() {
		now, err := a.s.link.watchQueue(ctx, a.lock)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil
		case err != nil:
			return err
		case now.stat.Czxid != container:
			return nil
		case now.stat.NumChildren == 0:
			if err := a.b.remove(ctx, a.s.link, a.lock); !errors.Is(err, zk.ErrNotEmpty) {
				return err
			}
			continue
		case len(now.queue.All) > 0 && !a.req.Wait:
			return seqlock.Refuse(ctx, a, a.req, now.queue, len(now.queue.All))
		}
		if _, err := a.rest(ctx, waking{queue: now.watch}, safety); err != nil {
			return err
		}
	}
	return nil
}
