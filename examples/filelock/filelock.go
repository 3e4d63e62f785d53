//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Bounds of what may be requested.
const (
	minTTL, maxTTL = 100 * time.Millisecond, 24 * time.Hour
	expiryLag      = time.Second
	maxRenew       = 32 // each lease costs two syncs

	shortPoll, longPoll = 5 * time.Millisecond, 50 * time.Millisecond // of a waiter
)

// Backend keeps leases in the files of one directory. It implements backend.Backend. Its methods are
// safe for concurrent use. Create it with Open. A call ends with its context, except while it writes:
// a file system cannot be interrupted.
type Backend struct {
	dir   string
	root  *os.Root
	clock clock
	step  func(string) // called between the steps of a write; for tests

	life  context.Context //nolint:containedctx // the life of the calls: ends with Close
	end   context.CancelCauseFunc
	calls sync.WaitGroup

	mu     sync.Mutex // guards closed: no call is added to calls after Close
	closed bool
}

var _ backend.Backend = (*Backend)(nil)

// Open opens a store that Create made.
//
// Errors: *backend.InvalidError for the path; *backend.UnavailableError, with ErrNoStore if the directory
// is not a store.
func Open(dir string) (*Backend, error) {
	dir, err := absolute(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, unavailable("open", false, fmt.Errorf("%w: %w", ErrNoStore, err))
	}
	text, err := root.ReadFile(markerFile)
	if err == nil && string(text) != header {
		err = fmt.Errorf("%s has an unknown version, or is damaged", markerFile)
	}
	if err != nil {
		_ = root.Close()
		return nil, unavailable("open", false, fmt.Errorf("%s: %w: %w", dir, ErrNoStore, err))
	}
	c, err := newClock()
	if err != nil {
		_ = root.Close()
		return nil, unavailable("open", false, err)
	}
	b := &Backend{dir: dir, root: root, clock: c, step: func(string) {}}
	b.life, b.end = context.WithCancelCause(context.Background())
	return b, nil
}

// Capabilities returns what a store of plain files can do: exclusive timed leases, which survive.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: backendName, Timed: true, Durable: true, TokenKind: "counter",
		MinTTL: minTTL, MaxTTL: maxTTL, ExpiryLag: expiryLag, MaxRenew: maxRenew,
	}
}

// begin begins a call with a valid request; the call must end with the returned function. The context
// ends with the Backend.
func (b *Backend) begin(ctx context.Context, invalid error) (context.Context, func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case invalid != nil:
		return nil, nil, invalid
	case b.closed:
		return nil, nil, backend.ErrClosed
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	}
	b.calls.Add(1)
	ctx, stop := backend.Within(ctx, b.life)
	return ctx, func() { stop(); b.calls.Done() }, nil
}

// Close makes the calls in progress, and all later ones, return ErrClosed. The leases stay in the store.
// Closing again does nothing.
func (b *Backend) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return nil
	}
	b.end(backend.ErrClosed)
	b.calls.Wait()
	return unavailable("close", false, b.root.Close())
}

// Acquire takes the lock, or polls for it if req.Wait is set. Errors: *InvalidError, ErrUnsupported,
// *HeldError, ErrLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	ctx, end, err := b.begin(ctx, req.Validate(b.Capabilities()))
	if err != nil {
		return backend.Grant{}, err
	}
	defer end()
	for waited := false; ; waited = true {
		g, err := b.try(ctx, req)
		if !req.Wait || !errors.Is(err, backend.ErrHeld) {
			g.Waited = waited && err == nil
			return g, err
		}
		if err := b.await(ctx, req); err != nil {
			return backend.Grant{}, err
		}
	}
}

// try acquires the lock if it is free.
func (b *Backend) try(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	var h holder
	var refused error
	err := b.visit(ctx, "acquire", req.Name, true, func(r *record, now instant) {
		_, abandoned := r.Abandoned[req.Lease]
		switch {
		case abandoned:
			refused = backend.ErrLost
		case r.Holder == nil:
			r.Holder = &holder{
				Lease: req.Lease, Owner: req.Owner, Note: req.Note, Token: r.nextToken(), Since: time.Now().UTC().Round(0),
				TTL: req.TTL, End: now + instant(req.TTL),
			}
			h = *r.Holder
		case r.Holder.Lease == req.Lease: // the reply to an earlier request was lost
			h = *r.Holder
		default:
			refused = backend.NewHeldError(req.Name, r.holders(now), 1, 0)
			r.waits = req.Wait
		}
	})
	switch {
	case err != nil:
		return backend.Grant{}, err
	case refused != nil:
		return backend.Grant{}, refused
	}
	// The order of these readings makes Asked + Left a moment before the end of the lease, however long
	// this process is stopped here or was stopped before.
	g := backend.Grant{Token: h.Token, Since: h.Since, Asked: time.Now()}
	if g.Left = time.Duration(h.End - b.clock.now()); g.Left <= 0 {
		return backend.Grant{}, backend.ErrLost
	}
	return g, nil
}

// await polls until the lock may be free. It reads without the flock, so that waiters do not delay
// the holder; try decides.
func (b *Backend) await(ctx context.Context, req backend.AcquireRequest) error {
	folder := digest([]byte(req.Name))
	for pause := shortPoll; ; pause = min(2*pause, longPoll) {
		if err := rest(ctx, pause); err != nil {
			return err
		}
		if r, err := b.read(folder); err != nil || !r.blocks(b.clock, req.Lease) {
			return nil //nolint:nilerr // try reads again, and reports the error
		}
	}
}

// Renew extends timed leases, one after the other. The outcome of each is in the result. Errors:
// *InvalidError, ErrUnsupported, ErrClosed, ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	ctx, end, err := b.begin(ctx, req.Validate(b.Capabilities()))
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer end()
	var res backend.RenewResult
	for _, l := range req.Leases {
		x := b.renew(ctx, l)
		if x.Err != nil && ctx.Err() != nil {
			return backend.RenewResult{}, context.Cause(ctx)
		}
		res.Leases = append(res.Leases, x)
	}
	return res, nil
}

func (b *Backend) renew(ctx context.Context, req backend.TimedRenewal) backend.Renewal {
	var h holder
	err := b.visit(ctx, "renew", req.Name, false, func(r *record, now instant) {
		if r.Holder != nil && r.Holder.Lease == req.Lease {
			if req.TTL > 0 {
				r.Holder.TTL = req.TTL
			}
			r.Holder.End, r.changed = now+instant(r.Holder.TTL), true
			h = *r.Holder
		}
	})
	left := time.Duration(h.End - b.clock.now())
	switch {
	case err != nil:
		return backend.Renewal{Err: err}
	case left <= 0:
		return backend.Renewal{Err: backend.ErrLost}
	}
	return backend.Renewal{Token: h.Token, Left: left}
}

// Release releases a lease. With req.Abandon it cannot be granted in the next ten minutes. Errors:
// ErrLost if the lease is not held, unless req.Abandon is set; *InvalidError; *UnavailableError;
// ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	ctx, end, err := b.begin(ctx, req.Validate())
	if err != nil {
		return err
	}
	defer end()
	lost := true
	err = b.visit(ctx, "release", req.Name, req.Abandon, func(r *record, now instant) {
		if r.Holder != nil && r.Holder.Lease == req.Lease {
			r.Holder, r.changed, lost = nil, true, false
		}
		if req.Abandon {
			if r.Abandoned == nil {
				r.Abandoned = make(map[backend.LeaseID]instant)
			}
			r.Abandoned[req.Lease], r.changed, lost = now+remember, true, false
		}
	})
	if err == nil && lost {
		return backend.ErrLost
	}
	return err
}

// Break takes the lock from its holder and raises the token. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	ctx, end, err := b.begin(ctx, req.Validate())
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer end()
	var res backend.BreakResult
	err = b.visit(ctx, "break", req.Name, true, func(r *record, now instant) {
		res = backend.BreakResult{Token: r.nextToken()}
		if r.Holder != nil && req.Takes(r.Holder.Lease) {
			res.Broken, r.Holder = r.holders(now), nil
		}
	})
	if err != nil {
		return backend.BreakResult{}, err
	}
	return res, nil
}

// Inspect returns the state of a lock. It does not know who waits. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	ctx, end, err := b.begin(ctx, backend.ValidateName(name))
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer end()
	return b.inspect(ctx, "inspect", name)
}

func (b *Backend) inspect(ctx context.Context, op, name string) (backend.LockInfo, error) {
	var info backend.LockInfo
	err := b.visit(ctx, op, name, false, func(r *record, now instant) {
		info = backend.LockInfo{Name: name, Token: r.Token, Holders: r.holders(now)}
		info.Limit = len(info.Holders)
	})
	return info, err
}

// List returns the locks that are held, by name. It reads all records of the store. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	ctx, end, err := b.begin(ctx, req.Validate())
	if err != nil {
		return backend.ListPage{}, err
	}
	defer end()
	names, err := b.names(ctx, req)
	if err != nil {
		return backend.ListPage{}, err
	}
	var page backend.ListPage
	if most := req.Size(); len(names) > most {
		names = names[:most]
		page.Next = names[most-1]
	}
	for _, n := range names {
		info, err := b.inspect(ctx, "list", n)
		if err != nil {
			return backend.ListPage{}, err
		}
		if len(info.Holders) > 0 {
			page.Locks = append(page.Locks, info)
		}
	}
	return page, nil
}

// names returns the names that a page may have, in order, from records that are read without the flock.
func (b *Backend) names(ctx context.Context, req backend.ListRequest) ([]string, error) {
	if err := b.present(); err != nil {
		return nil, unavailable("list", false, err)
	}
	folders, err := fs.ReadDir(b.root.FS(), ".")
	if err != nil {
		return nil, unavailable("list", false, err)
	}
	var names []string
	for _, f := range folders {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !f.IsDir() {
			continue
		}
		r, err := b.read(f.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, unavailable("list", false, err)
		}
		if r.Name > req.After && strings.HasPrefix(r.Name, req.Prefix) && r.held(b.clock) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// OpenSession returns ErrUnsupported: leases are timed.
func (b *Backend) OpenSession(context.Context, backend.SessionRequest) error { return errSessions }

// EndSession returns ErrUnsupported: leases are timed.
func (b *Backend) EndSession(context.Context, backend.SessionID) error { return errSessions }

// Watch returns ErrUnsupported: nothing reports changes.
func (b *Backend) Watch(context.Context, backend.WatchRequest, func(backend.Event)) error {
	return fmt.Errorf("watching: %w", backend.ErrUnsupported)
}

var errSessions = fmt.Errorf("sessions: %w", backend.ErrUnsupported)
