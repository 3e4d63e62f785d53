package sqllease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Most locks are free when they are acquired, and have no waiters when they are released. Then
// there is nothing to decide here: one round trip grants or releases on that condition. Requests
// for which the condition does not hold take the long way. So do, from the start, requests for
// locks for which it did not hold lately.

// quick is a request that may take one round trip.
type quick struct {
	acquire *backend.AcquireRequest // nil: it is a release
	granted func(backend.Grant)
}

// memory is what is remembered of a lock.
type memory uint8

const (
	nothing   memory = iota
	hasRow           // as Quick.Known needs it
	contended        // quick requests are not executed
)

// maxMemories bounds the locks of which anything is remembered.
const maxMemories = 1 << 14

// way is how a request is executed.
type way uint8

const (
	theLongWay way = iota
	quickAcquire
	quickRelease
)

// wayOf returns how to try the request first. mu is held.
func (b *Leases) wayOf(r *request) way {
	switch {
	case r.quick == nil || b.quick == 0 || b.memories[r.scope.Names[0]] == contended:
		return theLongWay
	case r.quick.acquire != nil:
		return quickAcquire
	}
	return quickRelease
}

// executeQuickly executes those of the requests that it can, answers them, and returns the others, in their
// order. Each is for another lock. The statements are one transaction.
func (b *Leases) executeQuickly(ctx context.Context, reqs []*request) []*request {
	left := make(map[string]*request, len(reqs))
	q := &Quick{Known: b.haveRows(reqs)}
	ordered := slices.SortedFunc(slices.Values(reqs), func(x, y *request) int { return cmp.Compare(x.scope.Names[0], y.scope.Names[0]) })
	for _, r := range ordered {
		left[r.scope.Names[0]] = r
		if r.quick.acquire != nil {
			q.Acquire = append(q.Acquire, r.quick.row(b.addr))
		} else {
			q.Release = append(q.Release, r.scope.Back...)
		}
	}
	asked := time.Now()
	if err := b.store.Quick(ctx, q); err != nil {
		return b.quickFailed(reqs, err)
	}
	for _, x := range q.Granted {
		r := left[x.Name]
		delete(left, x.Name)
		g := backend.Grant{Token: token(x.Token), Asked: asked, Since: x.Since}
		if a := r.quick.acquire; a.Timed {
			g.Left = a.TTL
		}
		r.quick.granted(g)
		r.Answer(nil)
	}
	for _, name := range q.Released {
		left[name].Answer(nil)
		delete(left, name)
	}
	b.remember(q.Granted, left)
	var rest []*request
	for _, r := range reqs {
		if left[r.scope.Names[0]] != nil {
			rest = append(rest, r)
		}
	}
	return rest
}

// haveRows returns which of the locks of the requests are known as Quick.Known needs them.
func (b *Leases) haveRows(reqs []*request) map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := make(map[string]bool, len(reqs))
	for _, r := range reqs {
		known[r.scope.Names[0]] = b.memories[r.scope.Names[0]] == hasRow
	}
	return known
}

// remember remembers the locks of requests that were tried: those of grants, and those that are left.
func (b *Leases) remember(grants []QuickGrant, left map[string]*request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range grants {
		b.note(g.Name, rowWith(g.Tombs))
	}
	for name := range left {
		b.note(name, contended)
	}
}

// rowWith returns what is remembered of a lock that has a row and is not contended.
func rowWith(tombs bool) memory {
	if tombs {
		return nothing
	}
	return hasRow
}

// note replaces what is remembered of a lock. mu is held.
func (b *Leases) note(name string, what memory) {
	delete(b.memories, name)
	if len(b.memories) >= maxMemories {
		clear(b.memories)
	}
	if what != nothing {
		b.memories[name] = what
	}
}

// quickFailed returns the requests where it is certain that nothing was done, and answers them
// otherwise. It does not retry by itself: a batch whose connection broke may still be in transit,
// and would grant the lease once more after its release. The caller gets an unknown outcome, and
// abandons such a lease rather than releasing it. Where nothing is in transit, an acquisition is
// retried: it finds what it has done.
func (b *Leases) quickFailed(reqs []*request, err error) []*request {
	f := b.store.Fault(err)
	if f.Answered || f.Unsent {
		return reqs // the long way finds out what is wrong
	}
	if f.Broken {
		b.store.Reset() // the other idle connections are no better
	}
	var again []*request
	for _, r := range reqs {
		if f.Ended && r.quick.acquire != nil {
			r.doubt = true
			again = append(again, r)
		} else {
			r.Answer(b.said(r.Op, true, err))
		}
	}
	return again
}

// calmed notes which locks of a transaction have neither holders nor waiters any more. All of them
// have a row, unless the transaction was rolled back.
func (b *Leases) calmed(t *txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range t.locks {
		if l.Free() {
			b.note(name, rowWith(t.tombed[name]))
		}
	}
}

// row returns the row of the lease.
func (q *quick) row(addr string) LeaseRow {
	a := q.acquire
	return LeaseRow{
		Name: a.Name, Lease: a.Lease, Session: a.Session, Addr: addr, Held: true, Claim: a.Claim(), Owner: a.Owner, Note: a.Note, Timed: a.Timed, TTL: a.TTL,
	}
}
