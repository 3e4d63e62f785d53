package observe

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	opOpenSession = "open_session"
	opEndSession  = "end_session"
	opAcquire     = "acquire"
	opRenew       = "renew"
	opRelease     = "release"
	opInspect     = "inspect"
	opList        = "list"
	opBreak       = "break"
)

func ops() []string {
	return []string{opOpenSession, opEndSession, opAcquire, opRenew, opRelease, opInspect, opList, opBreak}
}

// The kinds of error that count as failures. An answer (held, lost, bad input, a context that
// ended) is not a failure.
const (
	kindUnavailable = "unavailable"
	kindClosed      = "closed"
	kindOther       = "other"
)

// Backend returns a backend that behaves like b and counts its calls. Watch, Close and Capabilities
// are not counted.
func (m *Metrics) Backend(b backend.Backend) backend.Backend { return &counted{Backend: b, m: m} }

type counted struct {
	backend.Backend
	m *Metrics
}

func (c *counted) note(ctx context.Context, op string, begun time.Time, err error) error {
	c.m.ops.WithLabelValues(op).Observe(time.Since(begun).Seconds())
	if kind := kindOf(ctx, err); kind != "" {
		c.m.failures.WithLabelValues(op, kind).Inc()
	}
	return err
}

func kindOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, backend.ErrUnavailable):
		return kindUnavailable
	case errors.Is(err, backend.ErrClosed):
		return kindClosed
	case ctx.Err() != nil:
		return "" // the caller ended it, for its own reason
	}
	for _, answer := range []error{
		backend.ErrHeld, backend.ErrLost, backend.ErrSessionLost, backend.ErrInvalid, backend.ErrUnsupported,
	} {
		if errors.Is(err, answer) {
			return ""
		}
	}
	return kindOther
}

func (c *counted) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	begun := time.Now()
	return c.note(ctx, opOpenSession, begun, c.Backend.OpenSession(ctx, req))
}

func (c *counted) EndSession(ctx context.Context, id backend.SessionID) error {
	begun := time.Now()
	return c.note(ctx, opEndSession, begun, c.Backend.EndSession(ctx, id))
}

func (c *counted) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	begun := time.Now()
	g, err := c.Backend.Acquire(ctx, req)
	return g, c.note(ctx, opAcquire, begun, err)
}

func (c *counted) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	begun := time.Now()
	r, err := c.Backend.Renew(ctx, req)
	return r, c.note(ctx, opRenew, begun, err)
}

func (c *counted) Release(ctx context.Context, req backend.ReleaseRequest) error {
	begun := time.Now()
	return c.note(ctx, opRelease, begun, c.Backend.Release(ctx, req))
}

func (c *counted) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	begun := time.Now()
	l, err := c.Backend.Inspect(ctx, name)
	return l, c.note(ctx, opInspect, begun, err)
}

func (c *counted) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	begun := time.Now()
	p, err := c.Backend.List(ctx, req)
	return p, c.note(ctx, opList, begun, err)
}

func (c *counted) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	begun := time.Now()
	r, err := c.Backend.Break(ctx, req)
	return r, c.note(ctx, opBreak, begun, err)
}
