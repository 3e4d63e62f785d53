package redlock

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Bounds and defaults.
const (
	// MinTTL bounds the TTL of leases from below, and Config.MaxTTL from above.
	MinTTL = 100 * time.Millisecond
	// DefaultMaxTTL is the default of Config.MaxTTL.
	DefaultMaxTTL = 30 * time.Second
	// DefaultPrefix begins the names of all keys and channels.
	DefaultPrefix = "hfr"
	// DefaultRequestTimeout is the default of Config.RequestTimeout.
	DefaultRequestTimeout = 2 * time.Second
	// MinNodes and MaxNodes bound the number of nodes.
	MinNodes, MaxNodes = 3, 15

	backendName = "redlock"
	expiryLag   = time.Second
	leastMaxTTL = 10 * time.Second
	mostMaxTTL  = 24 * time.Hour
)

// Config configures a Backend. Processes that share locks must agree on Prefix, MaxTTL and
// the nodes.
type Config struct {
	// Prefix begins the names of all keys and channels. Backends with different prefixes do
	// not see each other. 1 to 32 characters of a-z A-Z 0-9 _ -. Default: DefaultPrefix.
	// Optional.
	Prefix string
	// MaxTTL is the longest TTL that any client may request: 10 s to 24 h. A node that may
	// have lost data does not vote for that long. The nodes remember the greatest MaxTTL that
	// they have seen. Raise it in all processes for leases with longer TTLs. Default:
	// DefaultMaxTTL. Optional.
	MaxTTL time.Duration
	// RequestTimeout is the time after which a node that does not answer is taken for down.
	// Until then no call waits for it if the other nodes are enough. Default:
	// DefaultRequestTimeout. Optional.
	RequestTimeout time.Duration
	// NoQuarantine lets nodes vote that may have lost data: after a loss a lock can be
	// granted while a holder from before still relies on it. It is for the tests of a
	// program, whose servers were just started and hold nothing (see the example "Testing"),
	// and for servers that are known to be new. Default: false. Optional.
	NoQuarantine bool
	// Logger receives errors that no call can return. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// Backend keeps leases on the majority of several independent Redis servers. It implements
// backend.Backend. Its methods are safe for concurrent use. Create it with New or Open.
type Backend struct {
	cfg      Config
	caps     backend.Capabilities
	nodes    []*node
	all      []int // of all nodes
	majority int
	longest  string      // MaxTTL as an argument of the script
	mode     string      // "q": keep the quarantine
	fresh    atomic.Bool // no client had used the nodes when the Backend was created
	clock    func() int64
	attempts atomic.Int64 // the last one

	base    context.Context         //nolint:containedctx // the life of the calls: ends with Close
	end     context.CancelCauseFunc // ends base
	wire    context.Context         //nolint:containedctx // the life of the requests: ends when the last was answered
	cut     context.CancelFunc      // ends wire
	work    sync.WaitGroup
	sending sync.WaitGroup // the requests in progress, and those queued behind them
	closing sync.Once

	mu     sync.Mutex // guards what follows
	closed bool
	queues map[string]*queue                 // of locks with a waiter in this process
	asking map[backend.LeaseID]chan struct{} // of calls in progress: closed when the call has ended
	ears   bool                              // the nodes are listened to, from the first wait on
}

var _ backend.Backend = (*Backend)(nil)

// New returns a Backend on the servers that the clients are connected to: three or more
// masters that replicate nothing from each other, an odd number of them. The caller keeps the
// clients: Close does not close them. Each must send commands to its one server. Their
// Dialer.Timeout and ConnWriteTimeout should be a second, so that connections that never
// answer are detected in time.
//
// New sends each server a few requests, bounded by Config.RequestTimeout. Errors:
// *backend.InvalidError for a bad argument; *backend.UnavailableError if less than a majority
// answered.
func New(clients []rueidis.Client, cfg Config) (*Backend, error) {
	p, err := newProgram()
	if err != nil {
		return nil, err
	}
	links := make([]link, len(clients))
	for i, c := range clients {
		if c == nil {
			return nil, &backend.InvalidError{Field: "clients", Value: "nil", Bound: "clients"}
		}
		links[i] = newLink(c, rueidis.ClientOption{}, p)
	}
	return open(context.Background(), links, cfg)
}

// Open connects to the servers that a URL names; see the package documentation for its form.
// The URL's settings override cfg. Open returns when a majority has answered, or ctx ends.
// Close closes the connections. An error never contains a password. Errors:
// *backend.InvalidError; *backend.UnavailableError if less than a majority answered.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	t, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	p, err := newProgram()
	if err != nil {
		return nil, err
	}
	links := make([]link, len(t.options))
	for i, o := range t.options {
		links[i] = newLink(nil, o, p)
	}
	return open(ctx, links, t.cfg)
}

func open(ctx context.Context, links []link, cfg Config) (*Backend, error) {
	b, err := newBackend(links, cfg)
	if err != nil {
		return nil, err
	}
	if err := b.survey(ctx); err != nil {
		_ = b.Close() // its error is always nil
		return nil, toKind(ctx, opOpen, err, false)
	}
	return b, nil
}

// newBackend creates a Backend that has sent nothing yet.
func newBackend(links []link, cfg Config) (*Backend, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkNodes(len(links)); err != nil {
		return nil, err
	}
	b := &Backend{
		cfg: cfg, majority: len(links)/2 + 1, longest: program.Millis(cfg.MaxTTL), mode: "q", queues: make(map[string]*queue),
		asking: make(map[backend.LeaseID]chan struct{}),
		clock:  func() int64 { return time.Now().UnixMicro() },
		caps: backend.Capabilities{
			Name: backendName, Timed: true, Shared: true, Permits: true, Push: true, TokenKind: "votes",
			MinTTL: MinTTL, MaxTTL: cfg.MaxTTL, ExpiryLag: expiryLag,
		},
	}
	if cfg.NoQuarantine {
		b.mode = "-"
	}
	b.base, b.end = context.WithCancelCause(context.Background())
	b.wire, b.cut = context.WithCancel(context.Background())
	for i, l := range links {
		b.all = append(b.all, i)
		b.nodes = append(b.nodes, &node{b: b, i: i, link: l, changed: make(chan struct{}, 1), channels: make(map[string]bool)})
	}
	return b, nil
}

func checkNodes(n int) error {
	if n < MinNodes || n > MaxNodes || n%2 == 0 {
		return &backend.InvalidError{Field: "nodes", Value: strconv.Itoa(n), Bound: "an odd number, 3 to 15"}
	}
	return nil
}

func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.MaxTTL = cmp.Or(c.MaxTTL, DefaultMaxTTL)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch err := program.CheckPrefix(c.Prefix); {
	case err != nil:
		return c, err
	case c.MaxTTL < leastMaxTTL || c.MaxTTL > mostMaxTTL:
		return c, &backend.InvalidError{Field: "max_ttl", Value: c.MaxTTL.String(), Bound: "10s to 24h"}
	case c.RequestTimeout < time.Millisecond || c.RequestTimeout > time.Minute:
		return c, &backend.InvalidError{Field: "timeout", Value: c.RequestTimeout.String(), Bound: "1ms to 1m"}
	}
	return c, nil
}

// openPatience is how long nodes that have not answered are waited for when the Backend is
// created. Connecting takes longer than a request.
const openPatience = 250 * time.Millisecond

// survey queries the nodes for the first time. A node whose request failed is down from the
// start. A node that merely has not answered yet is not.
func (b *Backend) survey(ctx context.Context) error {
	marked, safe := 0, 0
	p := b.newPoll(b.all, func(p *poll, x answer) need {
		if x.err == nil {
			marked += int(x.list[0].N)
			safe += int(x.list[1].N)
		}
		return p.enough(b.majority, false)
	})
	p.patience = openPatience
	for i, n := range b.nodes {
		b.work.Go(func() {
			list, err := n.survey()
			p.reply(answer{i, list, err})
		})
	}
	bounded, cancel := backend.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	if err := p.wait(bounded); err != nil && ctx.Err() != nil {
		return err
	}
	if p.good < b.majority {
		return p.failure()
	}
	b.caps.Durable = safe == p.good
	b.fresh.Store(marked == 0 && p.good == len(b.nodes))
	for i, err := range p.errs {
		if err != nil {
			b.nodes[i].fail(nil, err)
		}
	}
	return b.greet(ctx)
}

// greet makes the nodes record that they are in use: all of them, before anything is granted,
// so that a marker that is missing later proves a loss of data.
func (b *Backend) greet(ctx context.Context) error {
	_, err := b.ask(ctx, many("ping"), func(p *poll, _ answer) need { return p.enough(b.majority, false) })
	return err
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Capabilities reports what the backend can do. Durable reflects the settings of the servers
// that answered when the Backend was created: appendonly yes and appendfsync always.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// closePatience bounds how long Close waits until pending releases have been sent.
const closePatience = 250 * time.Millisecond

// Close ends the goroutines and connections of the Backend, within a second. Calls in
// progress return backend.ErrClosed. The leases stay. Closing again does nothing. The error
// is always nil.
func (b *Backend) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		b.closed = true
		for _, l := range b.queues {
			l.timer.Stop()
		}
		b.mu.Unlock()
		b.end(backend.ErrClosed)
		for _, n := range b.nodes {
			n.close()
		}
		late := time.AfterFunc(min(b.cfg.RequestTimeout, closePatience), b.hangUp)
		b.sending.Wait()
		late.Stop()
		b.hangUp()
		b.work.Wait()
	})
	return nil
}

// hangUp ends the requests in progress and the connections.
func (b *Backend) hangUp() {
	b.cut()
	for _, n := range b.nodes {
		n.link.close()
	}
}

// begin begins a call.
func (b *Backend) begin(ctx context.Context) (context.Context, func(), error) {
	return backend.Begin(ctx, b.base)
}

// noAnswer is the error of a node that has not answered in time.
func (b *Backend) noAnswer() error { return backend.NoAnswer(b.cfg.RequestTimeout) }

func (b *Backend) key(suffix string) string { return b.cfg.Prefix + ":" + suffix }

// attempt returns a number for an attempt: greater than all before it, of this process and,
// as far as clocks agree, of other processes.
func (b *Backend) attempt(after int64) int64 {
	for {
		last := b.attempts.Load()
		next := max(time.Now().UnixMicro(), last+1, after+1)
		if b.attempts.CompareAndSwap(last, next) {
			return next
		}
	}
}

// quorum returns how many votes a lease needs. Any two majorities share a node. If a lock has
// c permits, each of n nodes grants no more than c; c+1 permits would need (c+1)*quorum
// votes, which is more than the n*c that there are.
func (b *Backend) quorum(c backend.Claim) int {
	if c.Mode == backend.Exclusive || c.Limit == 0 {
		return b.majority
	}
	return max(b.majority, len(b.nodes)*c.Limit/(c.Limit+1)+1)
}
