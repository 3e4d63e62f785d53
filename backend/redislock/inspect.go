package redislock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
)

// Inspect returns the lock's holders and waiters. See backend.Backend.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	const op = "inspect"
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	answer, _, err := b.engine.do(ctx, false, "inspect", name)
	if err != nil {
		return backend.LockInfo{}, readOnly(toKind(op, err))
	}
	d := decoder{list: answer[1:]}
	items := decoder{list: d.items()}
	info := items.lock()
	if d.err != nil || items.err != nil || info.Name != name {
		return backend.LockInfo{}, toKind(op, errReply)
	}
	return info, nil
}

// List returns the locks that are held or waited for, in order of their names. See
// backend.Backend.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	const op = "list"
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	limit := req.Limit
	if limit == 0 {
		limit = backend.MaxListLimit
	}
	answer, _, err := b.engine.do(ctx, false, "list", req.Prefix, req.After, itoa(limit))
	if err != nil {
		return backend.ListPage{}, readOnly(toKind(op, err))
	}
	d := decoder{list: answer[1:]}
	page := backend.ListPage{Next: d.text()}
	for len(d.list) > 0 && d.err == nil {
		items := decoder{list: d.items()}
		page.Locks = append(page.Locks, items.lock())
		if items.err != nil {
			d.err = items.err
		}
	}
	if d.err != nil {
		return backend.ListPage{}, toKind(op, errReply)
	}
	return page, nil
}

// Break takes the lock from its holders and notifies them by push. See backend.Backend.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	const op = "break"
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	answer, _, err := b.engine.do(ctx, true, "break", req.Name, req.Reason)
	if err != nil {
		return backend.BreakResult{}, toKind(op, err)
	}
	d := decoder{list: answer}
	if d.text() != "OK" {
		return backend.BreakResult{}, refusal(op, &decoder{list: answer}, req.Name, 0)
	}
	result := backend.BreakResult{Token: d.token()}
	for len(d.list) > 0 && d.err == nil {
		result.Broken = append(result.Broken, d.holder(d.items()))
	}
	if d.err != nil {
		return backend.BreakResult{}, toKind(op, errReply)
	}
	sortHolders(result.Broken)
	return result, nil
}
