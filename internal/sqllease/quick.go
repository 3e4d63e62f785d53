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
	lease   backend.LeaseID
	granted func(backend.Grant)
}

// maxCrowded bounds the locks that are remembered as contended, and maxRows those that are
// remembered to have a row.
const (
	maxCrowded = 1 << 12
	maxRows    = 1 << 14
)

// way is how a request is executed.
type way uint8

const (
	theLongWay way = iota
	quickAcquire
	quickRelease
)

// wayOf returns how to try the request first. mu is held.
func (b *Leases) wayOf(r *request) way {
	_, crowded := b.crowded[r.scope.Names[0]]
	switch {
	case r.quick == nil || crowded || b.quick == 0:
		return theLongWay
	case r.quick.acquire != nil:
		return quickAcquire
	}
	return quickRelease
}

// executeQuickly executes those of the requests that it can, answers them, and returns the others.
// Each is for another lock. The statements are one transaction.
func (b *Leases) executeQuickly(ctx context.Context, reqs []*request) []*request {
	byName := make(map[string]*request, len(reqs))
	q := &Quick{Known: b.rowsOf(reqs)}
	ordered := slices.SortedFunc(slices.Values(reqs), func(x, y *request) int { return cmp.Compare(x.scope.Names[0], y.scope.Names[0]) })
	for _, r := range ordered {
		name := r.scope.Names[0]
		byName[name] = r
		if r.quick.acquire != nil {
			q.Acquire = append(q.Acquire, r.quick.row(b.addr))
		} else {
			q.Release = append(q.Release, Key{Name: name, ID: r.quick.lease})
		}
	}
	asked := time.Now()
	if err := b.store.Quick(ctx, q); err != nil {
		return b.quickFailed(reqs, err)
	}
	for _, x := range q.Granted {
		r := byName[x.Name]
		delete(byName, x.Name)
		q.Known[x.Name] = !x.Tombs
		g := backend.Grant{Token: token(x.Token), Asked: asked, Since: x.Since}
		if a := r.quick.acquire; a.Timed {
			g.Left = a.TTL
		}
		r.quick.granted(g)
		r.Answer(nil)
	}
	for _, name := range q.Released {
		byName[name].Answer(nil)
		delete(byName, name)
	}
	return b.notQuick(reqs, byName, q.Known)
}

// notQuick returns the requests that were not executed, in their order, and remembers their
// locks. known are the locks whose rows are as Quick.Known needs them.
func (b *Leases) notQuick(reqs []*request, byName map[string]*request, known map[string]bool) []*request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.crowded)+len(byName) > maxCrowded {
		clear(b.crowded)
	}
	var rest []*request
	for _, r := range reqs {
		if name := r.scope.Names[0]; byName[name] == r {
			b.crowded[name] = struct{}{}
			delete(b.rows, name) // it may have been swept
			rest = append(rest, r)
		} else {
			b.noteRow(name, known[name])
		}
	}
	return rest
}

// noteRow notes whether the lock has a row as Quick.Known needs it. mu is held.
func (b *Leases) noteRow(name string, known bool) {
	if !known {
		delete(b.rows, name)
		return
	}
	if len(b.rows) >= maxRows {
		clear(b.rows)
	}
	b.rows[name] = struct{}{}
}

// rowsOf returns which of the locks of the requests are known as Quick.Known needs them.
func (b *Leases) rowsOf(reqs []*request) map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := make(map[string]bool, len(reqs))
	for _, r := range reqs {
		_, known[r.scope.Names[0]] = b.rows[r.scope.Names[0]]
	}
	return known
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
		b.noteRow(name, !t.tombed[name])
		if l.Free() {
			delete(b.crowded, name)
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
