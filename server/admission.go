package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/observe"
)

// Quota bounds what one principal may use of a server. A field that is 0 has its default. Renewals and
// releases are always served.
type Quota struct {
	// Locks is the most leases that the principal may hold of those that this server granted or renewed.
	// Acquires that are in progress count, too. Default: unlimited. Optional.
	Locks int
	// Waiters is the most requests that wait for locks. Default: half of Limits.Waiters. Optional.
	Waiters int
	// Requests is the most requests in a second, in bursts of as many. Each acquire of a batch is
	// one. Default: unlimited. Optional.
	Requests int
}

// lane bounds how many requests of one kind are served concurrently.
type lane struct {
	slots    chan struct{} // one value for each request inside
	quota    observe.Quota
	patience time.Duration // how long a request waits for a slot before it is rejected
}

// admission bounds the work that clients cause. There is no lane for renewals and releases of leases that are
// known here: nothing refuses these, and the renewer groups them. What the lanes bound shares the processors with the
// renewals, and each step of a renewal waits behind all of it.
type admission struct {
	// acquires bounds those that the backend decides on without a wait.
	acquires *lane
	// others is for breaks, and releases of leases that are not known here.
	others *lane
	// reads and pages are for reads of one lock, and lists, until they are sent: a client that does not read keeps
	// megabytes here, and must delay nothing else.
	reads, pages *lane
	// lists bounds reading and encoding of lists with up to a thousand locks each.
	lists *lane
	// waits and streams bound the requests that stay: those that wait for a lock, and event streams.
	waits, streams *lane

	mu     sync.Mutex
	shares map[share]int
	paces  map[string]*rate.Limiter // of the principals that have a quota of requests
}

// share is what one principal has of a lane.
type share struct {
	principal string
	of        *lane
}

// callsPerCPU is how many calls of a lane the backend executes concurrently, for each processor. It
// is more than a backend puts into one commit, and few enough that a renewal behind them is not
// late.
const callsPerCPU = 16

func newAdmission(l Limits) *admission {
	cpus := runtime.GOMAXPROCS(0)
	of := func(n int, q observe.Quota, patience time.Duration) *lane {
		return &lane{make(chan struct{}, max(1, n)), q, patience}
	}
	return &admission{
		acquires: of(callsPerCPU*cpus, observe.QuotaAcquires, 5*time.Second),
		others:   of(callsPerCPU*cpus, observe.QuotaReads, 5*time.Second),
		reads:    of(callsPerCPU*cpus, observe.QuotaReads, 5*time.Second),
		pages:    of(callsPerCPU*cpus, observe.QuotaReads, 5*time.Second),
		lists:    of(cpus-1, observe.QuotaReads, 5*time.Second),
		waits:    of(l.Waiters, observe.QuotaWaiters, 0),
		streams:  of(l.Events, observe.QuotaStreams, 0),
		shares:   make(map[share]int),
		paces:    make(map[string]*rate.Limiter),
	}
}

// of returns the lane that requests with the verb are in until they are answered; nil if there is none.
func (a *admission) of(v Verb) *lane {
	switch v { //nolint:exhaustive // the others have none, or a later one
	case Read:
		return a.reads
	case List:
		return a.pages
	case Break:
		return a.others
	}
	return nil
}

// enter takes a slot, and reports whether there was one in time.
func (l *lane) enter(ctx context.Context) bool {
	select {
	case l.slots <- struct{}{}:
		return true
	default:
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

func (l *lane) leave() { <-l.slots }

// admit takes a slot in a lane, and returns the function that frees it.
func (s *Server) admit(ctx context.Context, l *lane) (func(), error) {
	if !l.enter(ctx) {
		s.metrics.QuotaRejected(l.quota)
		return nil, &overloadError{status: http.StatusServiceUnavailable, what: "too many concurrent requests of this kind"}
	}
	return l.leave, nil
}

// admitLong admits a request that stays, of which its principal may have so many; 0: half of all. Its connection is not
// closed for another one. The caller calls the function that it returns.
func (s *Server) admitLong(r *request, l *lane, most int) (func(), error) {
	most = cmp.Or(most, (cap(l.slots)+1)/2)
	n, giveBack := s.count(r, l)
	if n > most {
		giveBack()
		return nil, s.overQuota("concurrent requests of this kind that a client may have: %d", most)
	}
	leave, err := s.admit(r.Context(), l)
	if err != nil {
		giveBack()
		return nil, err
	}
	r.pin()
	return func() { leave(); giveBack() }, nil
}

// count counts one more request of its principal in a lane. It returns their number, 0 without a principal,
// and the function that ends the count.
func (s *Server) count(r *request, l *lane) (int, func()) {
	if s.cfg.Identify == nil || r.principal == "" {
		return 0, func() {}
	}
	a, k := s.admission, share{r.principal, l}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shares[k]++
	return a.shares[k], func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.shares[k]--; a.shares[k] == 0 {
			delete(a.shares, k)
		}
	}
}

func (s *Server) quotaOf(r *request) Quota {
	if s.cfg.Quota == nil || s.cfg.Identify == nil || r.principal == "" {
		return Quota{}
	}
	return s.cfg.Quota(r.principal)
}

// checkRate counts one request for something new.
func (s *Server) checkRate(r *request) error {
	most := s.quotaOf(r).Requests
	if most == 0 {
		return nil
	}
	a := s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	pace := a.paces[r.principal]
	if pace == nil || pace.Burst() != most { // the quota may have changed
		pace = rate.NewLimiter(rate.Limit(most), most)
		a.paces[r.principal] = pace
	}
	if !pace.Allow() {
		return s.overQuota("requests that this client may send in a second: %d", most)
	}
	return nil
}

// countAcquire counts an acquire in progress, and refuses it if its principal holds as many leases as it may. The
// caller calls the function that it returns.
func (s *Server) countAcquire(r *request, k leaseKey) (func(), error) {
	n, giveBack := s.count(r, s.admission.acquires)
	most := s.quotaOf(r).Locks
	if most > 0 && r.mark != "" && s.registry.heldBy(r.mark)+n > most && !s.registry.knows(k) {
		giveBack()
		return nil, s.overQuota("leases of this server that this client may hold: %d", most)
	}
	return giveBack, nil
}

// overQuota counts the refusal of a principal that has as many as it may have, and returns its error.
func (s *Server) overQuota(format string, most int) error {
	s.metrics.QuotaRejected(observe.QuotaPrincipal)
	return &overloadError{status: http.StatusTooManyRequests, what: fmt.Sprintf(format, most)}
}

// knows reports whether the lease was granted or renewed here, and is not known to have ended. If so, the connection of the
// request, which is a holder's, is not closed for another one.
func (s *Server) knows(r *request, k leaseKey) bool {
	known := s.registry.knows(k)
	if known {
		r.pin()
	}
	return known
}

// bounded bounds the work that acquires make for the backend: one that does not wait takes a slot.
type bounded struct {
	backend.Backend
	s *Server
}

// Acquire implements backend.Backend.
func (b bounded) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if !req.Wait {
		leave, err := b.s.admit(ctx, b.s.admission.acquires)
		if err != nil {
			return backend.Grant{}, err
		}
		defer leave()
	}
	return b.Backend.Acquire(ctx, req)
}
