package connlease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// mostRefusals bounds the tries of a lock that is free each time its holder is read.
const mostRefusals = 8

var errBusy = errors.New("the lock changes hands too fast to read its holder")

// Acquire acquires the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *HeldError, ErrLost,
// ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	ctx, leave, err := b.begin(ctx, req.Validate(b.cfg.Caps))
	if err != nil {
		return backend.Grant{}, err
	}
	defer leave()
	asked := time.Now()
	s := b.session(req.Session)
	if s == nil {
		return backend.Grant{}, b.fail(ctx, opAcquire, false, backend.ErrSessionLost)
	}
	for n := 1; ; n++ {
		a, err := s.acquire(ctx, req)
		switch {
		case err == nil:
			a.grant.Asked = asked
			return a.grant, nil
		case !errors.Is(err, errRefused):
			return backend.Grant{}, err
		case n > mostRefusals:
			return backend.Grant{}, b.fail(ctx, opAcquire, a.stays, errBusy)
		}
		if err := b.held(ctx, req, a.stays); err != nil {
			return backend.Grant{}, err
		}
		// It was free again when its holder was read: try again.
	}
}

// acquire makes one attempt. The error is that for the caller, or errRefused.
func (s *session) acquire(ctx context.Context, req backend.AcquireRequest) (answer, error) {
	c := &caller{wait: req.Wait, answer: make(chan answer, 1)}
	s.post(func() { s.ask(req, c) })
	a, err := await(ctx, s, c.answer)
	switch {
	case err == nil:
		return a, a.err
	case ctx.Err() != nil && c.waits.Load() && !errors.Is(context.Cause(ctx), backend.ErrClosed):
		return a, context.Cause(ctx) // it is in the queue
	}
	return a, s.b.fail(ctx, opAcquire, true, err)
}

// held returns the refusal of a request that does not wait. It is nil where the lock has no
// holder any more. Errors: *HeldError; *UnavailableError, which says mayHold; ErrClosed; ctx's cause.
func (b *Leases) held(ctx context.Context, req backend.AcquireRequest, mayHold bool) error {
	info, err := b.look(ctx, req.Name)
	if err != nil {
		return b.fail(ctx, opAcquire, mayHold, err)
	}
	ahead := len(info.Waiters)
	if i := slices.IndexFunc(info.Waiters, func(w backend.Waiter) bool { return w.Lease == req.Lease }); i >= 0 {
		ahead = i
	}
	if len(info.Holders) == 0 && ahead == 0 {
		return nil
	}
	return backend.NewHeldError(req.Name, info.Holders, 0, ahead)
}

// look reads what is known of a lock.
func (b *Leases) look(ctx context.Context, name string) (backend.LockInfo, error) {
	var all map[string]backend.LockInfo
	err := b.ask(ctx, func(ctx context.Context) error {
		var err error
		all, err = b.store.Look(ctx, []string{name})
		return err
	})
	info := all[name]
	info.Name = name
	return info, err
}

// Release releases a lease, or its place in the queue. With req.Abandon the lease can never be
// granted afterwards. Errors: ErrLost where the session has no such lease, unless req.Abandon is set;
// *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) Release(ctx context.Context, req backend.ReleaseRequest) error {
	ctx, leave, err := b.begin(ctx, req.Validate())
	if err != nil {
		return err
	}
	defer leave()
	err = backend.ErrSessionLost
	if s := b.session(req.Session); s != nil {
		err = s.release(ctx, req)
	}
	gone := errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err) // with all that it had
	switch {
	case gone && req.Abandon:
		return nil
	case gone:
		err = backend.ErrLost
	}
	return b.fail(ctx, "release", true, err)
}

// release gives up a lease, and waits until the store has nothing of it any more.
func (s *session) release(ctx context.Context, req backend.ReleaseRequest) error {
	answer := make(chan error, 1)
	s.post(func() { s.giveUp(Key{Name: req.Name, ID: req.Lease}, req.Abandon, answer) })
	given, err := await(ctx, s, answer)
	if err != nil {
		return err
	}
	return given
}

// Inspect returns the holders of the lock and, where the store knows them, the waiters. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	ctx, leave, err := b.begin(ctx, backend.ValidateName(name))
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer leave()
	info, err := b.look(ctx, name)
	return info, b.fail(ctx, "inspect", false, err)
}

// List returns the locks that are held, by name. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Leases) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	ctx, leave, err := b.begin(ctx, req.Validate())
	if err != nil {
		return backend.ListPage{}, err
	}
	defer leave()
	limit := req.Size()
	var page backend.ListPage
	var names []string
	var all map[string]backend.LockInfo
	err = b.ask(ctx, func(ctx context.Context) error {
		var err error
		if names, err = b.store.Names(ctx, req, limit+1); err != nil || len(names) == 0 {
			return err
		}
		if len(names) > limit {
			names = names[:limit]
			page.Next = names[limit-1]
		}
		all, err = b.store.Look(ctx, names)
		return err
	})
	if err != nil {
		return backend.ListPage{}, b.fail(ctx, "list", false, err)
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
	ctx, leave, err := b.begin(ctx, req.Validate())
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer leave()
	var res backend.BreakResult
	named := make(map[backend.LeaseID]bool)
	for looks := 1; ; looks++ {
		var token fence.Token
		var hit []Marked
		err := b.ask(ctx, func(ctx context.Context) error {
			var err error
			token, hit, err = b.store.Mark(ctx, Mark{Name: req.Name, Lease: req.Lease, Reason: req.Reason, Below: res.Token})
			return err
		})
		if err == nil {
			err = b.yielded(ctx, req.Name, hit)
		}
		if err != nil {
			return backend.BreakResult{}, b.fail(ctx, "break", true, err)
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
	return Await(ctx, func(late bool) (bool, error) {
		info, err := b.look(ctx, name)
		var conns []string
		for _, m := range hit {
			if slices.ContainsFunc(info.Holders, func(h backend.Holder) bool { return h.Token == m.Token }) {
				conns = append(conns, m.Conn)
			}
		}
		if err == nil && late && len(conns) > 0 {
			err = b.ask(ctx, func(ctx context.Context) error { return b.store.Terminate(ctx, conns) })
		}
		return len(conns) == 0, err
	})
}

// Await calls look until it reports done, at first after a millisecond and then less and less
// often. late tells look that this has taken longer than any live client needs: 5 s. Errors: that
// of look, ctx's cause.
func Await(ctx context.Context, look func(late bool) (done bool, err error)) error {
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
