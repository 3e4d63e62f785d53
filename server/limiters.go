package server

import (
	"context"
	"runtime"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/observe"
)

// limiter bounds how many requests of one kind are served concurrently. The receiver of its methods may be
// nil: no bound.
type limiter struct {
	slots chan struct{} // one value for each request inside
	quota observe.Quota
	// patience is how long a request waits for a slot before it is rejected.
	patience time.Duration
}

// limiters are separate, so that an overload in one leaves the others alone. Lock holders have
// their own, and it waits where the others reject: a renewal that is a little late is better
// than one that is refused.
//
// The last two bound work, not requests. Work that runs at the same time shares the processors
// with the renewals, and each step of a renewal waits behind all of it.
type limiters struct {
	acquires, reads, streams *limiter
	// waits bounds the acquires that wait. It leaves a part of acquires to those that do not.
	waits *limiter
	// holders is for renewals and releases of leases that were granted or renewed here. claims
	// is for those of leases that this server does not know: a flood of lease IDs that never
	// existed does not delay the renewal of a lease that is held.
	holders, claims *limiter
	// tries bounds acquires while the backend decides on them without a wait.
	tries *limiter
	// lists bounds reading, decoding and encoding of lists with up to a thousand locks each.
	lists *limiter
}

// triesPerCPU is how many acquires the backend decides on concurrently, for each processor. It
// is more than a backend puts into one commit, and few enough that a renewal behind them is not
// late.
const triesPerCPU = 16

func newLimiters(l Limits) *limiters {
	cpus := runtime.GOMAXPROCS(0)
	of := func(n int, q observe.Quota, patience time.Duration) *limiter {
		return &limiter{make(chan struct{}, max(1, n)), q, patience}
	}
	return &limiters{
		acquires: of(l.Acquires, observe.QuotaAcquires, 0),
		waits:    of(l.Acquires-l.Acquires/8, observe.QuotaAcquires, 0),
		reads:    of(l.Reads, observe.QuotaReads, time.Second),
		streams:  of(l.Events, observe.QuotaStreams, 0),
		holders:  of(l.Holders, observe.QuotaHolders, 5*time.Second),
		claims:   of(l.Holders/8, observe.QuotaHolders, 2*time.Second),
		tries:    of(triesPerCPU*cpus, observe.QuotaAcquires, 5*time.Second),
		lists:    of(cpus-1, observe.QuotaReads, 5*time.Second),
	}
}

func acquiring(s *Server, _ *request) *limiter { return s.limiters.acquires }
func reading(s *Server, _ *request) *limiter   { return s.limiters.reads }
func streaming(s *Server, _ *request) *limiter { return s.limiters.streams }

// holding returns the limiter of a renewal or a release of one lease.
func holding(s *Server, r *request) *limiter {
	return s.limiters.of(s.knows(r, leaseKey{r.name, r.lease}))
}

// of returns the limiter of renewals and releases of leases that are known here, or of those that
// are not.
func (l *limiters) of(known bool) *limiter {
	if known {
		return l.holders
	}
	return l.claims
}

// knows reports whether the lease was granted or renewed here, and is not known to have ended.
// If so, it marks the connection of the request as a holder's.
func (s *Server) knows(r *request, k leaseKey) bool {
	known := s.registry.knows(k)
	if known {
		r.conn.holds()
	}
	return known
}

// enterNow takes a slot if one is free, and reports whether it did.
func (l *limiter) enterNow() bool {
	if l == nil {
		return true
	}
	select {
	case l.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter takes a slot, and reports whether there was one in time.
func (l *limiter) enter(ctx context.Context) bool {
	if l.enterNow() {
		return true
	}
	if l.patience == 0 {
		return false
	}
	t := time.NewTimer(l.patience)
	defer t.Stop()
	select {
	case l.slots <- struct{}{}:
		return true
	case <-t.C:
		return false
	case <-ctx.Done():
		return false
	}
}

func (l *limiter) leave() {
	if l != nil {
		<-l.slots
	}
}

// bounded bounds the work that acquires make for the backend: one that does not wait takes a slot in the
// limiter of tries.
type bounded struct {
	backend.Backend
	s *Server
}

// Acquire implements backend.Backend.
func (b bounded) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if !req.Wait {
		if err := b.s.admit(ctx, b.s.limiters.tries); err != nil {
			return backend.Grant{}, err
		}
		defer b.s.limiters.tries.leave()
	}
	return b.Backend.Acquire(ctx, req)
}

// admit takes a slot in time. If there is none, it counts the rejection and returns the error
// for it.
func (s *Server) admit(ctx context.Context, l *limiter) error {
	if l.enter(ctx) {
		return nil
	}
	s.metrics.QuotaRejected(l.quota)
	return crowded()
}
