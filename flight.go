package holdfast

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// flight is a renewal of a timed lease that is in progress. Renewals may ask for different TTLs.
// They may reach the backend in another order than they were sent in, or after the client has
// stopped waiting for their answer. Then a renewal with a shorter TTL silently shortens the lease
// of one with a longer TTL. All fields are guarded by Client.mu.
type flight struct {
	hold *hold
	ttl  time.Duration
	// least is the TTL that the lease has when this renewal is answered, in whatever order they
	// arrive: the shortest of this TTL and those of all renewals that may reach the backend after
	// it.
	least time.Duration
}

// takeOff records that a renewal is about to be sent. From now on the lease may have no more time
// than that renewal asks for, whether it is answered or not. Client.mu is held.
func (h *hold) takeOff(now clock.Instant, ttl time.Duration) *flight {
	h.deadline = min(h.deadline, now+clock.Instant(ttl-clock.Drift(ttl)))
	h.life = max(h.life, ttl)
	h.renewAt = min(h.renewAt, h.c.nextRenewal(now, ttl))
	f := &flight{hold: h, ttl: ttl, least: ttl}
	if h.doubt > 0 {
		f.least = min(f.least, h.doubt)
	}
	for _, other := range h.flights {
		f.least = min(f.least, other.ttl)
		other.least = min(other.least, ttl)
	}
	h.flights = append(h.flights, f)
	return f
}

// land records that the renewal was answered or given up. Client.mu is held.
func (f *flight) land(err error) {
	h := f.hold
	h.flights = slices.DeleteFunc(h.flights, func(other *flight) bool { return other == f })
	if err != nil && (h.doubt == 0 || f.ttl < h.doubt) {
		h.doubt = f.ttl
	}
}

// timedRenewed applies the answer to one renewal. Client.mu is held.
func (c *Client) timedRenewed(f *flight, sent, now clock.Instant, r backend.Renewal, err error) {
	h := f.hold
	if err == nil {
		err = r.Err
	}
	f.land(err)
	if !h.held {
		return
	}
	hook(&c.hooks, c.background, c.hooks.Renewed, RenewedEvent{Leases: 1, Margin: time.Duration(h.deadline - now), Took: time.Duration(now - sent), Err: err})
	switch {
	case errors.Is(err, ErrLost):
		c.lose(h, CauseGone, "", nil)
		return
	case err != nil:
		h.failures++
		h.lastErr = err
		h.renewAt = now + retryIn(h.ttl, h.deadline-now, h.failures)
		if h.failures == 1 {
			hook(&c.hooks, c.background, c.hooks.AtRisk, AtRiskEvent{Leases: 1, Left: time.Duration(h.deadline - now), Err: err})
		}
	case now >= h.deadline:
		c.lose(h, CauseDeadline, "", h.lastErr)
		return
	default:
		h.extend(sent, min(r.Left, f.least))
	}
	c.reschedule(h)
}
