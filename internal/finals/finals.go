// Package finals remembers the leases whose loss was reported. Lost is final: a backend that granted
// such a lease again would have to report its next loss as well, and the report could be taken for
// a repetition of the first.
package finals

import (
	"sync"

	"github.com/holdfast-io/holdfast/backend"
)

// Leases are the leases of sessions whose loss was reported. The zero value is empty. Its methods
// are safe for concurrent use.
type Leases struct {
	mu   sync.Mutex
	lost map[backend.SessionID]map[backend.LeaseID]struct{}
}

// Add records losses. The loss of a whole session drops what is known of it.
func (f *Leases) Add(losses ...backend.Loss) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range losses {
		if x.Lease == "" {
			delete(f.lost, x.Session)
			continue
		}
		if f.lost == nil {
			f.lost = make(map[backend.SessionID]map[backend.LeaseID]struct{})
		}
		if f.lost[x.Session] == nil {
			f.lost[x.Session] = make(map[backend.LeaseID]struct{})
		}
		f.lost[x.Session][x.Lease] = struct{}{}
	}
}

// Has reports whether the loss of the lease was reported.
func (f *Leases) Has(session backend.SessionID, lease backend.LeaseID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.lost[session][lease]
	return ok
}

// Drop forgets a session that has ended.
func (f *Leases) Drop(session backend.SessionID) { f.Add(backend.Loss{Session: session}) }
