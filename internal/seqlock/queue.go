package seqlock

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Entry is what a store keeps of a lease that is held or waits.
type Entry interface {
	LeaseID() backend.LeaseID
	Claim() backend.Claim
}

// Queue is the holders and the waiters of a lock, in order. As no waiter is overtaken, the holders are
// always its front.
type Queue[E Entry] struct {
	backend.Front

	All []E
}

// QueueOf returns the queue of the entries, which are in order.
func QueueOf[E Entry](all []E) Queue[E] {
	claims := make([]backend.Claim, len(all))
	for i, e := range all {
		claims[i] = e.Claim()
	}
	return Queue[E]{Front: backend.FrontOf(claims), All: all}
}

// Find returns the index of a lease, or -1.
func (q Queue[E]) Find(id backend.LeaseID) int {
	return slices.IndexFunc(q.All, func(e E) bool { return e.LeaseID() == id })
}

// Holders returns the front of the queue alone.
func (q Queue[E]) Holders() Queue[E] { return q.First(q.Out) }

// First returns the first n entries of the queue.
func (q Queue[E]) First(n int) Queue[E] {
	return Queue[E]{Front: backend.Front{Claims: q.Claims[:n], Out: min(n, q.Out)}, All: q.All[:n]}
}

// CheckLimit returns a *backend.LimitError if one of the first n entries has another limit than the
// request.
func (q Queue[E]) CheckLimit(req *backend.AcquireRequest, n int) error {
	return req.Claim().CheckLimit(req.Name, q.Claims[:n])
}

// Describe describes a lock with that queue. detail returns what the store knows of the entry at an
// index, in addition to its lease and its claim; false: the entry is gone.
func (q Queue[E]) Describe(name string, detail func(i int) (backend.Holder, bool)) backend.LockInfo {
	info := backend.LockInfo{Name: name}
	var held, waiting []backend.Claim
	for i, e := range q.All {
		h, ok := detail(i)
		if !ok {
			continue
		}
		h.Lease, h.Mode, h.Permits = e.LeaseID(), q.Claims[i].Mode, q.Claims[i].Permits
		if i >= q.Out {
			waiting = append(waiting, q.Claims[i])
			info.Waiters = append(info.Waiters, backend.Waiter{
				Lease: h.Lease, Session: h.Session, Owner: h.Owner, Note: h.Note, Mode: h.Mode, Permits: h.Permits, Since: h.Since,
			})
			continue
		}
		held = append(held, q.Claims[i])
		info.Token = max(info.Token, h.Token)
		info.Holders = append(info.Holders, h)
	}
	info.Limit = backend.InfoLimit(held, waiting) // of what is described: an entry that is gone has no limit
	return info
}

// Page returns the page of the locks that the request selects. segments are the names of locks as
// keys contain them, in any order and any number of times. inspect returns the state of a lock.
func Page(
	ctx context.Context, req *backend.ListRequest, segments []string, inspect func(ctx context.Context, name string) (backend.LockInfo, error),
) (backend.ListPage, error) {
	var names []string
	for _, s := range segments {
		if name, ok := backend.UnescapeSegment(s); ok && name > req.After && strings.HasPrefix(name, req.Prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return lockstate.Page(req.Size(), slices.Compact(names), func(name string) (backend.LockInfo, error) { return inspect(ctx, name) })
}
