package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Acquire takes the lock, or waits for it in the queue if req.Wait is set. If ctx ends while it
// waits, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError, ErrLost,
// ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return backend.Grant{}, context.Cause(ctx)
	}
	s, err := b.session(req.Session)
	if err != nil {
		return backend.Grant{}, err
	}
	key := leaseKey{req.Name, req.Lease}
	a := &acquisition{b: b, s: s, req: &req, key: key, lock: b.lockPath(req.Name), asked: time.Now()}
	if a.mine, err = s.join(key); err != nil {
		return backend.Grant{}, err
	}
	defer s.part(key, a.mine)
	g, err := a.run(ctx)
	switch {
	case err == nil && (s.left() <= 0 || isClosed(s.over)): // it ended on the way
		return backend.Grant{}, backend.ErrSessionLost
	case isClosed(s.over) && ctx.Err() == nil:
		err = backend.ErrSessionLost
	case s.isLost(key) && b.base.Err() == nil:
		return backend.Grant{}, backend.ErrLost // tell and created delete its entry
	}
	err = b.fail(ctx, opAcquire, err, true)
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok && s.mayHold(a.mine) {
		away.MayHold = true // whatever was refused since
	}
	return g, err
}

// mayHold reports whether the lease has an entry, or may have one.
func (s *session) mayHold(o *own) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.path != "" || o.unsure
}

// isLost reports whether the loss of the lease was reported.
func (s *session) isLost(k leaseKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[k.id]
}

// join records a caller that requests the lease, and returns what is known of it. ErrLost: it was
// abandoned, its loss was reported, or its release has not ended yet. A release of unknown outcome
// counts as a release: the entry may be deleted at any time, so it must not be granted again.
func (s *session) join(k leaseKey) (*own, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, backend.ErrSessionLost
	}
	if s.told[k.id] {
		return nil, backend.ErrLost
	}
	o, ok := s.leases[k]
	if !ok {
		o = newOwn()
		s.leases[k] = o
	}
	if o.abandoned || isClosed(o.gone) {
		return nil, backend.ErrLost
	}
	o.callers++
	return o, nil
}

// part ends what join began.
func (s *session) part(k leaseKey, o *own) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.callers--
	s.drop(k, o)
}

// drop forgets a lease that has no entry, no caller, and was not abandoned. The session's mu is
// held.
func (s *session) drop(k leaseKey, o *own) {
	if s.leases[k] == o && o.callers <= 0 && o.path == "" && !o.unsure && !o.abandoned {
		delete(s.leases, k)
	}
}

// acquisition is one Acquire in progress.
type acquisition struct {
	b     *Backend
	s     *session
	req   *backend.AcquireRequest
	key   leaseKey
	mine  *own
	lock  string // path
	asked time.Time
}

func (a *acquisition) run(ctx context.Context) (backend.Grant, error) {
	e, err := a.enter(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	return a.stand(ctx, e)
}

// standing is an entry that was found or made.
type standing struct {
	path  string
	token fence.Token // if it was made just now; else 0
	sole  bool        // it was the only one of its lock when it was made
}

// enter finds the entry of the lease, or makes it.
func (a *acquisition) enter(ctx context.Context) (standing, error) {
	select {
	case a.mine.turn <- struct{}{}:
	case <-a.s.over:
		return standing{}, backend.ErrSessionLost
	case <-ctx.Done():
		return standing{}, &unsent{context.Cause(ctx)}
	}
	done := func() { <-a.mine.turn }
	path, unsure := a.mine.where(a.s)
	if path == "" && (unsure || !a.req.Wait) {
		// A reply may have been lost; and a request that does not wait must leave no trace in a
		// queue that has no room.
		l, err := a.look(ctx, unsure)
		if err == nil {
			path, err = a.found(l)
		}
		if err == nil && path == "" && !a.req.Wait && !l.Admits(a.req.Claim()) {
			err = a.refusal(ctx, l, len(l.all))
		}
		if err != nil {
			done()
			return standing{}, err
		}
	}
	if path != "" {
		done()
		return standing{path: path}, nil
	}
	return a.create(ctx, done)
}

// where returns the path of the entry, as far as it is known, and whether there may be one that is
// not known.
func (o *own) where(s *session) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.path, o.unsure
}

// found looks for an entry of the lease that an earlier request made. An entry of another session
// belongs to that session, even while it waits: it may be granted by the time it is taken over, and
// then its holder would not know.
func (a *acquisition) found(l line) (string, error) {
	i := l.find(a.req.Lease)
	if i < 0 {
		return "", nil
	}
	e := l.all[i]
	if e.session != a.req.Session {
		return "", backend.ErrLost
	}
	path := a.lock + "/" + e.node
	a.settle(path)
	return path, nil
}

// settle records where the entry is.
func (a *acquisition) settle(path string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.mine.path, a.mine.unsure = path, false
	a.s.place(a.mine, a.req.Mode)
}

// create makes the entry. If the outcome is unknown here, a retry looks for the entry first, and so
// does the release that abandons the lease. create calls done when the attempt has ended, which may
// be after the return.
func (a *acquisition) create(ctx context.Context, done func()) (standing, error) {
	a.s.mu.Lock()
	if a.isFinal() || ctx.Err() != nil {
		defer a.s.mu.Unlock()
		done()
		if a.isFinal() {
			return standing{}, backend.ErrLost
		}
		return standing{}, &unsent{context.Cause(ctx)}
	}
	a.mine.unsure = true
	a.s.mu.Unlock()
	e, err := call(ctx, a.s.link, func() (standing, error) {
		defer done()
		e, err := a.join()
		a.created(e.path, err)
		return e, err
	})
	if _, never := errors.AsType[*unsent](err); never {
		done()
	}
	return e, err
}

// isFinal reports whether this request must not be granted: the lease was released, abandoned or
// reported as lost since it began. The session's mu is held.
func (a *acquisition) isFinal() bool { return isClosed(a.mine.gone) }

// join makes the entry, in one transaction with a write to its lock. The answer reports how many
// entries there are now, and the ID of the transaction, which is the token: the leader counts them,
// over all its terms.
func (a *acquisition) join() (standing, error) {
	acl := a.b.cfg.acl()
	ops := []any{
		&zk.CreateRequest{
			Path: a.lock + "/" + prefix(a.req), Acl: acl, Flags: zk.FlagEphemeral | zk.FlagSequence,
			Data: content{Owner: a.req.Owner, Note: a.req.Note, TTL: int64(a.s.ttl)}.encode(),
		},
		&zk.SetDataRequest{Path: a.lock, Version: -1},
	}
	var res []zk.MultiResponse
	var err error
	for range 10 { // the container may be collected as soon as it is made
		if !a.b.made.known(a.lock) {
			if err := a.s.link.createContainer(a.lock, acl); err != nil {
				return standing{}, err
			}
		}
		if res, err = a.s.batcher.write(ops, a.lock); !errors.Is(err, zk.ErrNoNode) {
			break
		}
		a.b.made.forget(a.lock)
	}
	if err != nil {
		return standing{}, err
	}
	a.b.made.note(a.lock)
	stat := res[1].Stat
	return standing{path: res[0].String, token: fence.Token(stat.Mzxid), sole: stat.NumChildren == 1}, nil //nolint:gosec // it counts up from 0
}

// created records how the create ended, also when no caller waits for it any more.
func (a *acquisition) created(path string, err error) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	switch {
	case a.isFinal() && !refused(err):
		// The release may have read the queue before the entry was made. clear counts as a caller, so
		// that no other request for the lease makes an entry that would be deleted, too.
		a.mine.path = path
		a.mine.callers++
		a.s.b.work.Go(func() {
			a.s.clear(a.key, "")
			a.s.forget(a.mine)
			a.s.part(a.key, a.mine)
		})
	case err == nil:
		a.mine.path, a.mine.unsure = path, false
		a.s.place(a.mine, a.req.Mode)
	case refused(err):
		a.mine.unsure = false
	}
	a.s.drop(a.key, a.mine)
}

// clear deletes the entries of a lease that must never be granted, because no caller will: one was
// told that nothing is left of it. If the path is not empty, it does so only if that entry exists.
func (s *session) clear(k leaseKey, path string) {
	for {
		there, err := true, error(nil)
		if path != "" {
			there, _, err = s.link.conn.Exists(path)
		}
		if err == nil && there {
			_, err = s.b.removeLease(s.b.base, s.link, backend.ReleaseRequest{Name: k.name, Lease: k.id})
		}
		if err == nil || !retry.Until(s.b.cfg.Tick/2, s.over, nil) {
			return // or it went with its session
		}
	}
}

// look lists the queue. catchUp lets the server catch up with its leader first.
func (a *acquisition) look(ctx context.Context, catchUp bool) (line, error) {
	return a.b.look(ctx, a.s.link, a.lock, catchUp)
}

func (b *Backend) look(ctx context.Context, l *link, lock string, catchUp bool) (line, error) {
	nodes, err := call(ctx, l, func() ([]string, error) {
		if catchUp {
			if _, err := l.conn.Sync(b.cfg.Path); err != nil {
				return nil, err
			}
		}
		nodes, _, err := l.conn.Children(lock)
		return nodes, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return line{}, nil
	}
	if err != nil {
		return line{}, err
	}
	return newLine(nodes), nil
}

// stand waits until the entry is granted.
func (a *acquisition) stand(ctx context.Context, e standing) (backend.Grant, error) {
	if e.sole && !isClosed(a.mine.gone) {
		return a.grant(e.path, e.token, false), nil
	}
	waited := false
	// Nodes that existed when this one was made stood before it.
	stood := e.token != 0 && a.req.Wait && a.req.Mode == backend.Exclusive
	if stood {
		out, err := a.behindOwn(ctx, e.path)
		if err != nil {
			return backend.Grant{}, err
		}
		if out && !isClosed(a.mine.gone) {
			return a.grant(e.path, e.token, true), nil
		}
	}
	node := e.path[strings.LastIndexByte(e.path, '/')+1:]
	token, l, err := a.first(ctx, e)
	if err != nil {
		return backend.Grant{}, err
	}
	for {
		i := l.find(a.req.Lease)
		if i < 0 || isClosed(a.mine.gone) {
			return backend.Grant{}, a.vanished(ctx)
		}
		if l.all[i].node != node {
			return backend.Grant{}, a.displaced(ctx, l.all[i], e.path)
		}
		if err := a.checkLimit(ctx, l, i, e.path); err != nil {
			return backend.Grant{}, err
		}
		if i < l.Out {
			return a.grant(e.path, token, waited || stood), nil
		}
		if !a.req.Wait && e.token == 0 { // an earlier request made it, and it keeps its place
			return backend.Grant{}, a.refusal(ctx, l, i)
		}
		if !a.req.Wait {
			left, err := a.stepBack(ctx, l, i, e.path)
			if err == nil && left {
				err = a.refusal(ctx, l, i)
			} else if err == nil {
				l, err = a.look(ctx, false)
			}
			if err != nil {
				return backend.Grant{}, err
			}
			continue
		}
		waited = true
		var out bool
		if l, out, err = a.next(ctx, l, i, e.path); err != nil {
			return backend.Grant{}, err
		}
		if out && !isClosed(a.mine.gone) {
			return a.grant(e.path, token, true), nil
		}
	}
}

// first returns the queue, and the token if it is not known yet: it is the ID of the transaction
// that made the entry.
func (a *acquisition) first(ctx context.Context, e standing) (fence.Token, line, error) {
	if e.token != 0 {
		l, err := a.look(ctx, false)
		return e.token, l, err
	}
	var wg sync.WaitGroup
	var l line
	var lineErr error
	wg.Go(func() { l, lineErr = a.look(ctx, false) })
	stat, err := call(ctx, a.s.link, func() (*zk.Stat, error) {
		there, stat, err := a.s.link.conn.Exists(e.path)
		if err == nil && !there {
			return nil, zk.ErrNoNode
		}
		return stat, err
	})
	wg.Wait()
	if errors.Is(err, zk.ErrNoNode) {
		return 0, line{}, a.vanished(ctx)
	}
	if err = errors.Join(err, lineErr); err != nil {
		return 0, line{}, err
	}
	return fence.Token(stat.Czxid), l, nil //nolint:gosec // it counts up from 0
}

// vanished returns the error for an entry that no longer exists: it was broken, released or
// abandoned, or the session is gone.
func (a *acquisition) vanished(ctx context.Context) error {
	if isClosed(a.s.over) || isClosed(a.s.link.over) {
		return backend.ErrSessionLost
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.s.forget(a.mine)
	return backend.ErrLost
}

// displaced returns the error for an entry behind another one of the same lease. It deletes it,
// because it would get the lock after that one. The other one belongs to another session, which
// has the lease, or was made by a request whose outcome was unknown.
func (a *acquisition) displaced(ctx context.Context, first entry, path string) error {
	if first.session == a.s.id {
		if err := a.b.remove(ctx, a.s.link, a.lock+"/"+first.node); err != nil {
			return err
		}
	}
	if err := a.b.remove(ctx, a.s.link, path); err != nil {
		return err
	}
	a.s.forget(a.mine)
	return backend.ErrLost
}

// forget records that a lease has no entry, and no create under way.
func (s *session) forget(o *own) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unplace(o)
	o.path, o.unsure = "", false
}

// checkLimit removes the entry if another limit is in force.
func (a *acquisition) checkLimit(ctx context.Context, l line, i int, path string) error {
	if a.req.Mode != backend.Shared {
		return nil
	}
	limit, ok := backend.LimitInForce(l.Claims[:i])
	if !ok || limit == a.req.Limit {
		return nil
	}
	if err := a.b.remove(ctx, a.s.link, path); err != nil {
		return err // it may stand in the queue still
	}
	a.s.forget(a.mine)
	return &backend.LimitError{Name: a.req.Name, Asked: a.req.Limit, InForce: limit}
}

func (a *acquisition) grant(path string, token fence.Token, waited bool) backend.Grant {
	since := time.Now()
	a.s.mu.Lock()
	a.mine.held = true
	a.mine.alone = a.mine.alone || a.req.Mode == backend.Exclusive
	a.s.mu.Unlock()
	if waited {
		a.s.b.work.Go(func() { a.tellSince(path, since) })
	}
	return backend.Grant{Token: token, Asked: a.asked, Since: since, Waited: waited}
}

// sinceDelay is how long a lease that waited is held before the time of its grant is written into
// its entry, which costs a write.
const sinceDelay = 250 * time.Millisecond

func (a *acquisition) tellSince(path string, since time.Time) {
	timer := time.NewTimer(sinceDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		data := content{Owner: a.req.Owner, Note: a.req.Note, TTL: int64(a.s.ttl), Since: since.UnixNano()}.encode()
		_, _ = a.s.link.conn.Set(path, data, -1) // it may be gone
	case <-a.mine.gone:
	case <-a.s.over:
	case <-a.s.link.over:
	}
}
