package holdfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Config configures a Client. The zero value is ready to use.
type Config struct {
	// TTL is how long the backend keeps the client's session, and the leases of that session,
	// without a renewal. It is also the default TTL of timed leases. When a holder dies, its locks
	// stay held for this long. Default: 30 s, or the nearest value within the backend's bounds.
	// Optional.
	TTL time.Duration
	// Owner identifies the client to people who inspect a lock. Default: "host:pid". Optional.
	Owner string
	// Timeout is how long a call that does not wait for a lock retries while the backend is
	// unavailable. The call's context may end it sooner. Default: 10 s. Optional.
	Timeout time.Duration
	// Logger receives problems that no call returns, such as those of background work. Default:
	// none. Optional.
	Logger *slog.Logger
	// Hooks are called when something happens to the locks of this client. Optional.
	Hooks *Hooks
}

const (
	defaultTTL     = 30 * time.Second
	defaultTimeout = 10 * time.Second
)

// Client acquires locks on one backend. A program normally creates one Client and shares it. All
// its methods are safe for concurrent use.
type Client struct {
	b     backend.Backend
	caps  backend.Capabilities
	cfg   Config
	clock clock.Clock

	background context.Context //nolint:containedctx // the lifetime of the work that belongs to no call
	stop       context.CancelFunc
	closing    context.Context //nolint:containedctx // ends with ErrClosed when Close begins
	startClose context.CancelCauseFunc
	work       sync.WaitGroup // settlements and renewals in progress
	second     lane           // the second attempts of settlements
	further    lane           // the later ones: apart, because many of them may get no answer
	kick       chan struct{}  // wakes the renewer; capacity 1
	kept       chan struct{}  // closed when the renewer has ended
	hooks      hookQueue

	mu      sync.Mutex
	closed  bool
	live    *liveness.Machine
	sess    *liveness.Session     // nil when there is none
	opening *opening              // nil when no session is being opened
	losses  []lossNote            // reported by the backend, not yet applied
	waiting map[*hold]interrupter // acquisitions in progress that can be interrupted
	warned  time.Time             // the quarantine has been logged up to this time
}

// interrupter ends an acquisition in progress.
type interrupter = context.CancelCauseFunc

// New returns a client of b. It sends nothing. Close the client before the backend: Close does not
// close b.
//
// A field of cfg that is out of bounds is an *InvalidError.
func New(b backend.Backend, cfg Config) (*Client, error) {
	if b == nil {
		return nil, fmt.Errorf("new client: %w", invalid("backend", "nil", "a backend"))
	}
	c := &Client{
		b: b, caps: b.Capabilities(), cfg: cfg, clock: clock.New(),
		kick: make(chan struct{}, 1), kept: make(chan struct{}), second: newLane(), further: newLane(),
		waiting: make(map[*hold]interrupter),
	}
	if err := c.defaults(); err != nil {
		return nil, c.opErr("new client", "", err)
	}
	c.live = liveness.New(observer{c}, c.cfg.TTL)
	c.hooks.init(cfg.Hooks)
	c.background, c.stop = context.WithCancel(context.Background())
	c.closing, c.startClose = context.WithCancelCause(context.Background())
	go c.keep()
	return c, nil
}

func (c *Client) defaults() error {
	if c.cfg.TTL == 0 {
		c.cfg.TTL = min(max(defaultTTL, c.caps.MinTTL), c.caps.MaxTTL)
	}
	if err := c.caps.ValidateTTL(c.cfg.TTL); err != nil {
		return err
	}
	if c.cfg.Timeout < 0 {
		return invalid("timeout", c.cfg.Timeout.String(), "above 0")
	}
	if c.cfg.Timeout == 0 {
		c.cfg.Timeout = defaultTimeout
	}
	if c.cfg.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "localhost"
		}
		c.cfg.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	return backend.ValidateText("owner", c.cfg.Owner, backend.MaxOwnerLen)
}

// Capabilities returns the capabilities of the client's backend.
func (c *Client) Capabilities() backend.Capabilities { return c.caps }

// Stats counts the leases, acquisitions and sessions of a client.
type Stats struct {
	Held     int // leases, including shared ones
	Waiting  int // acquisitions in progress
	Sessions int // 0 or 1
	// DroppedHooks counts the hooks that were not called because too many were waiting.
	DroppedHooks uint64
}

// Stats returns the client's current counts.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Held: c.live.TimedCount(), Waiting: len(c.waiting), DroppedHooks: c.hooks.lost()}
	if c.sess != nil {
		s.Sessions = 1
		s.Held += c.sess.Held()
	}
	return s
}

// Close releases every lock that the client renews and ends its session. The contexts of the locks
// end first, with CauseClosed. Leases acquired with NoRenew, and those that AtLeast keeps, stay on
// the backend until they end. Acquisitions in progress and later calls return ErrClosed.
//
// If ctx ends before the backend has answered, Close returns the cause of ctx. If the backend is
// unavailable, Close returns ErrUnavailable within a few times Config.Timeout. In both cases a lock
// that was held becomes free when its TTL has elapsed. Close waits for calls in progress, each for
// a third of Config.Timeout at most, and for hooks. A second Close waits for the first.
func (c *Client) Close(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return c.opErr("close", "", err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opErr("close", "", c.closedBefore(ctx))
	}
	c.closed = true
	sess, opening := c.sess, c.opening
	var give []*hold
	c.live.Timed(func(l *liveness.Lease) {
		h := l.Holder.(*hold)
		if l.TTL > 0 && h.stays() <= 0 {
			give = append(give, h)
		}
		c.live.Lose(l, CauseClosed, "", nil)
	})
	if sess != nil {
		c.live.EndSession(sess, CauseClosed, nil)
	}
	for _, interrupt := range c.waiting {
		interrupt(ErrClosed)
	}
	c.mu.Unlock()
	c.startClose(ErrClosed)

	err := c.giveBack(ctx, sess, opening, give)
	c.stop()
	c.work.Wait()
	<-c.kept
	return c.opErr("close", "", errors.Join(err, c.hooks.finish(ctx)))
}

// closedBefore waits for the first Close to finish.
func (c *Client) closedBefore(ctx context.Context) error {
	select {
	case <-c.kept:
		return c.hooks.finish(ctx)
	default:
	}
	select {
	case <-c.kept:
		return c.hooks.finish(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// giveBack releases everything on the backend and waits for the settlements in progress.
func (c *Client) giveBack(ctx context.Context, sess *liveness.Session, op *opening, give []*hold) error {
	if op != nil {
		select {
		case <-op.done:
			sess = op.sess
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	away := c.endAll(ctx, sess, give)
	settled := make(chan struct{})
	go func() { c.work.Wait(); close(settled) }()
	patience := time.NewTimer(c.cfg.Timeout + longestPause) // time for one more attempt of those that have a turn
	defer patience.Stop()
	select {
	case <-settled:
		return away
	case <-ctx.Done():
		return errors.Join(away, context.Cause(ctx))
	case <-patience.C:
		err := &UnavailableError{Backend: c.caps.Name, Op: "close", MayHold: true, Err: context.DeadlineExceeded}
		return errors.Join(away, err)
	}
}

// endAll ends the session and the leases. It stops at the first unavailable answer: a backend that
// does not answer for one lease does not answer for the others.
func (c *Client) endAll(ctx context.Context, sess *liveness.Session, give []*hold) error {
	var errs []error
	if sess != nil {
		err := c.retryWith(ctx, retry.Pause, func(ctx context.Context) error { return c.b.EndSession(ctx, sess.ID) })
		errs = append(errs, err)
	}
	for _, h := range give {
		if err := errors.Join(errs...); isUnavailable(err) || ctx.Err() != nil {
			break
		}
		err := c.retryWith(ctx, retry.Pause, func(ctx context.Context) error { return c.b.Release(ctx, h.releaseRequest(true)) })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// log returns the configured logger, or one that discards everything.
func (c *Client) log() *slog.Logger {
	if c.cfg.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.cfg.Logger
}
