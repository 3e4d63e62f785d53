package lockstate

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// remembered is how long a loss is remembered at least. A caller that did not get the answer to an Acquire
// asks again, or gives up, much earlier. A session may live for a year and lose a lease each second.
const remembered = time.Hour

// generations are entries, each of which is kept for at least a given time. Those that are older than twice that are
// forgotten with the next one. So each entry costs the same, however many there are.
type generations[K comparable, V any] struct {
	young, old map[K]V
	begun      time.Time // when young was empty
}

// age makes room for an entry, and forgets what was recorded too long ago.
func (g *generations[K, V]) age(keep time.Duration) {
	now := time.Now()
	since := now.Sub(g.begun)
	if g.young != nil && since < keep {
		return
	}
	g.old = g.young
	if since >= 2*keep {
		g.old = nil
	}
	g.young, g.begun = make(map[K]V), now
}

func (g *generations[K, V]) drop(k K) {
	delete(g.young, k)
	delete(g.old, k)
}

// Ended remembers, for a while, what has ended and must not come back: sessions, abandoned leases. Its methods are safe for
// concurrent use. Use NewEnded to make one.
type Ended[K comparable] struct {
	keep time.Duration
	mu   sync.Mutex
	keys generations[K, struct{}]
}

// NewEnded returns an empty Ended, which remembers each key for at least that long.
func NewEnded[K comparable](keep time.Duration) *Ended[K] { return &Ended[K]{keep: keep} }

// Add remembers a key from now on.
func (s *Ended[K]) Add(k K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys.age(s.keep)
	s.keys.young[k] = struct{}{}
}

// Drop forgets a key.
func (s *Ended[K]) Drop(k K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys.drop(k)
}

// Has reports whether the key was added so recently that it is remembered.
func (s *Ended[K]) Has(k K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, young := s.keys.young[k]
	_, old := s.keys.old[k]
	return (young || old) && time.Since(s.keys.begun) < 2*s.keep
}

// Losses remembers the leases of sessions whose loss was reported. Lost is final: a backend that granted such a lease again
// would have to report its next loss as well, and the report could be taken for a repetition of the first. The zero value is
// empty. Its methods are safe for concurrent use.
type Losses struct {
	mu   sync.Mutex
	lost generations[backend.SessionID, map[backend.LeaseID]struct{}]
}

// Add records losses. The loss of a whole session drops what is known of it.
func (f *Losses) Add(reported ...backend.Loss) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range reported {
		if x.Lease == "" {
			f.lost.drop(x.Session)
			continue
		}
		f.lost.age(remembered)
		if f.lost.young[x.Session] == nil {
			f.lost.young[x.Session] = make(map[backend.LeaseID]struct{})
		}
		f.lost.young[x.Session][x.Lease] = struct{}{}
	}
}

// Has reports whether the loss of the lease was reported.
func (f *Losses) Has(session backend.SessionID, lease backend.LeaseID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, lost := f.lost.young[session][lease]
	_, earlier := f.lost.old[session][lease]
	return lost || earlier
}

// Drop forgets a session that has ended.
func (f *Losses) Drop(session backend.SessionID) { f.Add(backend.Loss{Session: session}) }

// Reports are the losses that the renewals of a session report. They report each for one TTL: a client that got no answer to
// a renewal for so long has lost the session. The zero value is empty. Its methods are not safe for concurrent use.
type Reports struct{ all []report }

type report struct {
	loss  backend.Loss
	until time.Time
}

// Add has a loss reported from now on, for one TTL.
func (r *Reports) Add(loss backend.Loss, ttl time.Duration) {
	r.all = append(r.all, report{loss, time.Now().Add(ttl)})
}

// Losses returns what a renewal reports now.
func (r *Reports) Losses() []backend.Loss {
	now := time.Now()
	r.all = slices.DeleteFunc(r.all, func(x report) bool { return x.until.Before(now) })
	var all []backend.Loss
	for _, x := range r.all {
		all = append(all, x.loss)
	}
	return all
}
