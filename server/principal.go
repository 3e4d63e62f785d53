package server

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// A lease belongs to the principal that acquired it, and the store keeps that: there the ID of a lease is
// what the client knows, with a mark of the principal at its end. So a server that was restarted, and
// each other server on the same store, knows whose a lease is without asking. The same ID from another
// principal is another lease, which is not held.

// markLen is the length of a mark: "-" and 80 bits of a hash.
const markLen = 1 + 16

// longestMarked is the longest ID to which a mark can be added.
const longestMarked = backend.MaxIDLen - markLen

// markOf returns the mark of a principal; none for the empty one.
func markOf(principal string) string {
	if principal == "" {
		return ""
	}
	return "-" + digest("principal " + principal)[:markLen-1]
}

// markIn returns the mark at the end of an ID in the store; none if it has none.
func markIn(id backend.LeaseID) string {
	at := len(id) - markLen
	if at <= 0 || id[at] != '-' {
		return ""
	}
	return string(id[at:])
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
}

// stored returns the ID in the store of a lease of the client. Of an ID that is too long for a mark it
// has a digest, by which the client may name the lease, too: a server that did not grant the lease knows no
// other name for it.
func (r *request) stored(id backend.LeaseID) backend.LeaseID {
	if r.mark == "" || id == "" {
		return id
	}
	if len(id) > longestMarked {
		id = backend.LeaseID(digest("lease " + string(id))[:longestMarked])
	}
	return id + backend.LeaseID(r.mark)
}

// own returns the ID by which the client knows a lease in the store, and whether the lease is the client's.
func (r *request) own(stored string) (string, bool) {
	if r.mark == "" {
		return "", false
	}
	return strings.CutSuffix(stored, r.mark)
}

// ofAnother reports whether a lease in the store is the one that the client named, and belongs to another principal.
// A client that may break the lock is shown IDs with their mark, and may name the lease by that.
func (r *request) ofAnother(named, stored backend.LeaseID) bool {
	mark := markIn(stored)
	if mark == "" || mark == r.mark {
		return false
	}
	return stored == named || strings.TrimSuffix(string(stored), mark) == strings.TrimSuffix(string(r.stored(named)), r.mark)
}

// view is what the client of a request may see of a lock.
type view struct {
	s    *Server
	r    *request
	name string
	// all: everything, because it may break the lock. With the ID of another client's lease it could renew
	// and release that lease where clients have no principals.
	all bool
}

func (s *Server) viewOf(r *request, name string) view {
	return view{s, r, name, s.cfg.Authorize == nil || s.decide(r, Action{Verb: Break, Name: name}) == nil}
}

// lease returns the ID of a lease in the store, as the client may see it.
func (v view) lease(stored string) string {
	if own, ok := v.r.own(stored); ok {
		if len(own) == longestMarked {
			return cmp.Or(v.s.registry.named(leaseKey{v.name, backend.LeaseID(stored)}), own)
		}
		return own
	}
	if v.all {
		return stored
	}
	return ""
}

// hide removes what the client may not see of a lock: of others, the IDs and notes of leases, and who
// waits.
func (v view) hide(l *wire.Lock, waiterLeases bool) {
	v.hideHolders(l.Holders)
	for i := range l.Waiters {
		w := &l.Waiters[i]
		if !v.sees(w.Lease) {
			w.Owner, w.Note = "", ""
		}
		w.Lease = v.lease(w.Lease)
		if !waiterLeases {
			w.Lease = ""
		}
	}
}

func (v view) hideHolders(hs []wire.Holder) {
	for i := range hs {
		h := &hs[i]
		if !v.sees(h.Lease) {
			h.Note = ""
		}
		h.Lease = v.lease(h.Lease)
	}
}

func (v view) hideEvent(e *backend.Event) {
	waits := e.Kind == backend.EventWaiting || e.Kind == backend.EventLeft
	if waits && !v.sees(string(e.Lease)) {
		e.Owner = ""
	}
	e.Lease = backend.LeaseID(v.lease(string(e.Lease)))
}

// sees reports whether the client may see everything of a lease in the store.
func (v view) sees(stored string) bool {
	_, own := v.r.own(stored)
	return own || v.all
}
