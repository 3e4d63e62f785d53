package memlock

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Inspect returns the lock's holders and waiters. Errors: *InvalidError, ErrClosed, ctx's
// cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := b.enter(ctx, backend.ValidateName(name)); err != nil {
		return backend.LockInfo{}, err
	}
	defer b.store.leave()
	if l, ok := b.store.locks[name]; ok {
		return b.store.info(l), nil
	}
	return backend.LockInfo{Name: name}, nil
}

// List returns the locks that are held or waited for, by name. Errors: *InvalidError,
// ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := b.enter(ctx, req.Validate()); err != nil {
		return backend.ListPage{}, err
	}
	defer b.store.leave()
	var names []string
	for n := range b.store.locks {
		if n > req.After && strings.HasPrefix(n, req.Prefix) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return lockstate.Page(req.Size(), names, func(name string) (backend.LockInfo, error) {
		return b.store.info(b.store.locks[name]), nil
	})
}

// info describes a lock, with the greatest token so far, which may be that of a break.
func (s *Store) info(l *lock) backend.LockInfo {
	info := lockstate.Info(s.rules(), l)
	info.Token = l.Own.token
	return info
}
