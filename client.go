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
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
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
	// unavailable. The call's context may end it sooner. It is also how long a call
	// without Wait waits for a backend that has never answered this client. Default: 10 s. Optional.
	Timeout time.Duration
	// Logger receives problems that no call returns, such as those of background work, and why a
	// call that waits gets no lock: the store is unavailable, or in quarantine. Default:
	// slog.Default(). slog.New(slog.DiscardHandler) is silent. Optional.
	Logger *slog.Logger
	// Hooks are called when something happens to the locks of this client: see [JoinHooks]. Optional.
	Hooks *Hooks
	// CloseBackend: Close closes the backend too. Default: false. Optional.
	CloseBackend bool
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
	agent *acquire.Agent
	sess  *acquire.Session // of all leases that are not timed, and of all places in queues
	hooks hookQueue
	// Parts of agent. mu guards live, and the holds and Locks.
	mu    *sync.Mutex
	live  *liveness.Machine
	clock *clock.Clock
}

// New returns a client of b. It sends nothing. Close the client before the backend, or let it close b:
// Config.CloseBackend.
//
// A field of cfg that is out of bounds is an *InvalidError.
func New(b backend.Backend, cfg Config) (*Client, error) {
	if b == nil {
		return nil, fmt.Errorf("new client: %w", invalid("backend", "nil", "a backend"))
	}
	c := &Client{b: b, caps: b.Capabilities(), cfg: cfg}
	if err := c.defaults(); err != nil {
		return nil, c.opErr("new client", "", err)
	}
	c.hooks.init(cfg.Hooks)
	c.agent = acquire.New(acquire.Config{Backend: b, TTL: c.cfg.TTL, Timeout: c.cfg.Timeout, Logger: c.cfg.Logger, Observer: observer{c}})
	c.sess = c.agent.NewSession()
	c.mu, c.live, c.clock = &c.agent.Mu, c.agent.Live, &c.agent.Clock
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
	if c.cfg.Logger == nil {
		c.cfg.Logger = slog.Default()
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
	s := Stats{Held: c.live.TimedCount(), Waiting: c.agent.Waiting(), Sessions: c.agent.Sessions(), DroppedHooks: c.hooks.lost()}
	if live := c.sess.Current(); live != nil {
		s.Held += live.Held()
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
	err := errors.Join(c.agent.Close(ctx, c.sess, c.endTimed), c.hooks.finish(ctx))
	if c.cfg.CloseBackend {
		err = errors.Join(err, c.b.Close())
	}
	return c.opErr("close", "", err)
}

// endTimed ends the timed leases on this side, and returns what releases those that are to be released.
// Client.mu is held.
func (c *Client) endTimed() []backend.ReleaseRequest {
	var releases []backend.ReleaseRequest
	c.live.Timed(func(l *liveness.Lease) {
		h := l.Holder.(*hold)
		if l.TTL > 0 && h.stays() <= 0 {
			releases = append(releases, h.releaseRequest(true))
		}
		c.live.Lose(l, CauseClosed, "", nil)
	})
	return releases
}

const levelWarn = slog.LevelWarn

func attrName(name string) slog.Attr { return slog.String("lock", name) }

func attrError(err error) slog.Attr { return slog.String("error", err.Error()) }

// observer is what the agent reports to, with Client.mu held.
type observer struct{ c *Client }

// Renewed implements acquire.Observer.
func (o observer) Renewed(leases int, margin, took time.Duration, err error) {
	hook(o.c.agent.Background(), &o.c.hooks, o.c.hooks.Renewed, RenewedEvent{Leases: leases, Margin: margin, Took: took, Err: err})
}

// AtRisk implements acquire.Observer.
func (o observer) AtRisk(leases int, left time.Duration, err error) {
	hook(o.c.agent.Background(), &o.c.hooks, o.c.hooks.AtRisk, AtRiskEvent{Leases: leases, Left: left, Err: err})
}

// Ambiguous implements acquire.Observer.
func (o observer) Ambiguous(ctx context.Context, op string) {
	hook(ctx, &o.c.hooks, o.c.hooks.Ambiguous, op)
}
