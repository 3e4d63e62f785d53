package zklock

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// remove deletes a node that may be gone.
func (b *Backend) remove(ctx context.Context, l *link, path string) error {
	_, err := call(ctx, l, func() (struct{}, error) { return struct{}{}, l.conn.Delete(path, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// Release deletes the entry of a lease, and hands the lock to the next waiter of the session.
func (st store) Release(ctx context.Context, s *session, l *lease, k seqlock.Key, abandon bool) (bool, error) {
	if s == nil {
		control, err := st.controlLink(ctx)
		if err != nil {
			return false, err
		}
		return st.removeLease(ctx, control, k)
	}
	found, err := s.release(ctx, l, k, abandon)
	s.leases.ForgetAbandoned()
	if (errors.Is(err, zk.ErrSessionExpired) || s.Life.Err() != nil) && ctx.Err() == nil {
		return false, nil // it went with its session
	}
	return found, err
}

// release deletes the entry of a lease of the session: the one that is known, or, if that is not
// certain, every entry of the lease. It reports whether there was one.
func (s *session) release(ctx context.Context, l *lease, k seqlock.Key, abandon bool) (bool, error) {
	path, to, toPath := s.known(l)
	if path == "" || abandon {
		return s.b.removeLease(ctx, s.link, k)
	}
	s.b.made.Add(s.b.lockPath(k.Name))
	_, err := call(ctx, s.link, func() (struct{}, error) {
		ops := []any{&zk.DeleteRequest{Path: path, Version: -1}}
		if to != nil {
			ops = append(ops, &zk.CheckVersionRequest{Path: toPath, Version: -1})
		}
		_, err := s.batcher.write(&change{ops: ops})
		if to != nil && errors.Is(err, zk.ErrNoNode) { // the follower has gone, or this one
			to = nil
			_, err = s.batcher.write(&change{ops: ops[:1]})
		}
		s.released(l, to, err)
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, err
}

// released records how the delete of an entry ended, also when no caller waits for it any more. The
// follower is woken to read, unless the lock was handed to it.
func (s *session) released(l, to *lease, err error) {
	s.leases.Lock()
	defer s.leases.Unlock()
	if err == nil && to != nil {
		to.Store.alone = true
	}
	if err == nil || errors.Is(err, zk.ErrNoNode) {
		s.unplace(l)
		return
	}
	wakeNext(l)
}

// known returns the path of the entry of a lease if that is certain, and, if known, the follower that gets
// the lock with the path of its entry.
func (s *session) known(l *lease) (string, *lease, string) {
	s.leases.Lock()
	defer s.leases.Unlock()
	if l == nil || l.Unsure || l.Entry == "" {
		return "", nil, ""
	}
	if to := followerOf(l); to != nil {
		return l.Entry, to, to.Entry
	}
	return l.Entry, nil, ""
}

// removeLease deletes every entry of the lease. It reports whether there was one.
func (b *Backend) removeLease(ctx context.Context, l *link, k seqlock.Key) (bool, error) {
	lock := b.lockPath(k.Name)
	// A write, and not a sync: a leader that was deposed still answers those, with an old queue.
	if _, err := l.touch(ctx, b.locksPath()); errors.Is(err, zk.ErrNoNode) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	nodes, err := l.children(ctx, lock, false)
	if err != nil {
		return false, err
	}
	found := false
	for _, n := range nodes {
		if e, ok := parseEntry(n); ok && e.lease == k.ID {
			found = true
			if err := b.remove(ctx, l, lock+"/"+n); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}
