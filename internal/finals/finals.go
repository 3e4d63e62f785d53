// Package finals remembers the leases whose loss was reported. Lost is final: a backend that granted
// such a lease again would have to report its next loss as well, and the report could be taken for
// a repetition of the first.
package finals

import (
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// remembered is how long a loss is remembered at least; it is forgotten after twice that time. A caller
// that did not get the answer to an Acquire asks again, or gives up, much earlier. A session may live for a
// year and lose a lease each second.
const remembered = time.Hour

// Leases are the leases of sessions whose loss was reported. The zero value is empty. Its methods
// are safe for concurrent use.
type Leases struct {
	mu          sync.Mutex
	lost, older losses
	begun       time.Time // when lost was empty
}

type losses map[backend.SessionID]map[backend.LeaseID]struct{}

// Add records losses. The loss of a whole session drops what is known of it.
func (f *Leases) Add(reported ...backend.Loss) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range reported {
		if x.Lease == "" {
			delete(f.lost, x.Session)
			delete(f.older, x.Session)
			continue
		}
		f.age(time.Now())
		if f.lost[x.Session] == nil {
			f.lost[x.Session] = make(map[backend.LeaseID]struct{})
		}
		f.lost[x.Session][x.Lease] = struct{}{}
	}
}

// age forgets what was recorded too long ago. mu is held.
func (f *Leases) age(now time.Time) {
	since := now.Sub(f.begun)
	if f.lost != nil && since < remembered {
		return
	}
	f.older = f.lost
	if since >= 2*remembered {
		f.older = nil
	}
	f.lost, f.begun = make(losses), now
}

// Has reports whether the loss of the lease was reported.
func (f *Leases) Has(session backend.SessionID, lease backend.LeaseID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, lost := f.lost[session][lease]
	_, earlier := f.older[session][lease]
	return lost || earlier
}

// Drop forgets a session that has ended.
func (f *Leases) Drop(session backend.SessionID) { f.Add(backend.Loss{Session: session}) }
