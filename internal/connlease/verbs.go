package connlease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Acquire acquires the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *HeldError, ErrLost,
// ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	ctx, leave, err := b.enter(ctx, opAcquire, req.Validate(b.cfg.Caps))
	if err != nil {
		return backend.Grant{}, err
	}
	defer leave()
	asked := time.Now()
	s, err := b.session(req.Session)
	if err != nil {
		return backend.Grant{}, b.fail(ctx, opAcquire, false, err)
	}
	var l *lease
	for range mostRefusals {
		if l, err = s.join(req); err == nil {
			err = s.await(ctx, l, req.Wait)
		}
		if !errors.Is(err, errRefused) {
			break
		}
		if err := b.held(ctx, req, s.inQueue(l)); err != nil {
			return backend.Grant{}, err
		}
		// It was free again when its holder was read: try again.
	}
	switch {
	case errors.Is(err, errRefused):
		return backend.Grant{}, b.fail(ctx, opAcquire, s.inQueue(l), errBusy)
	case err != nil:
		return backend.Grant{}, b.inWait(ctx, s, l, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended || !time.Now().Before(s.deadline): // it ended on the way
		return backend.Grant{}, b.fail(ctx, opAcquire, true, backend.ErrSessionLost)
	case l.state != out:
		return backend.Grant{}, backend.ErrLost
	}
	return backend.Grant{
		Token: l.token, Asked: asked, Since: l.since, Waited: l.waited, ByTimer: l.waited && l.timer && b.cfg.Caps.Push,
	}, nil
}

// inWait returns the error of an acquisition that got no answer.
func (b *Leases) inWait(ctx context.Context, s *session, l *lease, err error) error {
	if ctx.Err() == nil || connect.IsKind(err) {
		return b.fail(ctx, opAcquire, true, err)
	}
	s.mu.Lock()
	sure := l != nil && isClosed(l.tried) && !l.trying
	s.mu.Unlock()
	if sure && !errors.Is(context.Cause(ctx), backend.ErrClosed) { // it is in the queue, and no try is in progress
		return context.Cause(ctx)
	}
	return b.fail(ctx, opAcquire, true, err)
}

// join finds the lease, or appends it to the local queue. Errors: ErrLost, ErrSessionLost,
// errRefused.
func (s *session) join(req backend.AcquireRequest) (*lease, error) {
	k := Key{Name: req.Name, ID: req.Lease}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, backend.ErrSessionLost
	}
	if s.abandoned.Has(k) {
		return nil, backend.ErrLost
	}
	if l, ok := s.leases[k]; ok {
		if l.gone {
			return nil, backend.ErrLost
		}
		l.wait = l.wait || req.Wait
		return l, nil
	}
	p := s.spot(req.Name)
	l := &lease{req: req, wait: req.Wait, tried: make(chan struct{}), done: make(chan struct{}), freed: make(chan struct{})}
	if !req.Wait && len(p.out) > 0 && backend.Admit(claims(p.out), append(claims(p.queue), req.Claim())) <= len(p.queue) {
		return nil, errRefused
	}
	s.leases[k] = l
	p.queue = append(p.queue, l)
	if s.waitsFor(p, l) {
		s.due[req.Name] = max(s.due[req.Name], toQueue)
	} else {
		s.due[req.Name] = toTry
	}
	s.moved = time.Now()
	s.wake()
	return l, nil
}

// waitsFor reports whether a request before the lease waits already, so that a try is of no use.
// The caller holds mu.
func (s *session) waitsFor(p *spot, l *lease) bool {
	return l.wait && len(p.queue) > 1 && p.queue[0].queued && p.queue[0].req.Mode == backend.Exclusive
}

// await waits until the lease is held or, without wait, for the first answer. Errors: those of
// the lease; errRefused; ctx's cause.
func (s *session) await(ctx context.Context, l *lease, wait bool) error {
	answer := l.done
	if !wait {
		answer = l.tried
	}
	if err := closed(ctx, answer); err != nil {
		return err
	}
	if !isClosed(l.done) {
		return errRefused // it is in the queue, because another call waits for it
	}
	return l.err
}

// mostRefusals bounds the tries of a lock that is free each time its holder is read.
const mostRefusals = 8

var errBusy = errors.New("the lock changes hands too fast to read its holder")

// inQueue reports whether a call waits for the lease, which may be granted to it.
func (s *session) inQueue(l *lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l != nil && l.state != over
}

// held returns the refusal of a request that does not wait. It is nil where the lock has no
// holder any more. Errors: *HeldError; *UnavailableError, which says mayHold; ErrClosed; ctx's cause.
func (b *Leases) held(ctx context.Context, req backend.AcquireRequest, mayHold bool) error {
	all, err := b.store.Look(ctx, []string{req.Name})
	if err != nil {
		return b.fail(ctx, opAcquire, mayHold, err)
	}
	info := all[req.Name]
	ahead := len(info.Waiters)
	if i := slices.IndexFunc(info.Waiters, func(w backend.Waiter) bool { return w.Lease == req.Lease }); i >= 0 {
		ahead = i
	}
	if len(info.Holders) == 0 && ahead == 0 {
		return nil
	}
	return backend.NewHeldError(req.Name, info.Holders, 0, ahead)
}

// Release releases a lease, or its place in the queue. With req.Abandon the lease can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon is set;
// *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) Release(ctx context.Context, req backend.ReleaseRequest) error {
	ctx, leave, err := b.enter(ctx, opRelease, req.Validate())
	if err != nil {
		return err
	}
	defer leave()
	k := Key{Name: req.Name, ID: req.Lease}
	s := b.sessionOf(k, req.Session)
	var freed <-chan struct{}
	if s != nil {
		freed = s.leave(k, req.Abandon)
	}
	switch {
	case freed != nil:
		err := closed(ctx, freed)
		if err == nil && isClosed(s.over) && !req.Abandon {
			err = backend.ErrLost // it may have gone with its session
		}
		return b.fail(ctx, opRelease, true, err)
	case req.Abandon: // all that its session had is here, or gone with it
		return nil
	case s != nil && s.id == req.Session:
		return b.fail(ctx, opRelease, false, backend.ErrLost)
	}
	// Another value holds it, and is asked to release it.
	_, hit, err := b.store.Mark(ctx, Mark{Name: req.Name, Lease: req.Lease, Released: true})
	if err == nil && len(hit) == 0 {
		return backend.ErrLost
	}
	if err == nil {
		err = b.yielded(ctx, req.Name, hit)
	}
	return b.fail(ctx, opRelease, true, err)
}

// sessionOf returns the session that may have the lease, or nil.
func (b *Leases) sessionOf(k Key, id backend.SessionID) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.sessions[id]; ok && isClosed(s.opened) {
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

// leave gives up a lease. The channel is closed when the store has nothing of it any more. It is
// nil when there is no such lease.
func (s *session) leave(k Key, abandon bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if abandon {
		s.abandoned.Add(k) // it must never be granted
	}
	l, ok := s.leases[k]
	if !ok {
		for _, l := range slices.Concat(s.freed, s.left) { // being released
			if abandon && l.req.Name == k.Name && l.req.Lease == k.ID {
				return l.freed
			}
		}
		return nil
	}
	switch {
	case l.state == out:
		s.free(l)
	case l.trying:
		l.gone = true
	default:
		s.drop(l, backend.ErrLost)
	}
	return l.freed
}

// Inspect returns the holders of the lock and, where the store knows them, the waiters. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	ctx, leave, err := b.enter(ctx, opInspect, backend.ValidateName(name))
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer leave()
	all, err := b.store.Look(ctx, []string{name})
	if err != nil {
		return backend.LockInfo{}, b.fail(ctx, opInspect, false, err)
	}
	info := all[name]
	info.Name = name
	return info, nil
}

// List returns the locks that are held, by name. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Leases) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	ctx, leave, err := b.enter(ctx, opList, req.Validate())
	if err != nil {
		return backend.ListPage{}, err
	}
	defer leave()
	limit := req.Size()
	var page backend.ListPage
	names, err := b.store.Names(ctx, req, limit+1)
	if err != nil {
		return page, b.fail(ctx, opList, false, err)
	}
	if len(names) > limit {
		names = names[:limit]
		page.Next = names[limit-1]
	}
	if len(names) == 0 {
		return page, nil
	}
	all, err := b.store.Look(ctx, names)
	if err != nil {
		return backend.ListPage{}, b.fail(ctx, opList, false, err)
	}
	for _, n := range names {
		if info, ok := all[n]; ok { // it may be free by now
			page.Locks = append(page.Locks, info)
		}
	}
	return page, nil
}

// Break ends the leases that hold the lock. It asks the holders to release them, and ends the
// connections of those that do not within five seconds. Other leases may be about to get the
// lock, with a token below the break's: Break repeats until there are none. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	ctx, leave, err := b.enter(ctx, opBreak, req.Validate())
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer leave()
	var res backend.BreakResult
	named := make(map[backend.LeaseID]bool)
	for looks := 1; ; looks++ {
		token, hit, err := b.store.Mark(ctx, Mark{Name: req.Name, Lease: req.Lease, Reason: req.Reason, Below: res.Token})
		if err == nil {
			err = b.yielded(ctx, req.Name, hit)
		}
		if err != nil {
			return backend.BreakResult{}, b.fail(ctx, opBreak, true, err)
		}
		res.Token = token
		for _, m := range hit {
			if !m.Before && !named[m.Lease] { // its row may remain a bit longer
				res.Broken = append(res.Broken, m.Holder)
			}
			named[m.Lease] = true
		}
		if looks > 1 && len(hit) == 0 {
			return res, nil
		}
	}
}

// yielded waits until none of the leases of the lock is held. It ends a connection that does not release what
// it was asked for, with everything that it has. A live holder needs an instant, or half a second
// where it cannot be notified.
func (b *Leases) yielded(ctx context.Context, name string, hit []Marked) error {
	if len(hit) == 0 {
		return nil
	}
	return Poll(ctx, func(late bool) (bool, error) {
		all, err := b.store.Look(ctx, []string{name})
		var conns []string
		for _, m := range hit {
			if slices.ContainsFunc(all[name].Holders, func(h backend.Holder) bool { return h.Token == m.Token }) {
				conns = append(conns, m.Conn)
			}
		}
		if err == nil && late && len(conns) > 0 {
			err = b.store.Terminate(ctx, conns)
		}
		return len(conns) == 0, err
	})
}

// Poll calls look until it reports done, at first after a millisecond and then less and less
// often. late tells look that this has taken longer than any live client needs: 5 s. Errors: that
// of look, ctx's cause.
func Poll(ctx context.Context, look func(late bool) (done bool, err error)) error {
	const patience, first, last = 5 * time.Second, time.Millisecond, 50 * time.Millisecond
	from := time.Now()
	for pause := first; ; pause = min(2*pause, last) {
		done, err := look(time.Since(from) > patience)
		if err != nil || done {
			return err
		}
		if !retry.Pause(ctx, pause) {
			return connect.Cause(ctx, ctx.Err())
		}
	}
}

// Watch returns ErrUnsupported: there are no events. Other errors: *InvalidError, ErrClosed.
func (b *Leases) Watch(_ context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	return lockstate.NoEvents(b.life, req)
}
