package sqlitelock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// OpenSession creates or confirms a session. Errors: *InvalidError; ErrSessionLost for an ID that
// has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	invalid := req.Validate(b.Capabilities())
	if invalid == nil && req.Lost != nil {
		defer b.calls.Listen(req.ID, req.Lost)()
	}
	return b.do(ctx, invalid, newRequest("open session", false, func(t *txn) error { return t.openSession(&req) }))
}

// EndSession releases all that lives with the session, in one transaction. It succeeds for a
// session that has ended. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	return b.do(ctx, backend.ValidateSessionID(id), newRequest("end session", false, func(t *txn) error {
		if x := t.session(id); x != nil {
			t.endSession(x, true, backend.EventReleased, backend.CauseSession)
			return nil
		}
		if _, dead := t.tomb(string(id), ""); !dead {
			t.bury(string(id), "", string(backend.CauseSession)) // its OpenSession may still be in transit
		}
		return nil
	}))
}

// Acquire acquires the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	grant, err := b.calls.Acquire(ctx, &req, func(w *waiter) (backend.Grant, bool, error) {
		var grant backend.Grant
		inQueue := false
		err := b.do(ctx, req.Validate(b.Capabilities()), newRequest("acquire", req.Session == "", func(t *txn) error {
			inQueue = false
			l, err := t.take(&req)
			if err != nil {
				return err
			}
			if l.State == lockstate.Waiting {
				inQueue = true
				b.calls.Add(w) // now: the next request of this very transaction may free the lock
				return nil
			}
			grant, err = t.answer(l, req.Session)
			return err
		}))
		if err != nil {
			return backend.Grant{}, false, err // the writer may still be writing to grant
		}
		return grant, inQueue, nil
	})
	return grant, b.orEnded("acquire", err)
}

// Renew extends a session and timed leases, in one transaction. The result has the outcome for
// each. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	res, err := ask(ctx, b, req.Validate(b.Capabilities()), "renew", len(req.Leases) > 0, func(t *txn) backend.RenewResult {
		var res backend.RenewResult
		if req.Session != "" {
			lost, ok := t.renewSession(req.Session)
			res.Lost, res.SessionLost = lost, !ok
		}
		for _, r := range req.Leases {
			res.Leases = append(res.Leases, lockstate.Renew(t, t.lock(r.Name).Find(r.Lease), r.TTL))
		}
		return res
	})
	if err != nil {
		return backend.RenewResult{}, err
	}
	b.calls.Renewed(res.Lost)
	if res.SessionLost {
		b.calls.Forget(req.Session)
	}
	return res, nil
}

// Release releases a lease, or its place in the queue. With req.Abandon the lease can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon is set;
// *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	return b.do(ctx, req.Validate(), newRequest("release", req.Session == "", func(t *txn) error {
		return lockstate.Release(t, t.lock(req.Name), &req)
	}))
}

// Break ends the leases that hold the lock. Errors: *InvalidError, *UnavailableError, ErrClosed,
// ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	return ask(ctx, b, req.Validate(), "break", true, func(t *txn) backend.BreakResult {
		return lockstate.Break(t, t.lock(req.Name), &req)
	})
}

// Inspect returns the holders and the waiters of the lock. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return ask(ctx, b, backend.ValidateName(name), "inspect", false, func(t *txn) backend.LockInfo {
		return lockstate.Info(t, t.lock(name))
	})
}

// List returns the locks that have holders or waiters, by name. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	return ask(ctx, b, req.Validate(), "list", false, func(t *txn) backend.ListPage { return t.list(req) })
}

func (t *txn) list(req backend.ListRequest) backend.ListPage {
	t.flush() // the following query reads the table
	// The names with the prefix stand together: no byte of a name is 0xff.
	names := t.texts(`SELECT DISTINCT name FROM leases WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?`,
		req.After, req.Prefix, req.Prefix+"\xff", req.Size()+1)
	return lockstate.List(t, req, names, t.lock)
}
