package redislock

import (
	"context"
	"strconv"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
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
	d := decode(answer)
	locks := each(&d, answer[1:], (*decoder).lock)
	if d.Err != nil || len(locks) != 1 || locks[0].Name != name {
		return backend.LockInfo{}, toKind(op, program.ErrReply)
	}
	return locks[0], nil
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
	d := decode(answer[1:])
	page := backend.ListPage{Next: d.Text()}
	page.Locks = each(&d, d.List, (*decoder).lock)
	if d.Err != nil {
		return backend.ListPage{}, toKind(op, program.ErrReply)
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
	program.SortHolders(res.Broken)
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
	d := decode(answer)
	if d.Text() != "OK" {
		return false, refusal(opBreak, new(decode(answer)), req.Name, 0)
	}
	res.Token = d.Token()
	more := d.Int() == 1
	res.Broken = append(res.Broken, each(&d, d.List, (*decoder).holder)...)
	if d.Err != nil {
		return false, toKind(opBreak, program.ErrReply)
	}
	return more, nil
}
