package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// The renewer is one goroutine. It sends the renewals that package liveness asks for, and has that end
// what was not renewed in time. It never waits for the backend: renewals run in goroutines of their
// own, while the deadlines keep counting.

const (
	// suspendTick is how often the renewer reads the clock while something is held. Timers stand
	// still while a machine is suspended, so a deadline may have passed before its timer fires.
	suspendTick = 250 * time.Millisecond
	// renewalsAtOnce bounds the concurrent requests where one request cannot name all leases.
	renewalsAtOnce = 4
)

// observer is what package liveness reports to, with Client.mu held.
type observer struct{ c *Client }

// Wake implements liveness.Observer.
func (o observer) Wake() { o.c.wakeRenewer() }

// Ended implements liveness.Observer.
func (o observer) Ended(s *liveness.Session) {
	if o.c.sess == s {
		o.c.sess = nil
	}
	for h, interrupt := range o.c.waiting {
		if h.live.Session == s {
			interrupt(backend.ErrSessionLost)
		}
	}
}

// Renewed implements liveness.Observer.
func (o observer) Renewed(leases int, margin, took time.Duration, err error) {
	hook(o.c.background, &o.c.hooks, o.c.hooks.Renewed, RenewedEvent{Leases: leases, Margin: margin, Took: took, Err: err})
}

// AtRisk implements liveness.Observer.
func (o observer) AtRisk(leases int, left time.Duration, err error) {
	hook(o.c.background, &o.c.hooks, o.c.hooks.AtRisk, AtRiskEvent{Leases: leases, Left: left, Err: err})
}

func (c *Client) wakeRenewer() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	longest := time.Hour
	if c.clock.Jumps() {
		longest = suspendTick
	}
	c.actOnLosses()
	due, idle := c.live.Step(c.clock.Now(), longest)
	if !c.closed {
		c.startRenewals(due)
	}
	return idle
}

// startRenewals sends what is due in as few requests as the backend allows. Client.mu is held.
func (c *Client) startRenewals(due liveness.Due) {
	all := due.Parts(c.caps.MaxRenew)
	parts := make(chan liveness.Due, len(all))
	for _, p := range all {
		parts <- p
	}
	close(parts)
	for range min(renewalsAtOnce, len(all)) {
		c.work.Go(func() {
			for p := range parts {
				c.renew(p)
			}
		})
	}
}

// renew sends one request and applies its answer.
func (c *Client) renew(due liveness.Due) {
	req := due.Request()
	c.mu.Lock()
	patience := due.Patience(c.clock.Now())
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.background, patience)
	defer cancel()
	sent := c.clock.Now()
	res, err := c.sendRenewal(ctx, req)
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.Answered(due, sent, now, res, err)
}

var errAnswer = errors.New("the answer does not fit the question")

// sendRenewal sends the request and checks that its answer is for the same leases.
func (c *Client) sendRenewal(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	res, err := c.b.Renew(ctx, req)
	if err == nil && len(res.Leases) != len(req.Leases) {
		err = &UnavailableError{Backend: c.caps.Name, Op: "renew", Err: errAnswer}
	}
	return res, err
}
