package sqllease

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// listener receives the losses of a session.
type listener struct {
	tell func(backend.Loss)
	told map[backend.LeaseID]struct{} // so that a second read reports nothing twice
	open bool                         // the server has confirmed the session: it has a row
	// calls counts the calls of OpenSession in progress.
	calls int
}

// OpenSession creates or confirms a session, in one round trip. Errors: *InvalidError;
// ErrSessionLost for an ID that has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := req.Validate(b.caps); err != nil {
		return err
	}
	addr := ""
	if req.Lost != nil && b.addr != "" {
		addr = b.addr
		l := b.listen(req.ID, req.Lost) // before the request: it may be lost before the reply is here
		defer b.tried(req.ID, l)
	}
	alive := false
	err := b.direct(ctx, "open session", func(ctx context.Context) error {
		var err error
		alive, err = b.store.OpenSession(ctx, req.ID, ceil(req.TTL), addr)
		return err
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

// listen registers a listener, or adds a call to the one that there is. The caller must call tried
// afterwards.
func (b *Leases) listen(id backend.SessionID, lost func(backend.Loss)) *listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.sessions[id]
	if l == nil {
		l = &listener{told: make(map[backend.LeaseID]struct{})}
		b.sessions[id] = l
	}
	l.tell = lost
	l.calls++
	return l
}

// tried removes the listener of a session that no call of OpenSession has opened, because a client
// that is refused tries a new ID each time. If the outcome is unknown, the session may exist, but
// nothing can be held under it, and another call registers another listener.
func (b *Leases) tried(id backend.SessionID, l *listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.calls--
	if l.calls == 0 && !l.open && b.sessions[id] == l {
		delete(b.sessions, id)
	}
}

// opened notes that the session exists. If it was in a notification before the reply, it is read
// now.
func (b *Leases) opened(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own[id] = struct{}{}
	if l := b.sessions[id]; l != nil {
		l.open = true
	}
	if _, said := b.look.sessions[id]; said {
		kick(b.toLook)
	}
}

func (b *Leases) unlisten(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, id)
	delete(b.own, id)
	b.final.Drop(id)
}

// EndSession releases all that lives with the session, in one transaction. It succeeds for a
// session that has ended. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	const op = "end session"
	for again := false; ; again = true {
		names, err := b.locksOf(ctx, id)
		if err != nil {
			return err
		}
		if again && len(names) == 0 {
			return nil
		}
		lived := false
		err = b.alone(ctx, &request{op: op, scope: Scope{Names: names, Sessions: []backend.SessionID{id}, Kill: []backend.SessionID{id}}, run: func(t *txn) error {
			lived = t.endSession(id)
			return nil
		}})
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

func (b *Leases) locksOf(ctx context.Context, id backend.SessionID) ([]string, error) {
	var names []string
	err := b.direct(ctx, "end session", func(ctx context.Context) error {
		var err error
		names, err = b.store.LocksOf(ctx, id)
		return err
	})
	return names, err
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
				t.end(l, backend.ErrSessionLost, backend.EventReleased, "")
			}
		}
	}
	if s.addr != "" && s.addr != t.b.addr {
		t.letterTo(s.addr).session(id)
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
	r, at := newRenewals(req)
	// A renewal of a lease that arrives late shortens the lease that a later renewal extended.
	// The caller knows what it sent, so it gets an error for each renewal that may do so.
	err := b.directly(ctx, "renew", len(r.Leases) == 0, func(ctx context.Context) error {
		r.SessionLost, r.Lost, r.Renewed = false, nil, make(map[int]Renewed)
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
	b.final.Add(res.Lost...)
	if res.SessionLost {
		res.Lost = nil
		b.unlisten(req.Session)
	}
	for _, x := range req.Leases {
		got, ok := r.Renewed[at[Key{x.Name, x.Lease}]]
		if !ok {
			res.Leases = append(res.Leases, backend.Renewal{Err: backend.ErrLost})
			continue
		}
		res.Leases = append(res.Leases, backend.Renewal{Token: token(got.Token), Left: min(got.Left, x.TTL)})
	}
	return res, nil
}

// newRenewals keeps the last of several renewals of one lease. The map has the index of each
// lease.
func newRenewals(req backend.RenewRequest) (*Renewals, map[Key]int) {
	r, at := &Renewals{Session: req.Session}, make(map[Key]int)
	for _, x := range req.Leases {
		k := Key{x.Name, x.Lease}
		i, again := at[k]
		if !again {
			i = len(r.Leases)
			at[k] = i
			r.Leases, r.TTLs = append(r.Leases, k), append(r.TTLs, 0)
		}
		r.TTLs[i] = ceil(x.TTL)
	}
	return r, at
}

// tellLoss reports a loss to the listener of the session, once.
func (b *Leases) tellLoss(x backend.Loss) {
	b.final.Add(x)
	b.mu.Lock()
	var tell func(backend.Loss)
	l, ok := b.sessions[x.Session]
	if ok {
		tell = l.tell // another OpenSession of the session replaces it
		if _, again := l.told[x.Lease]; again || b.closed {
			ok = false
		}
		l.told[x.Lease] = struct{}{}
	}
	if x.Lease == "" {
		delete(b.sessions, x.Session)
		delete(b.own, x.Session)
	}
	b.mu.Unlock()
	if ok {
		tell(x)
	}
}
