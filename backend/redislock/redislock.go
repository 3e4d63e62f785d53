package redislock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Bounds and defaults.
const (
	// MinTTL and MaxTTL bound the TTL of sessions and of timed leases.
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
	// DefaultPrefix begins the names of all keys and channels.
	DefaultPrefix = "hf"
	// DefaultQuarantine is the default of Config.Quarantine.
	DefaultQuarantine = 30 * time.Second
	// DefaultRequestTimeout is the default of Config.RequestTimeout.
	DefaultRequestTimeout = 3 * time.Second

	backendName = "redis"
	expiryLag   = time.Second
)

// NoQuarantine turns the quarantine off. It is for the tests of a program, whose server was
// just started and holds nothing: see Config.Quarantine and the example "Testing".
const NoQuarantine time.Duration = -1

// Config configures a Backend.
type Config struct {
	// Prefix begins the names of all keys and channels, inside a hash tag: "{hf0}:...".
	// Backends with different prefixes do not see each other. 1 to 32 characters of a-z A-Z
	// 0-9 _ -. Default: DefaultPrefix. Optional.
	Prefix string
	// RequestTimeout bounds every request, so that a connection that never answers blocks no
	// call for longer. Default: DefaultRequestTimeout. Optional.
	RequestTimeout time.Duration
	// Quarantine is the time for which a server that lost its data grants nothing. It is
	// extended to the longest TTL that this Backend has used or seen in use. NoQuarantine, or
	// any negative value, turns it off, for a server that is known to be new and for tests:
	// after a loss of data a lock can then be granted while a holder from before still relies
	// on it. Default: DefaultQuarantine. Optional.
	Quarantine time.Duration
	// Replicas is the number of replicas that must have a grant, a renewal or a release
	// before it counts (WAIT). Without so many nothing is granted. 0 to 16. Default: 0, none.
	// Optional.
	Replicas int
	// Logger receives which settings of the server end leases early. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// Backend keeps leases on one Redis server. Create it with New or Open.
type Backend struct {
	cfg     Config
	caps    backend.Capabilities
	link    transport
	engine  *engine
	tag     string          // "{hf0}:"
	channel string          // of this Backend
	base    context.Context //nolint:containedctx // the life of the value: ends with Close
	cancel  context.CancelFunc
	work    sync.WaitGroup
	closing sync.Once
	jitter  time.Duration // see margin

	mu           sync.Mutex
	closed       bool
	subscription *subscription // nil until the first subscription is needed
	sessions     map[backend.SessionID]*session
	final        lockstate.Losses                    // has a mutex of its own
	gone         *lockstate.Ended[backend.SessionID] // were lost with the data; has a mutex of its own
	waiting      map[backend.LeaseID][]*waiter       // more than one where the same acquire was called again
	doubts       map[backend.LeaseID]time.Time       // until when they are kept: see doubt
	longest      int64                               // ms: the longest TTL that this Backend has used, or seen in use
	synced       string                              // see syncedRun; as it was when the Backend was created
}

var _ backend.Backend = (*Backend)(nil)

// New returns a Backend on the server, or the Cluster, that the client is connected to. The
// caller keeps the client: Close does not close it. The client must not be one that sends
// commands to replicas. Its Dialer.Timeout and ConnWriteTimeout should be seconds, so that
// connections that never answer are detected in time. Package goredis is for clients of
// go-redis.
//
// New sends the server a few requests, each bounded by Config.RequestTimeout. The error is
// *backend.InvalidError for a bad Config, else *backend.UnavailableError.
func New(client rueidis.Client, cfg Config) (*Backend, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if client == nil {
		return nil, &backend.InvalidError{Field: "client", Value: "nil", Bound: "a client of rueidis"}
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if client.Mode() == rueidis.ClientModeCluster {
		return newBackend(ctx, nodesOf(client, markerKey(cfg)).connector(cfg), nil, true, cfg)
	}
	connect := func(context.Context) (program.Conn, error) { return program.NewConn(client, false), nil }
	return newBackend(ctx, connect, nil, false, cfg)
}

// Open connects to the server that a URL names; see the package documentation for its form.
// The URL's settings override cfg. Close closes the connections. The error is
// *backend.InvalidError or *backend.UnavailableError, and never contains the password.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if ctx == nil {
		return nil, &backend.InvalidError{Field: "ctx", Value: "nil", Bound: "a context"}
	}
	target, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	if len(target.hosts) > 0 {
		return newBackend(ctx, target.group(), nil, true, target.cfg)
	}
	connect := func(ctx context.Context) (program.Conn, error) { return newConn(ctx, target.option) }
	return newBackend(ctx, connect, laneOf(target.option), false, target.cfg)
}

// newBackend creates a Backend. connect connects to the server that has the data. group means that another server can
// have the data later, as in a Cluster. Else lane, if it is not nil, opens a connection for a caller that is alone.
func newBackend(ctx context.Context, connect connector, lane program.OpenLane, group bool, cfg Config) (*Backend, error) {
	var over transport
	if group {
		over = newRouter(func(ctx context.Context) (transport, error) { return newLink(ctx, connect, nil, cfg) })
	} else {
		l, err := newLink(ctx, connect, lane, cfg)
		if err != nil {
			return nil, readOnly(toKind("connect", err))
		}
		over = l
	}
	b, err := backendOver(ctx, over, cfg)
	if err != nil {
		over.close()
	}
	return b, err
}

// backendOver creates a Backend over any transport. The Config is complete.
func backendOver(ctx context.Context, link transport, cfg Config) (*Backend, error) {
	p, err := newProgram()
	if err != nil {
		return nil, err
	}
	b := &Backend{
		cfg: cfg, link: link, jitter: mathrand.N(jitter),
		sessions: make(map[backend.SessionID]*session),
		gone:     lockstate.NewEnded[backend.SessionID](MaxTTL),
		waiting:  make(map[backend.LeaseID][]*waiter),
		doubts:   make(map[backend.LeaseID]time.Time),
	}
	b.base, b.cancel = context.WithCancel(context.Background()) //nolint:contextcheck // the value outlives the call
	// One partition: on one server there is no reason for more. See doc.go.
	b.tag = "{" + cfg.Prefix + "0}:"
	b.channel = b.tag + "c:" + rand.Text()
	b.synced = b.examine(ctx)
	b.caps = backend.Capabilities{
		Name: backendName, Sessions: true, Timed: true, Shared: true, Permits: true, FIFO: true, Push: true, LossPush: true,
		Watch: true, Durable: b.synced != "", TokenKind: "clock", MinTTL: MinTTL, MaxTTL: MaxTTL, ExpiryLag: expiryLag,
	}
	mode := "-"
	if cfg.Quarantine > 0 {
		mode = program.Millis(cfg.Quarantine)
	}
	b.engine = newEngine(link, p, b.tag, mode, cfg.RequestTimeout)
	b.engine.hello, b.engine.learn = b.hello, b.learn
	if _, _, err := b.engine.do(ctx, false, "ping"); err != nil {
		b.stop()
		return nil, readOnly(toKind("open", err))
	}
	return b, nil
}

func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	c.Quarantine = cmp.Or(c.Quarantine, DefaultQuarantine)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch err := program.CheckPrefix(c.Prefix); {
	case err != nil:
		return c, err
	case c.RequestTimeout < time.Millisecond:
		return c, &backend.InvalidError{Field: "timeout", Value: c.RequestTimeout.String(), Bound: "1ms or more"}
	case c.Replicas < 0 || c.Replicas > maxReplicas:
		return c, &backend.InvalidError{Field: "replicas", Value: strconv.Itoa(c.Replicas), Bound: "0 to " + strconv.Itoa(maxReplicas)}
	case c.Quarantine > MaxTTL:
		return c, &backend.InvalidError{Field: "quarantine", Value: c.Quarantine.String(), Bound: "at most 24h"}
	}
	return c, nil
}

// examine logs which server settings end leases early, and returns the run ID of
// syncedRun. A server that does not report its settings counts as one that may lose what it
// answered.
func (b *Backend) examine(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	run, settings, err := b.syncedRun(ctx)
	if err != nil {
		b.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "redis does not report its settings", slog.String("error", err.Error()))
		return ""
	}
	for _, f := range b.findings(run, settings) {
		level := slog.LevelWarn
		if f.Usual {
			level = slog.LevelInfo
		}
		b.cfg.Logger.LogAttrs(ctx, level, "redis: "+f.Text) //nolint:sloglint // doctor prints the same text
	}
	return run
}

// syncedRun returns the server's run ID if its answers are on disk, and its settings. The ID
// is empty if they are not. The run ID is read first, so that the settings of a later run are
// not taken for those of this one.
func (b *Backend) syncedRun(ctx context.Context) (string, map[string]string, error) {
	text, err := b.info(ctx, "server")
	if err != nil {
		return "", nil, err
	}
	globs := []string{"maxmemory*", "*append*"}
	if _, group := b.link.(*router); group {
		globs = globs[:1] // the disk of this server says nothing about one that takes over
	}
	settings, err := program.Settings(ctx, b.link.send, globs...)
	if err != nil || !program.Synced(settings) {
		return "", settings, err
	}
	_, after, _ := strings.Cut(text, "run_id:")
	run, _, _ := strings.Cut(after, "\r")
	return run, settings, nil
}

// info returns one section of the server's INFO.
func (b *Backend) info(ctx context.Context, section string) (string, error) {
	r, err := b.link.send(ctx, "INFO", section)
	return r.S, err
}

// hello returns the arguments of the operation hello, except for the identity. again means
// that an earlier hello was answered: the server may have been restarted with other settings
// since.
func (b *Backend) hello(ctx context.Context, again bool) ([]string, error) {
	synced := b.synced
	if again {
		var err error
		synced, _, err = b.syncedRun(ctx)
		if _, refused := errors.AsType[*serverError](err); err != nil && !refused {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return []string{rand.Text(), itoa(b.longest), synced, b.channel}, nil
}

// learn processes the answer to hello. When the known generation of the data is gone, all its
// sessions are lost. The server may still have some of them, but not all of their leases.
func (b *Backend) learn(w welcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.longest = max(b.longest, w.longest)
	if !w.changed {
		return
	}
	for id, s := range b.sessions {
		if !s.open {
			continue // it is being opened in the data that exists now
		}
		delete(b.sessions, id)
		b.final.Drop(id)
		b.gone.Add(id)
		s.tell(backend.Loss{Session: id, Cause: backend.CauseGone})
	}
	b.checkAll()
}

// uses records a TTL in use: after a loss of data nothing may be granted for that long.
func (b *Backend) uses(ttl time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.longest = max(b.longest, int64((ttl+time.Millisecond-1)/time.Millisecond))
}

// Capabilities reports what the backend can do. Durable reflects the server's settings when
// the Backend was created: appendonly yes and appendfsync always.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// Close ends the goroutines and connections of the Backend, within Config.RequestTimeout.
// Calls in progress return backend.ErrClosed. The client that was passed to New stays open.
// Closing again does nothing. The error is always nil.
func (b *Backend) Close() error {
	b.closing.Do(b.stop)
	return nil
}

func (b *Backend) stop() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.engine.close()
	b.work.Wait()
	b.link.close()
}
