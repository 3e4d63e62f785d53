package holdfast

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// opening is a session that is being opened, shared by the calls that wait for it.
type opening struct {
	done chan struct{} // closed when sess and err are set
	sess *liveness.Session
	err  error
}

// liveSession returns the session, and opens one first if there is none. Opening continues after
// ctx has ended, for the other callers.
func (c *Client) liveSession(ctx context.Context) (*liveness.Session, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if c.sess != nil && c.clock.Now() < c.sess.Deadline() {
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
	s := liveness.NewSession(c.cfg.TTL)
	ctx, cancel := context.WithTimeout(c.background, min(c.cfg.TTL, c.cfg.Timeout))
	defer cancel()
	sent := c.clock.Now()
	err := c.b.OpenSession(ctx, backend.SessionRequest{ID: s.ID, TTL: s.TTL, Lost: func(l backend.Loss) { c.tellLoss(s, l) }})

	if err != nil && ctx.Err() != nil && !isUnavailable(err) {
		err = &UnavailableError{Backend: c.caps.Name, Op: "open session", Err: err}
	}

	c.mu.Lock()
	c.opening = nil
	if err == nil && s.Ended() { // the loss was reported before the answer arrived
		err = backend.ErrSessionLost
	}
	if err == nil && c.closed {
		err = ErrClosed
		op.sess = s // for Close, which ends it
	}
	if err == nil {
		if c.sess != nil {
			c.live.EndSession(c.sess, CauseDeadline, c.sess.LastErr())
		}
		c.live.Opened(s, sent)
		c.sess, op.sess = s, s
	}
	op.err = err
	close(op.done)
	c.mu.Unlock()
}

// lossNote is a loss that the backend reported.
type lossNote struct {
	session *liveness.Session
	loss    backend.Loss
}

// tellLoss records a loss. The backend may call it with its own locks held, so it must not call the
// backend or run hooks.
func (c *Client) tellLoss(s *liveness.Session, l backend.Loss) {
	c.mu.Lock()
	c.losses = append(c.losses, lossNote{s, l})
	c.mu.Unlock()
	c.wakeRenewer()
}

// actOnLosses applies the recorded losses. Client.mu is held.
func (c *Client) actOnLosses() {
	losses := c.losses
	c.losses = nil
	for _, n := range losses {
		c.live.Report(n.session, n.loss)
	}
}

// sessionIsLost records that the backend answered ErrSessionLost.
func (c *Client) sessionIsLost(s *liveness.Session) {
	c.mu.Lock()
	c.live.EndSession(s, CauseSession, nil)
	c.mu.Unlock()
}

// isUnavailable reports whether a retry may help.
func isUnavailable(err error) bool {
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrClosed)
}
