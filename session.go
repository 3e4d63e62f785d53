package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// session is the client's session on the backend. All fields are guarded by Client.mu, except id
// and ttl, which never change.
type session struct {
	entry
	id       backend.SessionID
	ttl      time.Duration
	deadline clock.Instant // its end on this side, before it can end on the backend
	renewAt  clock.Instant
	renewing bool
	failures int // renewals that failed since the last success
	lastErr  error
	ended    bool
	leases   map[LeaseID]*hold // held or being acquired
	held     int               // the number of leases that are held
	watched  map[*hold]struct{}
}

// opening is a session that is being opened, shared by the calls that wait for it.
type opening struct {
	done chan struct{} // closed when sess and err are set
	sess *session
	err  error
}

// liveSession returns the session, and opens one first if there is none. Opening continues after
// ctx has ended, for the other callers.
func (c *Client) liveSession(ctx context.Context) (*session, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if c.sess != nil && c.clock.Now() < c.sess.deadline {
		defer c.mu.Unlock()
		return c.sess, nil
	}
	if c.opening == nil {
		c.opening = &opening{done: make(chan struct{})}
		c.work.Add(1)
		go c.openSession(c.opening)
	}
	op := c.opening
	c.mu.Unlock()
	select {
	case <-op.done:
		return op.sess, op.err
	case <-c.closing.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Client) openSession(op *opening) {
	defer c.work.Done()
	s := &session{
		id: backend.NewSessionID(), ttl: c.cfg.TTL,
		leases: make(map[LeaseID]*hold), watched: make(map[*hold]struct{}),
	}
	ctx, cancel := context.WithTimeout(c.background, min(c.cfg.TTL, c.cfg.Timeout))
	defer cancel()
	sent := c.clock.Now()
	err := c.b.OpenSession(ctx, backend.SessionRequest{ID: s.id, TTL: s.ttl, Lost: func(l backend.Loss) { c.tellLoss(s, l) }})

	if err != nil && ctx.Err() != nil && !isUnavailable(err) {
		err = &UnavailableError{Backend: c.caps.Name, Op: "open session", Err: err}
	}

	c.mu.Lock()
	c.opening = nil
	if err == nil && s.ended { // the loss was reported before the answer arrived
		err = backend.ErrSessionLost
	}
	if err == nil && c.closed {
		err = ErrClosed
		op.sess = s // for Close, which ends it
	}
	if err == nil {
		if c.sess != nil {
			c.loseSession(c.sess, CauseDeadline, c.sess.lastErr)
		}
		s.extend(c, sent)
		c.sess = s
		s.owner = s
		c.schedule(&s.entry, s.next())
		op.sess = s
	}
	op.err = err
	close(op.done)
	c.mu.Unlock()
}

// extend records that a request that left at sent was acknowledged.
func (s *session) extend(c *Client, sent clock.Instant) {
	s.deadline = max(s.deadline, sent+clock.Instant(s.ttl-clock.Drift(s.ttl)))
	s.renewAt = c.nextRenewal(sent, s.ttl)
	s.failures, s.lastErr = 0, nil
	for h := range s.watched {
		h.tellRenewed()
	}
}

// next returns when the renewer has to handle the session.
func (s *session) next() clock.Instant {
	if s.renewing {
		return s.deadline
	}
	return min(s.deadline, s.renewAt)
}

// wake does what is due at now. The renewer calls it with Client.mu held.
func (s *session) wake(c *Client, now clock.Instant, b *batch) {
	if s.ended {
		return
	}
	if now >= s.deadline {
		c.loseSession(s, CauseDeadline, s.lastErr)
		return
	}
	if !s.renewing && now >= s.renewAt {
		s.renewing = true
		b.session = s
	}
	c.schedule(&s.entry, s.next())
}

// loseSession ends the session on this side, with every lease of it. Client.mu is held.
func (c *Client) loseSession(s *session, cause Cause, err error) {
	if s.ended {
		return
	}
	s.ended = true
	c.unschedule(&s.entry)
	if c.sess == s {
		c.sess = nil
	}
	for h, interrupt := range c.waiting {
		if h.sess == s {
			interrupt(backend.ErrSessionLost)
		}
	}
	for _, h := range s.leases {
		if !h.timed { // only its place in the queue belonged to the session
			c.lose(h, cause, "", err)
		}
	}
}

// forget removes h from the leases of the session. Another hold may have replaced it there: see
// WithLease.
func (s *session) forget(h *hold) {
	if s.leases[h.id.ID] == h {
		delete(s.leases, h.id.ID)
	}
}

// lossNote is a loss that the backend reported.
type lossNote struct {
	session *session
	loss    backend.Loss
}

// tellLoss records a loss. The backend may call it with its own locks held, so it must not call the
// backend or run hooks.
func (c *Client) tellLoss(s *session, l backend.Loss) {
	c.mu.Lock()
	c.losses = append(c.losses, lossNote{s, l})
	c.mu.Unlock()
	c.wakeKeeper()
}

// actOnLosses applies the recorded losses. Client.mu is held.
func (c *Client) actOnLosses() {
	losses := c.losses
	c.losses = nil
	for _, n := range losses {
		c.applyLoss(n.session, n.loss)
	}
}

func (c *Client) applyLoss(s *session, l backend.Loss) {
	if l.Lease == "" {
		c.loseSession(s, l.Cause, nil)
		return
	}
	if h, ok := s.leases[l.Lease]; ok {
		again := h.held && h.late
		c.lose(h, l.Cause, l.Reason, nil)
		if again && !h.timed {
			// The lost lease may be the grant to an attempt whose answer was lost. Then the next
			// attempt was granted again, and the session would keep that lease for ever.
			c.settle(h.releaseRequest(true), h.keptBy(), h.life)
		}
	}
	for h := range c.timed { // several if the lease was acquired again: see WithLease
		if h.id.ID == l.Lease {
			c.lose(h, l.Cause, l.Reason, nil)
		}
	}
}

// sessionIsLost records that the backend answered ErrSessionLost.
func (c *Client) sessionIsLost(s *session) {
	c.mu.Lock()
	c.loseSession(s, CauseSession, nil)
	c.mu.Unlock()
}

// nextRenewal returns when to renew what was renewed at sent: after a third of the TTL, on a grid,
// so that leases of one TTL fall due together and share one request.
func (c *Client) nextRenewal(sent clock.Instant, ttl time.Duration) clock.Instant {
	step := clock.Instant(max(ttl/12, time.Millisecond))
	offset := clock.Instant(c.grid) % step
	return (sent+clock.Instant(ttl/3)-offset)/step*step + offset
}

// isUnavailable reports whether a retry may help.
func isUnavailable(err error) bool {
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrClosed)
}
