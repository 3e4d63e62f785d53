package sqllease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Acquire acquires the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	req.TTL = ceil(req.TTL)
	key := Key{Name: req.Name, ID: req.Lease}
	defer b.forget(key)
	return b.calls.Acquire(ctx, &req, func(w *waiter) (backend.Grant, bool, error) {
		var grant backend.Grant
		inQueue := false
		s := Scope{Names: []string{req.Name}, Leases: []Key{key}}
		if req.Session != "" {
			s.Sessions = []backend.SessionID{req.Session}
		}
		r := newRequest("acquire", s, func(t *txn) error {
			inQueue = false
			l, err := t.take(&req)
			if err != nil {
				return err
			}
			if l.State == lockstate.Waiting {
				inQueue = true
				b.calls.Add(w) // now: the next request of this very transaction may free the lock
				t.after = append(t.after, func() { b.stands(w, l.Own.place, t.asked, t.asked.Add(t.bound(l.Lock))) })
				return nil
			}
			grant, err = lockstate.Answer(t.rules(), l, req.Session, t.asked)
			return err
		})
		r.quick = &quick{acquire: &req, granted: func(g backend.Grant) { grant = g }}
		if err := b.do(ctx, r); err != nil {
			return backend.Grant{}, false, err // a batch may still be writing to grant
		}
		return grant, inQueue, nil
	})
}

// Release releases a lease, or its place in the queue. With req.Abandon the lease can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon is set;
// *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	r := newRequest("release", Scope{Names: []string{req.Name}, Back: []Key{{Name: req.Name, ID: req.Lease}}}, func(t *txn) error {
		return lockstate.Release(t.rules(), t.lock(req.Name), &req)
	})
	if !req.Abandon {
		r.quick = new(quick)
	}
	return b.do(ctx, r)
}

// Break ends the leases that hold the lock. Errors: *InvalidError, *UnavailableError, ErrClosed,
// ctx's cause.
func (b *Leases) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	var res backend.BreakResult
	err := b.do(ctx, newRequest("break", Scope{Names: []string{req.Name}}, func(t *txn) error {
		res = lockstate.Break(t.rules(), t.lock(req.Name), &req)
		return nil
	}))
	if err != nil {
		return backend.BreakResult{}, err
	}
	return res, nil
}

// Inspect returns the holders and the waiters of the lock. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	t, err := b.readOnly(ctx, "inspect", []string{name})
	if err != nil {
		return backend.LockInfo{}, err
	}
	return lockstate.Info(t.rules(), t.lock(name)), nil
}

// List returns the locks that have holders or waiters, by name. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	ask := req
	ask.Limit = req.Size() + 1
	names, err := answer(ctx, b, "list", func(ctx context.Context) ([]string, error) { return b.store.Names(ctx, ask) })
	if err != nil || len(names) == 0 {
		return backend.ListPage{}, err
	}
	t, err := b.readOnly(ctx, "list", names)
	if err != nil {
		return backend.ListPage{}, err
	}
	return lockstate.List(t.rules(), req, names, t.lock), nil
}

// Watch returns ErrUnsupported. A store that reports changes has a Watch of its own. Other errors: *InvalidError, ErrClosed.
func (b *Leases) Watch(_ context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	return lockstate.NoEvents(b.life, req)
}

// readOnly reads some locks as they are, without what has expired.
func (b *Leases) readOnly(ctx context.Context, op string, names []string) (*txn, error) {
	t, _, err := b.readAsIs(ctx, op, &Scope{Names: names})
	if err != nil {
		return nil, err
	}
	t.watched = false
	t.expire()
	return t, nil
}

// readAsIs reads everything in the scope without locking rows, and losses.
func (b *Leases) readAsIs(ctx context.Context, op string, s *Scope) (*txn, []backend.Loss, error) {
	t := newTxn(b)
	v, err := answer(ctx, b, op, func(ctx context.Context) (*View, error) {
		t.asked = time.Now()
		return b.store.Read(ctx, s)
	})
	if err == nil {
		err = b.refusal(ctx, op, false, t.read(v, s))
	}
	if err != nil {
		return nil, nil, err
	}
	t.sort()
	return t, v.Losses, nil
}
