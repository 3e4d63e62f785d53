package holdfast

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// The renewer is one goroutine and one heap. It starts renewals and ends what was not renewed in
// time. It never waits for the backend: renewals run in goroutines of their own, while the
// deadlines keep counting.

// suspendTick is how often the renewer reads the clock while something is held. Timers stand still
// while a machine is suspended, so a deadline may have passed before its timer fires.
const suspendTick = 250 * time.Millisecond

// entry is a place in the renewer's schedule.
type entry struct {
	at    clock.Instant
	index int // in the heap, plus 1; 0 when it is not in the heap
	owner interface {
		wake(c *Client, now clock.Instant, b *batch)
	}
}

type schedule []*entry //nolint:recvcheck // package heap requires both kinds of receiver

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at < s[j].at }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	e := x.(*entry)
	*s = append(*s, e)
	e.index = len(*s)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	e := (*s)[len(*s)-1]
	(*s)[len(*s)-1] = nil
	*s = (*s)[:len(*s)-1]
	e.index = 0
	return e
}

// schedule adds e to the heap, or moves it. Client.mu is held.
func (c *Client) schedule(e *entry, at clock.Instant) {
	e.at = at
	if e.index == 0 {
		heap.Push(&c.due, e)
	} else {
		heap.Fix(&c.due, e.index-1)
	}
	if at < c.planned {
		c.wakeKeeper()
	}
}

// unschedule removes e from the heap. Client.mu is held.
func (c *Client) unschedule(e *entry) {
	if e.index > 0 {
		heap.Remove(&c.due, e.index-1)
	}
}

func (c *Client) wakeKeeper() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// batch is what one turn of the renewer found to renew.
type batch struct {
	session *session
	timed   []*flight
}

// keep runs the renewer.
func (c *Client) keep() {
	defer close(c.kept)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.background.Done():
			return
		case <-c.kick:
		case <-timer.C:
		}
		timer.Reset(c.turn())
	}
}

// turn does everything that is due and returns the time until the next turn.
func (c *Client) turn() time.Duration {
	var b batch
	c.mu.Lock()
	c.actOnLosses()
	now := c.clock.Now()
	for len(c.due) > 0 && c.due[0].at <= now {
		e := heap.Pop(&c.due).(*entry)
		e.owner.wake(c, now, &b)
	}
	idle := time.Hour
	if len(c.due) > 0 {
		idle = time.Duration(c.due[0].at - now)
		if c.clock.Jumps() {
			idle = min(idle, suspendTick)
		}
	}
	c.planned = now + clock.Instant(idle)
	if !c.closed {
		c.startRenewals(b)
	}
	c.mu.Unlock()
	return idle
}

// renewalsAtOnce bounds the concurrent requests where one request cannot name all leases.
const renewalsAtOnce = 4

// startRenewals sends the batch in as few requests as the backend allows. Client.mu is held.
func (c *Client) startRenewals(b batch) {
	if b.session == nil && len(b.timed) == 0 {
		return
	}
	size := len(b.timed)
	if c.caps.MaxRenew > 0 {
		size = min(size, c.caps.MaxRenew)
	}
	parts := make(chan batch, len(b.timed)/max(1, size)+2)
	first := batch{session: b.session, timed: b.timed[:size]}
	parts <- first
	for rest := b.timed[size:]; len(rest) > 0; {
		n := min(size, len(rest))
		parts <- batch{timed: rest[:n]}
		rest = rest[n:]
	}
	close(parts)
	for range min(renewalsAtOnce, len(parts)) {
		c.work.Go(func() {
			for p := range parts {
				c.renew(p)
			}
		})
	}
}

// renew sends one request and applies its answer.
func (c *Client) renew(b batch) {
	req := b.request()
	ctx, cancel := context.WithTimeout(c.background, c.patience(b))
	defer cancel()
	sent := c.clock.Now()
	res, err := c.b.Renew(ctx, req)
	if err == nil && len(res.Leases) != len(req.Leases) {
		err = &UnavailableError{Backend: c.caps.Name, Op: "renew", Err: errAnswer}
	}
	now := c.clock.Now()

	c.mu.Lock()
	if b.session != nil {
		c.sessionRenewed(b.session, sent, now, res, err)
	}
	for i, f := range b.timed {
		var r backend.Renewal
		if err == nil {
			r = res.Leases[i]
		}
		f.hold.renewing = false
		c.timedRenewed(f, sent, now, r, err)
	}
	c.mu.Unlock()
}

var errAnswer = errors.New("the answer does not fit the question")

// patience returns how long to wait for the answer: a fifth of the TTL, and at most half of the
// time left, so that a request without an answer leaves time for others.
func (c *Client) patience(b batch) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	d := maxPatience
	if s := b.session; s != nil {
		d = min(s.ttl/5, time.Duration(s.deadline-now)/2)
	}
	for _, f := range b.timed {
		d = min(d, f.ttl/5, time.Duration(f.hold.deadline-now)/2)
	}
	return max(d, 10*time.Millisecond)
}

const maxPatience = time.Minute

// request builds the request for the batch.
func (b batch) request() backend.RenewRequest {
	var req backend.RenewRequest
	if b.session != nil {
		req.Session = b.session.id
	}
	req.Leases = make([]backend.TimedRenewal, len(b.timed))
	for i, f := range b.timed {
		req.Leases[i] = backend.TimedRenewal{Name: f.hold.id.Name, Lease: f.hold.id.ID, TTL: f.ttl}
	}
	return req
}

// sessionRenewed applies the answer for the session. Client.mu is held.
func (c *Client) sessionRenewed(s *session, sent, now clock.Instant, res backend.RenewResult, err error) {
	s.renewing = false
	if s.ended {
		return
	}
	hook(&c.hooks, c.background, c.hooks.Renewed, RenewedEvent{Leases: s.held, Margin: time.Duration(s.deadline - now), Took: time.Duration(now - sent), Err: err})
	switch {
	case err != nil:
		s.failures++
		s.lastErr = err
		s.renewAt = now + retryIn(s.ttl, s.deadline-now, s.failures)
		if s.failures == 1 && s.held > 0 {
			hook(&c.hooks, c.background, c.hooks.AtRisk, AtRiskEvent{Leases: s.held, Left: time.Duration(s.deadline - now), Err: err})
		}
	case res.SessionLost:
		c.loseSession(s, CauseSession, nil)
		return
	case now >= s.deadline:
		// Too late: a caller that checked in the meantime was told that it is lost.
		c.loseSession(s, CauseDeadline, s.lastErr)
		return
	default:
		s.extend(c, sent)
		for _, l := range res.Lost {
			c.applyLoss(s, l)
		}
	}
	c.schedule(&s.entry, s.next())
}

// retryIn returns how long to wait after a failed renewal, with jitter. left is the time until the
// deadline.
func retryIn(ttl time.Duration, left clock.Instant, failures int) clock.Instant {
	d := max(0, min(ttl/60<<min(failures, 4), ttl/8, time.Duration(left)/4))
	return clock.Instant(max(d/2+rand.N(d/2+1), time.Millisecond))
}
