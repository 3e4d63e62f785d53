package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/seqlock"
	"github.com/holdfast-io/holdfast/internal/sessions"
)

const name = "zookeeper"

// Config names the ensemble, and describes what it allows.
type Config struct {
	// Servers are the addresses, "host:port"; the default port is 2181. All must belong to one
	// ensemble. Required.
	Servers []string
	// Path is the node below which everything is kept. It is made if it does not exist. Default:
	// "/holdfast". Optional.
	Path string
	// User and Password authenticate with the scheme digest; nodes are then made for that user
	// only. Default: none, and every client has all permissions. Optional.
	User, Password string
	// Tick is the ensemble's tickTime. A session lives for its TTL and one and a half ticks,
	// because the servers tell each other only that often which sessions are alive. 100 ms to 1
	// min. Default: 2 s, as ZooKeeper's own. Optional.
	Tick time.Duration
	// MaxSession is the ensemble's maxSessionTimeout. Default: 20 ticks, as ZooKeeper's
	// own. Optional.
	MaxSession time.Duration
	// TLS is for connections with TLS. An empty ServerName stands for the name in Servers. Default: none.
	// Optional.
	TLS *tls.Config
	// Dial makes the connections, as through a proxy. It replaces TLS. Default: TCP. Optional.
	Dial func(network, address string, timeout time.Duration) (net.Conn, error)
	// Logger receives what the client library logs, at level Debug. Default: slog.Default(). Optional.
	Logger *slog.Logger

	lookup func(ctx context.Context, host string) ([]string, error) // the resolver, except in tests
}

const (
	defaultPort = "2181"
	defaultPath = "/holdfast"
	defaultTick = 2 * time.Second
	minTick     = 100 * time.Millisecond
	maxTick     = time.Minute
	maxTicks    = 20 // of a session, by default
	minTTL      = time.Second
	maxTTL      = 24 * time.Hour
)

// margin is how much longer than its TTL a session is requested to live. The server that a session
// talks to reports to the leader every half tick that the session is alive, and may die before it
// has reported the request that was answered last. Every session sends something every half tick,
// so what the leader knows is at most one tick older than what the client knows; half a tick more
// is for the way.
func (c *Config) margin() time.Duration { return c.Tick + c.Tick/2 }

// dial connects to an address of the server with that name.
func (c *Config) dial(network, address, server string, timeout time.Duration) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial(network, address, timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if c.TLS == nil {
		return new(net.Dialer).DialContext(ctx, network, address) //nolint:wrapcheck // the library reports it
	}
	conf := c.TLS.Clone()
	if conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(server)
	}
	return (&tls.Dialer{Config: conf}).DialContext(ctx, network, address) //nolint:wrapcheck // as above
}

func (c *Config) acl() []zk.ACL {
	if c.User != "" {
		return zk.AuthACL(zk.PermAll)
	}
	return zk.WorldACL(zk.PermAll)
}

func (c *Config) withDefaults() error {
	if len(c.Servers) == 0 {
		return &backend.InvalidError{Field: "servers", Value: "[]", Bound: "at least one address"}
	}
	servers := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		var ok bool
		if servers[i], ok = backend.Endpoint(s, defaultPort); !ok {
			return &backend.InvalidError{Field: "servers", Value: strconv.Quote(s), Bound: `like "host:2181"`}
		}
	}
	c.Servers = servers
	if c.Path == "" {
		c.Path = defaultPath
	}
	if err := validatePath(c.Path); err != nil {
		return err
	}
	if c.Tick == 0 {
		c.Tick = defaultTick
	}
	if c.Tick < minTick || c.Tick > maxTick {
		return &backend.InvalidError{Field: "tick", Value: c.Tick.String(), Bound: minTick.String() + " to " + maxTick.String()}
	}
	if c.MaxSession == 0 {
		c.MaxSession = maxTicks * c.Tick
	}
	if least := minTTL + c.margin(); c.MaxSession < least {
		return &backend.InvalidError{Field: "max_session", Value: c.MaxSession.String(), Bound: least.String() + " or more"}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.lookup == nil {
		c.lookup = net.DefaultResolver.LookupHost
	}
	return nil
}

// validatePath checks a path of plain segments.
func validatePath(p string) error {
	below, ok := strings.CutPrefix(p, "/")
	if len(p) > backend.MaxNameLen || !ok || strings.HasPrefix(p, "/zookeeper") || !connect.IsPath(below) {
		return &backend.InvalidError{Field: "path", Value: strconv.Quote(p), Bound: `like "/team/locks", of letters, digits and -_.:@=+,`}
	}
	return nil
}

// Backend keeps leases in ZooKeeper. It implements backend.Backend. Its methods are safe for
// concurrent use. Make it with New or Open.
type Backend struct {
	verbs // of an engine of seqlock

	cfg  Config
	caps backend.Capabilities

	made *lockstate.Ended[string] // locks whose containers exist, by path: see collected

	sessions *sessions.Sessions[*session]

	closing sync.WaitGroup // connections that are being closed

	mu      sync.Mutex // guards the fields below
	control *link      // for what belongs to no session; made at its first use
	clock   struct {   // of the ensemble's leader, for people
		ahead time.Duration // of the wall clock here
		at    time.Time     // when it was seen
	}
}

// verbs are the calls of backend.Backend.
type verbs = lockstate.Verbs

// store implements seqlock.Store.
type store struct{ *Backend }

var _ backend.Backend = (*Backend)(nil)

// New makes a backend on an ensemble. It sends nothing yet.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(cfg Config) (*Backend, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	b := &Backend{
		cfg: cfg, made: lockstate.NewEnded[string](collected),
		caps: backend.Capabilities{
			Name: name, Sessions: true, Bound: true, Shared: true, Permits: true, FIFO: true, Push: true, LossPush: true,
			Durable: true, TokenKind: "revision",
			MinTTL: minTTL, MaxTTL: min(maxTTL, (cfg.MaxSession - cfg.margin()).Truncate(time.Second)),
			// The ensemble checks its sessions once a tick, in whole ticks.
			ExpiryLag: cfg.margin() + 2*cfg.Tick,
		},
	}
	engine := seqlock.NewEngine(sessions.Config[*session]{Caps: b.caps, New: b.newSession, Fail: b.fail}, store{b})
	b.verbs, b.sessions = engine, engine.Sessions
	return b, nil
}

// Capabilities returns what ZooKeeper can do.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// Close ends the sessions that were opened here, with their leases, the connections and the
// goroutines. It takes at most three seconds if the ensemble is unreachable; then the sessions end
// when they expire. A second Close does nothing.
func (b *Backend) Close() error {
	var all sync.WaitGroup
	all.Go(b.sessions.Close)
	<-b.sessions.Base().Done() // no link is made from here on
	b.mu.Lock()
	b.dropControl()
	b.mu.Unlock()
	b.closing.Wait()
	all.Wait()
	return nil
}

// dropControl closes the connection for what belongs to no session, in the background. mu is held.
func (b *Backend) dropControl() {
	if l := b.control; l != nil {
		b.closing.Go(func() { l.close() })
		b.control = nil
	}
}

// controlLink returns the connection for what belongs to no session.
func (b *Backend) controlLink(ctx context.Context) (*link, error) {
	b.mu.Lock()
	if b.sessions.Base().Err() != nil {
		b.mu.Unlock()
		return nil, backend.ErrClosed
	}
	if b.control != nil && b.control.hasEnded() {
		b.dropControl()
	}
	if b.control == nil {
		timeout := min(b.cfg.MaxSession, 5*b.cfg.Tick) //nolint:mnd // lost servers are noticed within half of that
		l, err := newLink(&b.cfg, timeout, timeout)
		if err != nil {
			b.mu.Unlock()
			return nil, err
		}
		b.control = l
	}
	l := b.control
	b.mu.Unlock()
	if err := l.await(ctx); err != nil {
		return nil, &unsent{err}
	}
	return l, nil
}

// The nodes.
func (b *Backend) locksPath() string { return b.cfg.Path + "/locks" }

func (b *Backend) lockPath(lock string) string {
	return b.locksPath() + "/" + backend.EscapeSegment(lock)
}

func (b *Backend) sessionPath(id backend.SessionID) string {
	return b.cfg.Path + "/sessions/" + string(id)
}

func (b *Backend) noticePath(id backend.SessionID) string {
	return b.cfg.Path + "/notices/" + string(id)
}

// makeNodes makes the nodes at and above the base path and those directly below it, where they do
// not exist.
func (b *Backend) makeNodes(ctx context.Context, l *link) error {
	var paths []string
	for i, c := range b.cfg.Path {
		if c == '/' && i > 0 {
			paths = append(paths, b.cfg.Path[:i])
		}
	}
	paths = append(paths, b.cfg.Path, b.locksPath(), b.cfg.Path+"/sessions", b.cfg.Path+"/notices")
	_, err := call(ctx, l, func() (struct{}, error) {
		for _, p := range paths {
			there, _, err := l.conn.Exists(p)
			if err == nil && !there {
				_, err = l.conn.Create(p, nil, 0, b.cfg.acl())
			}
			if err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}
