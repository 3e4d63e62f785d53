package sqllease

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// OpenSession creates or confirms a session, in one round trip. Errors: *InvalidError;
// ErrSessionLost for an ID that has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := req.Validate(b.caps); err != nil {
		return err
	}
	addr := ""
	if req.Lost != nil && b.addr != "" {
		addr = b.addr
		defer b.calls.Listen(req.ID, req.Lost)()
	}
	alive, err := answer(ctx, b, "open session", func(ctx context.Context) (bool, error) {
		return b.store.OpenSession(ctx, req.ID, ceil(req.TTL), addr)
	})
	if err == nil && !alive {
		b.unlisten(req.ID)
		if err = b.synced(ctx, "open session"); err == nil {
			err = backend.ErrSessionLost
		}
	}
	if err == nil {
		b.opened(req.ID)
	}
	return err
}

// opened notes that the session exists. If it was in a notification before the reply, it is read
// now.
func (b *Leases) opened(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own[id] = struct{}{}
	b.calls.Opened(id, struct{}{})
	if _, said := b.look.Sessions[id]; said {
		waiters.Signal(b.toLook)
	}
}

func (b *Leases) unlisten(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.own, id)
	b.calls.Forget(id)
}

// EndSession releases all that lives with the session, in one transaction. It succeeds for a
// session that has ended. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	const op = "end session"
	for again := false; ; again = true {
		names, err := answer(ctx, b, op, func(ctx context.Context) ([]string, error) { return b.store.LocksOf(ctx, id) })
		if err != nil {
			return err // MayHold is set
		}
		if again && len(names) == 0 {
			return nil
		}
		lived := false
		err = b.alone(ctx, newRequest(op, Scope{Names: names, Sessions: []backend.SessionID{id}, Kill: []backend.SessionID{id}}, func(t *txn) error {
			lived = t.endSession(id)
			return nil
		}))
		if again {
			err = backend.PartDone(b.caps.Name, op, err)
		}
		if err != nil {
			return err
		}
		b.unlisten(id)
		// What was acquired under the session at the same moment is dead, but for a while no
		// client would notice. So list again. A session that had ended before was cleaned up by
		// the call that ended it. There may be more locks than one listing returns.
		if !lived && !again {
			return b.synced(ctx, op)
		}
	}
}

// endSession ends a session and all that lives with it in the locks that were read. It reports
// whether the session was alive.
func (t *txn) endSession(id backend.SessionID) bool {
	s := t.session(id)
	lived := s.alive(t.now)
	if s.cause == "" {
		t.kill(s, backend.CauseSession)
	}
	for _, name := range t.names() {
		for _, l := range t.locks[name].All() {
			if l.Own.session == s && (l.State == lockstate.Waiting || !l.Timed) {
				lockstate.End(t.rules(), l, backend.EventReleased, backend.ErrSessionLost, "")
			}
		}
	}
	if s.addr != "" && s.addr != t.b.addr {
		t.notificationTo(s.addr).look.Session(id)
	}
	return lived
}

// Renew extends a session and timed leases, in one transaction and one round trip. The result has
// the outcome for each. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.RenewResult{}, err
	}
	if req.Session == "" && len(req.Leases) == 0 {
		return backend.RenewResult{}, b.Ready(ctx, "renew")
	}
	r := newRenewals(req)
	// A renewal of a lease that arrives late shortens the lease that a later renewal extended.
	// The caller knows what it sent, so it gets an error for each renewal that may do so.
	err := b.directly(ctx, "renew", len(r.Leases) == 0, func(ctx context.Context) error {
		r.SessionLost, r.Lost, r.Renewed = false, nil, make(map[Key]Renewed)
		return b.store.Renew(ctx, r)
	})
	if err != nil {
		return backend.RenewResult{}, err
	}
	if r.SessionLost || len(r.Renewed) < len(r.Leases) { // it rests on a read, and may have written nothing
		if err := b.synced(ctx, "renew"); err != nil {
			return backend.RenewResult{}, err
		}
	}
	res := backend.RenewResult{SessionLost: r.SessionLost, Lost: r.Lost}
	b.calls.Renewed(res.Lost)
	if res.SessionLost {
		res.Lost = nil
		b.unlisten(req.Session)
	}
	for _, x := range req.Leases {
		got, ok := r.Renewed[Key{Name: x.Name, ID: x.Lease}]
		if !ok {
			res.Leases = append(res.Leases, backend.Renewal{Err: backend.ErrLost})
			continue
		}
		left := got.Left
		if x.TTL > 0 {
			left = min(left, x.TTL)
		}
		res.Leases = append(res.Leases, backend.Renewal{Token: token(got.Token), Left: left})
	}
	return res, nil
}

// newRenewals keeps the last TTL of several renewals of one lease.
func newRenewals(req backend.RenewRequest) *Renewals {
	ttls := make(map[Key]time.Duration)
	for _, x := range req.Leases {
		k := Key{Name: x.Name, ID: x.Lease}
		if _, again := ttls[k]; !again || x.TTL > 0 {
			ttls[k] = ceil(x.TTL)
		}
	}
	r := &Renewals{Session: req.Session, Leases: slices.SortedFunc(maps.Keys(ttls), Key.Compare)}
	for _, k := range r.Leases {
		r.TTLs = append(r.TTLs, ttls[k])
	}
	return r
}

// tellLoss reports a loss to the listener of the session, once.
func (b *Leases) tellLoss(x backend.Loss) {
	if x.Lease == "" {
		b.mu.Lock()
		delete(b.own, x.Session)
		b.mu.Unlock()
	}
	b.calls.Report(x)
}
