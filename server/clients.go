package server

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/holdfast-io/holdfast/observe"
)

// Quota bounds what one client may use of a server, so that the other clients have the rest. A client is a
// principal, or without principals an address beyond this host: IPv4, or IPv6 with 64 bits. A
// field that is 0 has its default.
type Quota struct {
	// Locks is the most leases that the client may hold of those that this server granted or renewed. Acquires
	// that are in progress count, too. Only principals have this bound. Default: none. Optional.
	Locks int
	// Waiters is the most requests that wait for locks. Default: half of those that may wait in
	// total. Optional.
	Waiters int
	// Streams is the most event streams. Default: half of Limits.Events. Optional.
	Streams int
	// Connections is the most connections. Beyond them, only renewals are served, and releases that
	// are not in a batch. Default: half of Limits.Connections. Optional.
	Connections int
	// Requests is the most requests in a second, in bursts of as many. Each acquire of a batch is
	// one; renewals and releases are none. Default: unlimited. Optional.
	Requests int
	// Bytes is the most bytes of answers and event streams in a second, without headers. An answer is
	// charged when it is written: a client that was sent more gets 429 until it is within the bound
	// again. A stream in progress is neither ended nor delayed, and renewals and releases are always
	// served; what they are sent is charged too, but no more than for 10 s. The refusal of a
	// whole request by a quota is not charged. Default: unlimited. Optional.
	Bytes int
}

// client is what a client uses at the moment. It may use half of each limiter, unless its quota says
// otherwise. The receiver of its methods may be nil: a client without bounds.
type client struct {
	mu    sync.Mutex
	quota Quota
	own   map[*limiter]*limiter // its part of each
	pace  *rate.Limiter         // nil: unlimited
	bytes *bucket               // nil: unlimited
	conns int
	used  time.Time
}

// set sets the quota, which may have changed.
func (c *client) set(q Quota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used = time.Now()
	if c.own != nil && q == c.quota {
		return
	}
	c.quota, c.own, c.pace, c.bytes = q, make(map[*limiter]*limiter), nil, nil
	if q.Requests > 0 {
		c.pace = rate.NewLimiter(rate.Limit(q.Requests), q.Requests)
	}
	if q.Bytes > 0 {
		c.bytes = &bucket{perSecond: q.Bytes}
	}
}

func (c *client) bounds() (Quota, *rate.Limiter) {
	if c == nil {
		return Quota{}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quota, c.pace
}

// part returns the client's part of a limiter.
func (c *client) part(s *Server, l *limiter) *limiter {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	part := c.own[l]
	if part == nil {
		most := (cap(l.slots) + 1) / 2
		switch l {
		case s.limiters.waits:
			most = cmp.Or(c.quota.Waiters, most)
		case s.limiters.streams:
			most = cmp.Or(c.quota.Streams, most)
		}
		part = &limiter{make(chan struct{}, most), observe.QuotaClient, l.patience}
		c.own[l] = part
	}
	return part
}

// idle reports whether nothing of the client has to be remembered.
func (c *client) idle(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, part := range c.own {
		if len(part.slots) > 0 {
			return false
		}
	}
	if c.bytes != nil && !c.bytes.full(now) {
		return false
	}
	return c.conns == 0 && now.Sub(c.used) > time.Second // a second refills the rate
}

// clients are those that have used the server lately.
type clients struct {
	mu     sync.Mutex
	all    map[string]*client
	sweepN int // sweep at this size
}

func (a *clients) get(key string, q Quota) *client {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.all[key]
	if c == nil {
		if now := time.Now(); len(a.all) >= a.sweepN {
			for key, c := range a.all {
				if c.idle(now) {
					delete(a.all, key)
				}
			}
			a.sweepN = max(firstSweep, 2*len(a.all))
		}
		c = new(client)
		a.all[key] = c
	}
	c.set(q)
	return c
}

// clientOf returns the client that sent a request; nil: one that has no bounds, because it is on this host
// and no principal.
func (s *Server) clientOf(r *request) *client {
	key := r.RemoteAddr
	var q Quota
	switch {
	case s.cfg.Principal != nil && r.principal != "":
		key = "principal " + r.principal
		if s.cfg.Quota != nil {
			q = s.cfg.Quota(r.principal)
		}
	case fromHere(r.Request):
		return nil
	default:
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			key = network(from.Addr()).String()
		}
	}
	return s.clients.get(key, q)
}

// network returns what counts as one address: an IPv6 host has 64 bits for itself.
func network(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// enter takes a slot for a request, in the limiter and in its client's part of it, and returns the function
// that gives both back.
func (s *Server) enter(r *request, l *limiter) (func(), error) {
	part := r.client.part(s, l)
	if !part.enter(r.Context()) {
		return nil, s.overQuota("concurrent requests of this kind that a client may have: %d", cap(part.slots))
	}
	if err := s.admit(r.Context(), l); err != nil {
		part.leave()
		return nil, err
	}
	return func() { l.leave(); part.leave() }, nil
}

// enterNow is enter for work that can also be done without another slot.
func (s *Server) enterNow(r *request, l *limiter) (func(), bool) {
	part := r.client.part(s, l)
	if !part.enterNow() {
		return nil, false
	}
	if !l.enterNow() {
		part.leave()
		return nil, false
	}
	return func() { l.leave(); part.leave() }, true
}

// checkQuota refuses what the client may not send now. Renewals and releases are never refused here.
func (s *Server) checkQuota(w http.ResponseWriter, r *request) error {
	c := r.client
	if c == nil {
		return nil
	}
	conns := r.conn.belongsTo(c)
	switch r.route.verb { //nolint:exhaustive // the others are requests for something new
	case Renew, Release, RenewMany, Status:
		return nil
	case Batch: // each acquire is checked
	default:
		if err := s.checkRate(r); err != nil {
			return err
		}
	}
	q, _ := c.bounds()
	if most := cmp.Or(q.Connections, (s.cfg.Limits.Connections+1)/2); conns > most {
		w.Header().Set("Connection", "close")
		return s.overQuota("connections that a client may have: %d", most)
	}
	return nil
}

// checkRate counts one request that asks for something new.
func (s *Server) checkRate(r *request) error {
	if err := s.checkBytes(r); err != nil {
		return err
	}
	q, pace := r.client.bounds()
	if pace == nil || pace.Allow() {
		return nil
	}
	return s.overQuota("requests that this client may send in a second: %d", q.Requests)
}

// checkHolds refuses an acquire if the client holds as many leases as it may. The acquire is in the
// limiter of acquires already, with the others in progress.
func (s *Server) checkHolds(r *request, k leaseKey) error {
	q, _ := r.client.bounds()
	if q.Locks == 0 || r.mark == "" {
		return nil
	}
	asking := len(r.client.part(s, s.limiters.acquires).slots)
	if s.registry.heldBy(r.mark)+asking <= q.Locks || s.registry.knows(k) {
		return nil
	}
	return s.overQuota("leases of this server that this client may hold: %d", q.Locks)
}

// overQuota counts the refusal of a client that has as many as it may have, and returns its error.
func (s *Server) overQuota(format string, most int) *overloadError {
	s.metrics.QuotaRejected(observe.QuotaClient)
	return &overloadError{status: http.StatusTooManyRequests, what: fmt.Sprintf(format, most)}
}

// belongsTo counts the connection as one of the client's, and returns their number.
func (c *limitedConn) belongsTo(to *client) int {
	if c == nil {
		return 0
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.client != to && !c.gone {
		c.client.connected(-1)
		c.client = to
		to.connected(1)
	}
	return to.connected(0)
}

func (c *client) connected(n int) int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns += n
	return c.conns
}
