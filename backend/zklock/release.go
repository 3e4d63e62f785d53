package zklock

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
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

// Release releases a lease, or its place in the queue. With req.Abandon it can never be granted
// afterwards. Errors: ErrLost if there is no such lease, unless req.Abandon is set; *InvalidError;
// *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	key := seqlock.Key{Name: req.Name, ID: req.Lease}
	s, ok := b.sessions.Find(req.Session, func(s *session) bool { return s.leases.Knows(key) })
	var found bool
	if ok {
		found, err = s.release(ctx, key, req.Abandon)
	} else {
		var l *link
		if l, err = b.controlLink(ctx); err != nil {
			return b.fail(ctx, opRelease, err, false)
		}
		found, err = b.removeLease(ctx, l, key)
	}
	if ok && (err == nil || errors.Is(err, zk.ErrSessionExpired)) {
		s.settle(key)
	}
	switch {
	case ok && (errors.Is(err, zk.ErrSessionExpired) || s.Life.Err() != nil) && ctx.Err() == nil:
		// It went with its session.
		if req.Abandon {
			return nil
		}
		return backend.ErrLost
	case err != nil:
		return b.fail(ctx, opRelease, err, true)
	case !found && !req.Abandon:
		return backend.ErrLost
	}
	return nil
}

// release deletes the entry of a lease of the session: the one that is known, or, if that is not
// certain, every entry of the lease. It reports whether there was one.
func (s *session) release(ctx context.Context, k seqlock.Key, abandon bool) (bool, error) {
	l, path, to, toPath := s.leave(k, abandon)
	if path == "" {
		return s.b.removeLease(ctx, s.link, k)
	}
	s.b.made.note(s.b.lockPath(k.Name))
	_, err := call(ctx, s.link, func() (struct{}, error) {
		ops := []any{&zk.DeleteRequest{Path: path, Version: -1}}
		if to != nil {
			_, err := s.batcher.write(append(ops, &zk.CheckVersionRequest{Path: toPath, Version: -1}), "")
			if !errors.Is(err, zk.ErrNoNode) {
				s.released(l, to, err)
				return struct{}{}, err
			}
		}
		_, err := s.batcher.write(ops, "") // the follower has gone, or this one
		s.released(l, nil, err)
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

// leave stops the callers that wait for the lease. It returns the lease, the path of its entry if
// that is certain, and, if known, the follower that gets the lock with the path of its entry.
func (s *session) leave(k seqlock.Key, abandon bool) (*lease, string, *lease, string) {
	s.leases.Lock()
	defer s.leases.Unlock()
	l := s.leases.Leave(k, abandon)
	if l == nil || l.Unsure || abandon || l.Entry == "" {
		return l, "", nil, ""
	}
	if to := followerOf(l); to != nil {
		return l, l.Entry, to, to.Entry
	}
	return l, l.Entry, nil, ""
}

// settle records that a lease was released and has no entry. If a create of it is under way, the
// lease stays known until that has ended: see created.
func (s *session) settle(k seqlock.Key) {
	s.leases.Lock()
	defer s.leases.Unlock()
	if l := s.leases.Get(k); l != nil {
		s.unplace(l)
		s.leases.Settle(k, l, l.Unsure && len(l.Store.turn) > 0)
	}
	s.leases.Forgotten()
}

// removeLease deletes every entry of the lease. It reports whether there was one.
func (b *Backend) removeLease(ctx context.Context, l *link, k seqlock.Key) (bool, error) {
	lock := b.lockPath(k.Name)
	nodes, err := call(ctx, l, func() ([]string, error) {
		// A write, and not a sync: a leader that was deposed still answers those, with an old queue.
		if _, err := l.conn.Set(b.locksPath(), nil, -1); err != nil {
			return nil, err
		}
		nodes, _, err := l.conn.Children(lock)
		return nodes, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
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
