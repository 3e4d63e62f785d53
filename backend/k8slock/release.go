package k8slock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Release releases a lease, or its place in the queue, and hands the lock to the next waiter with
// the same write. With req.Abandon it can never be granted afterwards. Errors: ErrLost if there is
// no such lease, unless req.Abandon is set; *InvalidError; *UnavailableError; ErrClosed; ctx's
// cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return err
	}
	defer cancel()
	b.leave(req)
	var outcome error
	c := &change{apply: func(r *record) bool {
		outcome = nil
		i := r.find(req.Lease)
		if i < 0 {
			outcome = backend.ErrLost
			r.touch = r.touch || req.Abandon
			return false
		}
		r.Queue = append(r.Queue[:i], r.Queue[i+1:]...)
		r.changed = true
		r.promote(b.rest.clock.now())
		return false
	}}
	err = b.do(ctx, req.Name, c)
	if err == nil && !req.Abandon {
		err = outcome
	}
	return b.fail(ctx, opRelease, err, true)
}

// leave stops the callers that wait for the lease, and remembers that it was abandoned.
func (b *Backend) leave(req backend.ReleaseRequest) {
	k := lockstate.Key{Name: req.Name, ID: req.Lease}
	b.cache.letGo(objectName(req.Name), req.Lease)
	b.mu.Lock()
	defer b.mu.Unlock()
	if req.Abandon {
		b.abandoned.Add(sessionLease{req.Session, k})
	}
	for _, a := range b.asking[k] {
		a.stop()
	}
}

// Break takes the lock from its holders, even from one of client-go's leader election. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return backend.BreakResult{}, err
	}
	defer cancel()
	var res backend.BreakResult
	c := &change{creates: true, apply: func(r *record) bool {
		res = backend.BreakResult{}
		r.Broken = &broken{Reason: req.Reason}
		for _, h := range r.describe().Holders { // that of client-go has no lease
			if req.Takes(h.Lease) {
				res.Broken, r.Broken.Leases = append(res.Broken, h), append(r.Broken.Leases, h.Lease)
			}
		}
		r.drop(func(e entry) bool { return e.Token > 0 && req.Takes(e.Lease) })
		r.foreign = r.foreign && req.Lease != ""
		res.Token = r.nextToken()
		r.promote(b.rest.clock.now())
		return false
	}}
	err = b.do(ctx, req.Name, c)
	if err != nil {
		return backend.BreakResult{}, b.fail(ctx, opBreak, err, true)
	}
	return res, nil
}
