package server

import (
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/observe"
)

// ledger remembers the leases that were granted here, for the metrics only: what is
// held is the backend's to say. A lease that another server renews is thought to
// have ended here.
type ledger struct {
	m      *observe.Metrics
	mu     sync.Mutex
	leases map[leaseKey]entry
	sweepN int // sweep when there are so many
}

type leaseKey struct {
	name  string
	lease backend.LeaseID
}

type entry struct {
	since, ends time.Time
	shared      bool
}

const firstSweep = 1024

func newLedger(m *observe.Metrics) *ledger {
	return &ledger{m: m, leases: make(map[leaseKey]entry), sweepN: firstSweep}
}

// granted enters a lease that the metrics have counted as held. One that was known
// is counted once only.
func (l *ledger) granted(k leaseKey, shared bool, left time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.leases[k]; known {
		e.ends = now.Add(left)
		l.leases[k] = e
		l.m.Again(shared)
		return
	}
	l.leases[k] = entry{since: now, ends: now.Add(left), shared: shared}
	if len(l.leases) >= l.sweepN {
		l.sweepLocked(now)
		l.sweepN = max(firstSweep, 2*len(l.leases))
	}
}

// renewed counts a renewal, with what was left of the lease.
func (l *ledger) renewed(k leaseKey, left time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.leases[k]
	if !known {
		l.m.RenewedUnseen()
		return
	}
	l.m.Renewed(1, max(0, e.ends.Sub(now)))
	e.ends = now.Add(left)
	l.leases[k] = e
}

// ended takes a lease out.
func (l *ledger) ended(k leaseKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.leases[k]; known {
		delete(l.leases, k)
		l.m.Ended(e.shared, time.Since(e.since))
	}
}

// sweep takes out the leases whose time is over.
func (l *ledger) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(time.Now())
}

func (l *ledger) sweepLocked(now time.Time) {
	for k, e := range l.leases {
		if now.After(e.ends) {
			delete(l.leases, k)
			l.m.Ended(e.shared, e.ends.Sub(e.since))
		}
	}
}
