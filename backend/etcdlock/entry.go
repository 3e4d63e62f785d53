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
	"github.com/holdfast-io/holdfast/internal/seqlock"
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
	// Moving is set before it moves from an etcd lease of its own: see Backend.announce.
	Moving bool `json:"moving,omitempty"`
	// Term is that of sessionLease, for the etcd lease of a timed lease that is held.
	Term uint64 `json:"term,omitempty"`
	// Asked and Since are wall-clock milliseconds, for people. Since is 0 where the lease may have been
	// granted later than it was requested, and nothing was written then.
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

// decode reads an entry, and returns nil for a key that is not one. A value that does not parse
// is still an entry: it keeps its place in the queue.
func (k keys) decode(kv *mvccpb.KeyValue) *entry {
	p, ok := k.parse(string(kv.Key))
	if !ok || p.zone == zoneNote {
		return nil
	}
	e := &entry{place: p, key: string(kv.Key), rev: kv.CreateRevision, mod: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	if json.Unmarshal(kv.Value, &e.record) != nil {
		e.record = record{Owner: "(unreadable)"}
	}
	return e
}

// entryOf returns the entry of that lease, or nil if kv is another entry, or none.
func (k keys) entryOf(id leaseKey, kv *mvccpb.KeyValue) *entry {
	if kv == nil {
		return nil
	}
	if e := k.decode(kv); e != nil && (leaseKey{e.name, e.LeaseID()}) == id {
		return e
	}
	return nil
}

func (k keys) decodeAll(kvs []*mvccpb.KeyValue) []*entry {
	es := make([]*entry, 0, len(kvs))
	for _, kv := range kvs {
		if e := k.decode(kv); e != nil {
			es = append(es, e)
		}
	}
	return es
}

// LeaseID implements seqlock.Entry.
func (e *entry) LeaseID() backend.LeaseID { return backend.LeaseID(e.Lease) }

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

// Claim implements seqlock.Entry.
func (e *entry) Claim() backend.Claim {
	return backend.Claim{Mode: e.mode(), Limit: e.limit, Permits: max(1, e.Permits)}
}

func (e *entry) since() time.Time {
	if e.Since > 0 {
		return time.UnixMilli(e.Since)
	}
	return time.UnixMilli(e.Asked)
}

// state is a lock at one revision.
type state = seqlock.Queue[*entry]

// judge returns the lock with those entries. The holders depend on nothing but the entries, so that
// all who read the same revision come to the same result.
func judge(es []*entry) state {
	slices.SortFunc(es, byRevision)
	return seqlock.QueueOf(es)
}

func byRevision(a, b *entry) int { return cmp.Compare(a.rev, b.rev) }
