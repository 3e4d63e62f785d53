package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
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
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	key := leaseKey{req.Name, req.Lease}
	s := b.sessionOf(key, req.Session)
	var found bool
	var err error
	if s != nil {
		found, err = s.release(ctx, key, req)
	} else {
		var l *link
		if l, err = b.controlLink(ctx); err != nil {
			return b.fail(ctx, opRelease, err, false)
		}
		found, err = b.removeLease(ctx, l, req)
	}
	if s != nil && (err == nil || errors.Is(err, zk.ErrSessionExpired)) {
		s.settle(key)
	}
	switch {
	case s != nil && (errors.Is(err, zk.ErrSessionExpired) || isClosed(s.over)) && ctx.Err() == nil:
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

// sessionOf returns the session here that has the lease, or under which it is abandoned.
func (b *Backend) sessionOf(k leaseKey, id backend.SessionID) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.sessions[id]; ok && isClosed(s.opened) && s.err == nil {
		return s
	}
	for _, s := range b.sessions {
		s.mu.Lock()
		_, ok := s.leases[k]
		s.mu.Unlock()
		if ok {
			return s
		}
	}
	return nil
}

// release deletes the entry of a lease of the session: the one that is known, or, if that is not
// certain, every entry of the lease. It reports whether there was one.
func (s *session) release(ctx context.Context, k leaseKey, req backend.ReleaseRequest) (bool, error) {
	o, path, to, toPath := s.leave(k, req.Abandon)
	if path == "" {
		return s.b.removeLease(ctx, s.link, req)
	}
	s.b.made.note(s.b.lockPath(req.Name))
	_, err := call(ctx, s.link, func() (struct{}, error) {
		ops := []any{&zk.DeleteRequest{Path: path, Version: -1}}
		if to != nil {
			_, err := s.batcher.write(append(ops, &zk.CheckVersionRequest{Path: toPath, Version: -1}), "")
			if !errors.Is(err, zk.ErrNoNode) {
				s.released(o, to, err)
				return struct{}{}, err
			}
		}
		_, err := s.batcher.write(ops, "") // the follower has gone, or this one
		s.released(o, nil, err)
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, err
}

// released records how the delete of an entry ended, also when no caller waits for it any more. The
// follower is woken to read, unless the lock was handed to it.
func (s *session) released(o, to *own, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && to != nil {
		to.alone = true
	}
	if err == nil || errors.Is(err, zk.ErrNoNode) {
		s.unplace(o)
		return
	}
	o.wakeNext()
}

// leave stops the callers that wait for the lease. It returns the lease, the path of its entry if
// that is certain, and, if known, the follower that gets the lock with the path of its entry.
func (s *session) leave(k leaseKey, abandon bool) (*own, string, *own, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.leases[k]
	if !ok {
		if !abandon {
			return nil, "", nil, ""
		}
		o = newOwn()
		s.leases[k] = o
	}
	if abandon {
		o.abandoned, o.at = true, time.Now()
		s.abandoned = append(s.abandoned, k)
	}
	if !isClosed(o.gone) {
		close(o.gone)
	}
	if o.unsure || abandon || o.path == "" {
		return o, "", nil, ""
	}
	if to := o.follower(); to != nil {
		return o, o.path, to, to.path
	}
	return o, o.path, nil, ""
}

// settle records that a lease was released and has no entry. If a create of it is under way, the
// lease stays known until that has ended: see created.
func (s *session) settle(k leaseKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.leases[k]; ok {
		s.unplace(o)
		o.path = ""
		o.unsure = o.unsure && len(o.turn) > 0
		s.drop(k, o)
	}
	s.forgetAbandoned()
}

// forgetAbandoned forgets leases that were abandoned so long ago that no request for them can be on
// its way any more. The session's mu is held.
func (s *session) forgetAbandoned() {
	for len(s.abandoned) > 0 {
		k := s.abandoned[0]
		if o, ok := s.leases[k]; ok && o.abandoned {
			if time.Since(o.at) <= rememberDead {
				return
			}
			delete(s.leases, k)
		}
		s.abandoned = s.abandoned[1:]
	}
}

// removeLease deletes every entry of the lease. It reports whether there was one.
func (b *Backend) removeLease(ctx context.Context, l *link, req backend.ReleaseRequest) (bool, error) {
	lock := b.lockPath(req.Name)
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
		if e, ok := parseEntry(n); ok && e.lease == req.Lease {
			found = true
			if err := b.remove(ctx, l, lock+"/"+n); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}
