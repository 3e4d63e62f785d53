package etcdlock

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// record is the value of an entry. Name, mode and limit are in the key.
type record struct {
	Lease   string `json:"lease"`
	Session string `json:"session,omitempty"`
	Owner   string `json:"owner,omitempty"`
	Note    string `json:"note,omitempty"`
	Permits int    `json:"permits,omitempty"`
	// TTL of a timed lease in milliseconds.
	TTL int64 `json:"ttl,omitempty"`
	// Out is set when a timed lease was granted: it is not on the etcd lease of a session.
	Out bool `json:"out,omitempty"`
	// Pooled is set when its etcd lease is shared with others, so that it must not be revoked.
	Pooled bool `json:"pooled,omitempty"`
	// Term is that of sessionLease, for the etcd lease of a timed lease that is held.
	Term uint64 `json:"term,omitempty"`
	// Asked and Since are wall-clock milliseconds, for people. Since is 0 while the lease is not
	// known to have been granted later than it was requested.
	Asked int64 `json:"asked"`
	Since int64 `json:"since,omitempty"`
}

// entry is a place in the queue, or a lease that is held. Which of the two depends on the entries
// before it.
type entry struct {
	place
	record
	key   string
	rev   int64 // create revision: the place in the order of grants, and the token
	mod   int64
	lease clientv3.LeaseID
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // a struct of strings and numbers always encodes
		return "{}"
	}
	return string(b)
}

// decode reads an entry, and returns false for a key that is not one. A value that does not parse
// is still an entry: it keeps its place in the queue.
func (k keys) decode(kv *mvccpb.KeyValue) (entry, bool) {
	p, ok := k.parse(string(kv.Key))
	if !ok || p.zone == zoneNote {
		return entry{}, false
	}
	e := entry{place: p, key: string(kv.Key), rev: kv.CreateRevision, mod: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	if json.Unmarshal(kv.Value, &e.record) != nil {
		e.record = record{Owner: "(unreadable)"}
	}
	return e, true
}

// entryOf returns the entry of that lease, or nil if kv is another entry, or none.
func (k keys) entryOf(id leaseKey, kv *mvccpb.KeyValue) *entry {
	if kv == nil {
		return nil
	}
	if e, ok := k.decode(kv); ok && (leaseKey{e.name, e.id()}) == id {
		return &e
	}
	return nil
}

func (k keys) decodeAll(kvs []*mvccpb.KeyValue) []entry {
	es := make([]entry, 0, len(kvs))
	for _, kv := range kvs {
		if e, ok := k.decode(kv); ok {
			es = append(es, e)
		}
	}
	return es
}

func (e *entry) id() backend.LeaseID { return backend.LeaseID(e.Lease) }

func (e *entry) mode() backend.Mode {
	if e.zone == zoneShared {
		return backend.Shared
	}
	return backend.Exclusive
}

func (e *entry) token() fence.Token { return token(e.rev) }

func (e *entry) timed() bool { return e.TTL > 0 }

// alone reports whether the etcd lease belongs to this timed lease, and to nothing else.
func (e *entry) alone() bool { return e.timed() && e.Out && !e.Pooled }

func (e *entry) claim() backend.Claim {
	return backend.Claim{Mode: e.mode(), Limit: e.limit, Permits: max(1, e.Permits)}
}

func (e *entry) since() time.Time {
	if e.Since > 0 {
		return time.UnixMilli(e.Since)
	}
	return time.UnixMilli(e.Asked)
}

// state is a lock at one revision.
type state struct {
	holders, queue []entry
	// out and ahead are lower bounds of how many leases hold the lock and how many wait, where
	// holders and queue are only the front of the queue. 0 means that holders and queue are complete.
	out, ahead int
	// refused is set where holders and queue are only the front of a queue in which something
	// further back is in the way of the claim.
	refused bool
}

// judge determines the holders: the longest part of the queue, from its head, that fits together. It
// depends on nothing but the entries, so that all who read the same revision come to the same result.
func judge(es []entry) state {
	slices.SortFunc(es, func(a, b entry) int { return cmp.Compare(a.rev, b.rev) })
	n := backend.Admit(nil, claims(es))
	return state{holders: es[:n], queue: es[n:]}
}

// find returns the entry of that lease, and whether it is held.
func (s *state) find(id backend.LeaseID) (*entry, bool) {
	for i := range s.holders {
		if s.holders[i].id() == id {
			return &s.holders[i], true
		}
	}
	for i := range s.queue {
		if s.queue[i].id() == id {
			return &s.queue[i], false
		}
	}
	return nil, false
}

// admits reports whether a claim that comes last may be granted immediately.
func (s *state) admits(c backend.Claim) bool {
	return !s.refused && len(s.queue) == 0 && c.Fits(claims(s.holders))
}

func claims(es []entry) []backend.Claim {
	cs := make([]backend.Claim, len(es))
	for i := range es {
		cs[i] = es[i].claim()
	}
	return cs
}
