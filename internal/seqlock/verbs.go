package seqlock

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

const opBreak = "break"

// Peer is a session in the store. S is what the store adds to each of its leases.
type Peer[S any] interface {
	sessions.Peer
	// Leases are those of the session.
	Leases() *Leases[S]
}

// Store is what differs between the stores: it makes, waits for, deletes and reads entries. It returns
// the errors of its client library, or those of the contract.
type Store[P Peer[S], E Entry, S any] interface {
	// Acquire makes the entry of the lease, or finds it, and returns when the lease holds the lock.
	// Neither Asked of the grant is set, nor does the lease know yet that it is held.
	Acquire(ctx context.Context, s P, l *Lease[S], req *backend.AcquireRequest) (backend.Grant, error)
	// Release deletes the entry of the lease, and reports whether there was one. s is the session
	// that knows the lease, or else the one that the caller names; the zero value: that has ended. l
	// is nil if nothing is known of the lease. With abandon there can be no entry of it afterwards.
	Release(ctx context.Context, s P, l *Lease[S], k Key, abandon bool) (bool, error)
	// Inspect reads a lock.
	Inspect(ctx context.Context, lock string) (backend.LockInfo, error)
	// List reads the locks that the request selects.
	List(ctx context.Context, req *backend.ListRequest) (backend.ListPage, error)
	// Evictor begins a break.
	Evictor(ctx context.Context, req *backend.BreakRequest) (Evictor[E], error)
}

// Engine answers the calls of backend.Backend with a Store.
type Engine[P Peer[S], E Entry, S any] struct {
	*sessions.Sessions[P]

	cfg   sessions.Config[P]
	store Store[P, E, S]
}

// NewEngine returns the engine of a backend that has no sessions yet.
func NewEngine[P Peer[S], E Entry, S any](cfg sessions.Config[P], store Store[P, E, S]) *Engine[P, E, S] {
	return &Engine[P, E, S]{Sessions: sessions.New(cfg), cfg: cfg, store: store}
}

// Acquire takes the lock, or waits for it in the queue if req.Wait is set. If ctx ends while it
// waits, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError, ErrLost,
// ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's cause.
func (b *Engine[P, E, S]) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	ctx, done, err := b.Begin(ctx, req.Validate(b.cfg.Caps))
	if err != nil {
		return backend.Grant{}, err
	}
	defer done()
	s, err := b.Get(req.Session)
	if err != nil {
		return backend.Grant{}, err
	}
	asked := time.Now()
	leases := s.Leases()
	l, err := leases.Join(Key{Name: req.Name, ID: req.Lease})
	if err != nil {
		return backend.Grant{}, err
	}
	defer leases.Part(l)
	g, err := b.store.Acquire(ctx, s, l, &req)
	if err == nil {
		err = leases.Grant(l)
	}
	if err = leases.Outcome(ctx, b.Base(), req.Lease, err); err != nil {
		return backend.Grant{}, leases.MayHold(l, b.cfg.Fail(ctx, "acquire", err, true))
	}
	g.Asked = asked
	return g, nil
}

// Release releases a lease, or its place in the queue. With req.Abandon it can never be granted
// afterwards. Errors: ErrLost if there is no such lease, unless req.Abandon is set; *InvalidError;
// *UnavailableError; ErrClosed; ctx's cause.
func (b *Engine[P, E, S]) Release(ctx context.Context, req backend.ReleaseRequest) error {
	ctx, done, err := b.Begin(ctx, req.Validate())
	if err != nil {
		return err
	}
	defer done()
	k := Key{Name: req.Name, ID: req.Lease}
	var l *Lease[S]
	s, alive := b.Find(req.Session, func(s P) bool { return s.Leases().Knows(k) })
	if alive {
		l = s.Leases().Leave(k, req.Abandon)
	}
	found, err := b.store.Release(ctx, s, l, k, req.Abandon)
	if err != nil {
		return b.cfg.Fail(ctx, "release", err, true)
	}
	if alive {
		s.Leases().Settle(k)
	}
	if !found && !req.Abandon {
		return backend.ErrLost
	}
	return nil
}

// Inspect returns the holders of the lock and its waiters. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Engine[P, E, S]) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	ctx, done, err := b.Begin(ctx, backend.ValidateName(lock))
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer done()
	info, err := b.store.Inspect(ctx, lock)
	return info, b.cfg.Fail(ctx, "inspect", err, false)
}

// List returns the locks that are held or waited for, by name. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Engine[P, E, S]) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	ctx, done, err := b.Begin(ctx, req.Validate())
	if err != nil {
		return backend.ListPage{}, err
	}
	defer done()
	page, err := b.store.List(ctx, &req)
	return page, b.cfg.Fail(ctx, "list", err, false)
}

// Watch returns ErrUnsupported: the stores report the present state, not past changes.
func (b *Engine[P, E, S]) Watch(_ context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	return lockstate.NoEvents(b.Base(), req)
}

// Break takes the lock from its holders. The first read fixes the victims: a lease granted later is
// not among them. If they do not fit into one transaction, they lose the lock in several, the oldest
// first, each of which keeps out the waiters that cannot share the lock with the rest. If Break fails
// between them, the remaining holders still hold the lock. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Engine[P, E, S]) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	ctx, done, err := b.Begin(ctx, req.Validate())
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer done()
	evictor, err := b.store.Evictor(ctx, &req)
	if err != nil {
		return backend.BreakResult{}, b.cfg.Fail(ctx, opBreak, err, false)
	}
	return Break(ctx, b.cfg.Caps.Name, evictor, &req, b.cfg.Fail)
}
