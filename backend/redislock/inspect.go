package redislock

import (
	"context"
	"strconv"

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
	answer, _, err := b.engine.do(ctx, false, "list", req.Prefix, req.After, itoa(req.Size()))
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

// Break takes the lock from its holders and notifies them by push. Many of them lose it in several steps, each
// of which keeps out the waiters that cannot share the lock with the rest. See backend.Backend.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	var res backend.BreakResult
	for more := true; more; {
		var err error
		first := res.Token == 0
		if more, err = b.breakPart(ctx, &req, &res); err != nil {
			return backend.BreakResult{}, ofPart(first, opBreak, err)
		}
	}
	sortHolders(res.Broken)
	return res, nil
}

const opBreak = "break"

// breakPart adds to res what the next step of a break has done, and reports whether there is another one.
func (b *Backend) breakPart(ctx context.Context, req *backend.BreakRequest, res *backend.BreakResult) (bool, error) {
	below := ""
	if res.Token > 0 {
		below = strconv.FormatUint(uint64(res.Token), 10)
	}
	answer, _, err := b.engine.do(ctx, true, opBreak, req.Name, req.Reason, string(req.Lease), below)
	if err != nil {
		return false, toKind(opBreak, err)
	}
	d := decoder{list: answer}
	if d.text() != "OK" {
		return false, refusal(opBreak, &decoder{list: answer}, req.Name, 0)
	}
	res.Token = d.token()
	more := d.int() == 1
	for len(d.list) > 0 && d.err == nil {
		res.Broken = append(res.Broken, d.holder(d.items()))
	}
	if d.err != nil {
		return false, toKind(opBreak, errReply)
	}
	return more, nil
}
