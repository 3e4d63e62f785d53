package holdfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Config configures a Client. The zero value is good.
type Config struct {
	// TTL is how long the backend keeps the client's session, and with it its
	// leases, without hearing from it; it is the default of timed leases too. A
	// holder that dies blocks the others for so long. Default: 30 s, or what the
	// backend's bounds allow. Optional.
	TTL time.Duration
	// Owner is told to people who look at a lock. Default: "host:pid". Optional.
	Owner string
	// Timeout is how long a call that does not wait for a lock goes on trying while
	// the backend is away. Its context may end it sooner. Default: 10 s. Optional.
	Timeout time.Duration
	// Logger gets what nobody is there to return an error to. Default: none.
	// Optional.
	Logger *slog.Logger
	// Events are hooks for metrics and tests. Optional.
	Events *Events
}

const (
	defaultTTL     = 30 * time.Second
	defaultTimeout = 10 * time.Second
)

// Client takes locks on one backend. Make one for a program and share it. All its
// methods may be called at once.
type Client struct {
	b     backend.Backend
	caps  backend.Capabilities
	cfg   Config
	clock clock

	background context.Context //nolint:containedctx // the life of the work that belongs to no call
	stop       context.CancelFunc
	closing    context.Context //nolint:containedctx // ends with ErrClosed when Close begins
	startClose context.CancelCauseFunc
	work       sync.WaitGroup // settlements and renewals under way
	kick       chan struct{}  // wakes the keeper; capacity 1
	kept       chan struct{}  // closed when the keeper has ended
	grid       time.Duration  // random part of the renewal times, so that clients do not beat together

	mu      sync.Mutex
	closed  bool
	sess    *session              // nil when there is none
	opening *opening              // nil when no session is being opened
	due     schedule              // what the keeper has to do, soonest first
	planned instant               // when the keeper wakes next
	losses  []lossNote            // told by the backend, not yet acted on
	timed   map[*hold]struct{}    // timed leases that are held
	waiting map[*hold]interrupter // acquisitions under way that can be interrupted
	notes   []note                // events to emit when mu is free
	warned  time.Time             // until when the log knows of a quarantine
}

// interrupter ends an acquisition that is under way.
type interrupter = context.CancelCauseFunc

// New makes a client of b. It sends nothing yet. Close the client before the
// backend; Close does not close b.
//
// A field of cfg that is out of bounds is an *InvalidError.
func New(b backend.Backend, cfg Config) (*Client, error) {
	if b == nil {
		return nil, fmt.Errorf("new client: %w", invalid("backend", "nil", "a backend"))
	}
	c := &Client{
		b: b, caps: b.Capabilities(), cfg: cfg, clock: newClock(),
		kick: make(chan struct{}, 1), kept: make(chan struct{}),
		timed: make(map[*hold]struct{}), waiting: make(map[*hold]interrupter),
	}
	if err := c.defaults(); err != nil {
		return nil, c.opErr("new client", "", err)
	}
	c.grid = rand.N(c.cfg.TTL)
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

// Capabilities says what the client's backend can do.
func (c *Client) Capabilities() backend.Capabilities { return c.caps }

// Stats counts what a client has.
type Stats struct {
	Held     int // leases, shared ones too
	Waiting  int // acquisitions under way
	Sessions int // 0 or 1
}

// Stats tells what the client has at the moment.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Held: len(c.timed), Waiting: len(c.waiting)}
	if c.sess != nil {
		s.Sessions = 1
		s.Held += c.sess.held
	}
	return s
}

// Close gives back every lock that the client renews, and ends its session. Their
// contexts end first, with CauseClosed. Leases taken with NoRenew, and those that
// AtLeast keeps, stay on the backend until their end. Acquisitions under way and later
// calls get ErrClosed.
//
// When ctx ends before the backend has answered, Close gives up and returns its cause;
// where the backend is away it gives up after some Config.Timeout, with ErrUnavailable.
// Then what was held is free when its TTL is over. Close waits for calls that are under
// way, each for a third of Config.Timeout at most, and for hooks. Closing again waits
// for the first Close.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opErr("close", "", c.closedBefore(ctx))
	}
	c.closed = true
	sess, opening := c.sess, c.opening
	var give []*hold
	for h := range c.timed {
		if h.ttl > 0 && time.Duration(c.clock.now()-h.since) >= h.floor {
			give = append(give, h)
		}
		c.lose(h, CauseClosed, "", nil)
	}
	if sess != nil {
		c.loseSession(sess, CauseClosed, nil)
	}
	for _, interrupt := range c.waiting {
		interrupt(ErrClosed)
	}
	events := c.takeEvents()
	c.mu.Unlock()
	c.startClose(ErrClosed)
	c.emit(events)

	err := c.giveBack(ctx, sess, opening, give)
	c.stop()
	c.work.Wait()
	<-c.kept
	return c.opErr("close", "", err)
}

// closedBefore waits for the Close that came first.
func (c *Client) closedBefore(ctx context.Context) error {
	select {
	case <-c.kept:
		return nil
	default:
	}
	select {
	case <-c.kept:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// giveBack returns everything to the backend and waits for what is being settled.
func (c *Client) giveBack(ctx context.Context, sess *session, op *opening, give []*hold) error {
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
	patience := time.NewTimer(c.cfg.Timeout + longestPause) // each is tried once more
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

// endAll ends the session and the leases. Where the backend does not answer for one of
// them it does not for the others.
func (c *Client) endAll(ctx context.Context, sess *session, give []*hold) error {
	var errs []error
	if sess != nil {
		err := c.retryWith(ctx, pause, func(ctx context.Context) error { return c.b.EndSession(ctx, sess.id) })
		errs = append(errs, err)
	}
	for _, h := range give {
		if err := errors.Join(errs...); isUnavailable(err) || ctx.Err() != nil {
			break
		}
		err := c.retryWith(ctx, pause, func(ctx context.Context) error { return c.b.Release(ctx, h.releaseRequest(true)) })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// log gives the logger, or one that drops everything.
func (c *Client) log() *slog.Logger {
	if c.cfg.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.cfg.Logger
}
