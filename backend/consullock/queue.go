package consullock

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// content is the value of a lease's key.
type content struct {
	Mode    backend.Mode      `json:"m,omitempty"`
	Limit   int               `json:"l,omitempty"`
	Permits int               `json:"p,omitempty"`
	Session backend.SessionID `json:"s"`
	Owner   string            `json:"o,omitempty"`
	Note    string            `json:"n,omitempty"`
	Since   int64             `json:"t,omitempty"` // when it was requested, by the client's clock: nanoseconds of Unix time
}

// entry is a lease that is held or waiting.
type entry struct {
	content

	lease backend.LeaseID
	key   string
	uuid  string // of Consul's session
	// created is the index of the transaction that made the key: its place and its token. The
	// leader counts them, over all its terms.
	created, modified uint64
}

// LeaseID implements seqlock.Entry.
func (e entry) LeaseID() backend.LeaseID { return e.lease }

// Claim implements seqlock.Entry.
func (e entry) Claim() backend.Claim {
	return backend.Claim{Mode: e.Mode, Limit: e.Limit, Permits: max(1, e.Permits)}
}

// queue is the queue of a lock.
type queue = seqlock.Queue[entry]

// newQueue makes the queue of the keys below prefix. Keys without a session belong to no client.
func newQueue(prefix string, pairs []*api.KVPair) queue {
	var all []entry
	for _, p := range pairs {
		id, ok := strings.CutPrefix(p.Key, prefix)
		if !ok || strings.Contains(id, "/") || p.Session == "" || len(p.Value) == 0 {
			continue
		}
		e := entry{lease: backend.LeaseID(id), key: p.Key, uuid: p.Session, created: p.CreateIndex, modified: p.ModifyIndex}
		if json.Unmarshal(p.Value, &e.content) == nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.created, b.created) })
	return seqlock.QueueOf(all)
}

// behind returns what is behind a place. All entries at it and before it are known to be gone.
func (s sight) behind(place uint64) sight {
	n := 0
	for n < len(s.All) && s.All[n].created <= place {
		n++
	}
	if n > 0 {
		s.queue = seqlock.QueueOf(s.All[n:])
	}
	return s
}

// places returns the index of each lease in the queue.
func places(q queue) map[backend.LeaseID]int {
	all := make(map[backend.LeaseID]int, len(q.All))
	for i, e := range q.All {
		all[e.lease] = i
	}
	return all
}
