package consullock

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
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

// line is the holders and the waiters, in order of their creation. The holders are always its
// front.
type line struct {
	backend.Front

	all []entry
}

// newLine makes the line of the keys below prefix. Keys without a session belong to no client.
func newLine(prefix string, pairs []*api.KVPair) line {
	var l line
	for _, p := range pairs {
		id, ok := strings.CutPrefix(p.Key, prefix)
		if !ok || strings.Contains(id, "/") || p.Session == "" || len(p.Value) == 0 {
			continue
		}
		e := entry{lease: backend.LeaseID(id), key: p.Key, uuid: p.Session, created: p.CreateIndex, modified: p.ModifyIndex}
		if json.Unmarshal(p.Value, &e.content) == nil {
			l.all = append(l.all, e)
		}
	}
	slices.SortFunc(l.all, func(a, b entry) int { return cmp.Compare(a.created, b.created) })
	claims := make([]backend.Claim, len(l.all))
	for i, e := range l.all {
		claims[i] = backend.Claim{Mode: e.Mode, Limit: e.Limit, Permits: max(1, e.Permits)}
	}
	l.Front = backend.FrontOf(claims)
	return l
}

// find returns the index of a lease, or -1.
func (l line) find(id backend.LeaseID) int {
	return slices.IndexFunc(l.all, func(e entry) bool { return e.lease == id })
}

// holders returns the front of the line alone.
func (l line) holders() line { return l.first(l.Out) }

func (l line) first(n int) line {
	return line{Front: backend.Front{Claims: l.Claims[:n], Out: min(n, l.Out)}, all: l.all[:n]}
}

// behind returns what is behind a place. All entries at it and before it are known to be gone.
func (s sight) behind(place uint64) sight {
	n := 0
	for n < len(s.all) && s.all[n].created <= place {
		n++
	}
	if n > 0 {
		s.line = line{Front: backend.FrontOf(s.Claims[n:]), all: s.all[n:]}
	}
	return s
}

// places returns the index of each lease in the line.
func (l line) places() map[backend.LeaseID]int {
	all := make(map[backend.LeaseID]int, len(l.all))
	for i, e := range l.all {
		all[e.lease] = i
	}
	return all
}
