package server

import (
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/observe"
)

// registry remembers the leases that were granted or renewed here. It serves the metrics, and
// tells holders from other clients when there is not enough capacity for all; which leases are
// held is for the backend to say. A lease that another server renews is taken to have ended
// here.
type registry struct {
	m      *observe.Server
	mu     sync.Mutex
	leases map[leaseKey]entry
	byMark map[string]int // how many of them a principal has
	sweepN int            // sweep at this size
}

type leaseKey struct {
	name  string
	lease backend.LeaseID
}

type entry struct {
	since, ends time.Time
	shared      bool
	// named is what the client calls the lease, if the store has a digest of that.
	named string
	// unseen: the lease was renewed here and not granted here, and the metrics have not counted
	// it.
	unseen bool
}

const firstSweep = 1024

func newRegistry(m *observe.Server) *registry {
	return &registry{m: m, leases: make(map[leaseKey]entry), byMark: make(map[string]int), sweepN: firstSweep}
}

// granted enters a lease that the metrics have counted as held. A lease that was already known
// is counted only once.
func (l *registry) granted(k leaseKey, named string, shared bool, left time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.leases[k]; known && !e.unseen {
		e.ends = now.Add(left)
		l.leases[k] = e
		l.m.Again(shared)
		return
	}
	if len(named) <= longestMarked {
		named = ""
	}
	l.enterLocked(k, entry{since: now, ends: now.Add(left), shared: shared, named: named})
}

func (l *registry) enterLocked(k leaseKey, e entry) {
	now := time.Now()
	if _, known := l.leases[k]; !known {
		l.byMark[markIn(k.lease)]++
	}
	l.leases[k] = e
	if len(l.leases) >= l.sweepN {
		l.sweepLocked(now)
		l.sweepN = max(firstSweep, 2*len(l.leases))
	}
}

// renewed counts a renewal, and the time that was left of the lease.
func (l *registry) renewed(k leaseKey, left time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.leases[k]
	if !known || e.unseen {
		l.m.RenewedUnseen()
		l.enterLocked(k, entry{since: now, ends: now.Add(left), unseen: true})
		return
	}
	l.m.Renewed(max(0, e.ends.Sub(now)))
	e.ends = now.Add(left)
	l.leases[k] = e
}

// knows reports whether the lease is in the registry.
func (l *registry) knows(k leaseKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.leases[k]
	return known
}

// named returns what the client calls a lease, if the store has a digest of that and it was granted here.
func (l *registry) named(k leaseKey) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[k].named
}

// heldBy returns how many leases a principal has here, by its mark.
func (l *registry) heldBy(mark string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byMark[mark]
}

func (l *registry) removeLocked(k leaseKey) {
	delete(l.leases, k)
	mark := markIn(k.lease)
	if l.byMark[mark]--; l.byMark[mark] == 0 {
		delete(l.byMark, mark)
	}
}

// ended removes a lease.
func (l *registry) ended(k leaseKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.leases[k]; known {
		l.removeLocked(k)
		if !e.unseen {
			l.m.Ended(e.shared, time.Since(e.since))
		}
	}
}

// sweep removes the leases whose time has passed.
func (l *registry) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(time.Now())
}

func (l *registry) sweepLocked(now time.Time) {
	for k, e := range l.leases {
		if now.After(e.ends) {
			l.removeLocked(k)
			if !e.unseen {
				l.m.Ended(e.shared, e.ends.Sub(e.since))
			}
		}
	}
}
