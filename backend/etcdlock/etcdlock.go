package etcdlock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

const (
	name    = "etcd"
	opGrant = "grant a lease"

	// DefaultPrefix is the prefix of the keys if Config.Prefix is empty.
	DefaultPrefix = "holdfast"
	// DefaultRequestTimeout is the default of Config.RequestTimeout.
	DefaultRequestTimeout = 5 * time.Second
	// DefaultMinTTL is the shortest TTL that an etcd with default settings can keep.
	DefaultMinTTL = 2 * time.Second

	maxPrefixLen = 256
	maxTTL       = 24 * time.Hour
	// expiryLag is the rounding to whole seconds, the half second between two checks of the leases
	// by etcd, and the time to agree on the end.
	expiryLag = 2 * time.Second
	maxRenew  = 128
)

// Config configures a Backend.
type Config struct {
	// Prefix is the prefix of all keys, without the slash after it. Programs that share locks share
	// the prefix. Default: DefaultPrefix. Optional.
	Prefix string
	// RequestTimeout bounds each request to etcd, on top of the context of the call.
	// Default: DefaultRequestTimeout. Optional.
	RequestTimeout time.Duration
	// MinTTL is the shortest TTL to accept, 1s or more. etcd does not keep leases shorter than one
	// and a half election timeouts, in whole seconds: with its default election timeout of one
	// second that is DefaultMinTTL. Default: DefaultMinTTL. Optional.
	MinTTL time.Duration
	// Logger receives warnings: an etcd with known faults, and state that could not be cleaned up.
	// Default: slog.Default(). Optional.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	c.MinTTL = cmp.Or(c.MinTTL, DefaultMinTTL)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	switch {
	case len(c.Prefix) > maxPrefixLen || !utf8.ValidString(c.Prefix) || strings.ContainsRune(c.Prefix, 0):
		return c, &backend.InvalidError{Field: "prefix", Value: connect.Quote(c.Prefix), Bound: "at most 256 bytes of UTF-8 without NUL"}
	case c.RequestTimeout < 0:
		return c, &backend.InvalidError{Field: "timeout", Value: c.RequestTimeout.String(), Bound: "more than 0"}
	case c.MinTTL < time.Second || c.MinTTL > maxTTL:
		return c, &backend.InvalidError{Field: "min_ttl", Value: c.MinTTL.String(), Bound: "1s to 24h"}
	}
	return c, nil
}

// Backend keeps leases in etcd. It implements backend.Backend. Its methods are safe for concurrent
// use. Make one with New or Open.
type Backend struct {
	cfg    Config
	client *clientv3.Client
	owned  *clients // that Close closes; nil: client is the caller's
	keys   keys
	caps   backend.Capabilities

	base   context.Context //nolint:containedctx // ends with Close, and with it all that runs
	cancel context.CancelCauseFunc

	commits *committer
	queues  *queues
	slots   *slots
	pools   *pools

	cluster atomic.Uint64 // ID of the cluster that answered last; 0: none has
	term    atomic.Uint64 // the latest term of etcd that was seen

	mu       sync.Mutex
	closed   bool
	calls    sync.WaitGroup // calls and goroutines under way
	revokes  sync.WaitGroup // of etcd leases, under way
	revoking chan struct{}  // capacity revokesAtOnce: held while an etcd lease is being revoked
	sessions map[backend.SessionID]*session
	ending   map[backend.SessionID][]clientv3.LeaseID // what is to be revoked for sessions whose EndSession has not finished
	dead     *lockstate.Ended[backend.SessionID]      // sessions that were seen dead
	inDoubt  *lockstate.Ended[backend.LeaseID]        // leases whose acquire may still be on its way
}

var _ backend.Backend = (*Backend)(nil)

// New makes a backend on a client that the program already has. Close does not close the client.
// The client must be able to detect a dead connection: set its DialKeepAliveTime. It must have a
// connection, which one inside the process of etcd has not. New asks each endpoint for its version, in the
// background.
//
// Errors: *backend.InvalidError for a bad configuration.
func New(client *clientv3.Client, cfg Config) (*Backend, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if client == nil || client.ActiveConnection() == nil { // as one inside the process of etcd has
		return nil, &backend.InvalidError{Field: "client", Value: "none, or one without a connection", Bound: "a client of etcd with a connection"}
	}
	b := &Backend{
		cfg:      cfg,
		client:   client,
		keys:     keys{prefix: cfg.Prefix + "/"},
		caps:     cfg.capabilities(),
		sessions: make(map[backend.SessionID]*session),
		ending:   make(map[backend.SessionID][]clientv3.LeaseID),
		revoking: make(chan struct{}, revokesAtOnce),
		dead:     lockstate.NewEnded[backend.SessionID](memoryTTL),
		inDoubt:  lockstate.NewEnded[backend.LeaseID](memoryTTL),
	}
	b.base, b.cancel = context.WithCancelCause(context.Background())
	b.commits = &committer{b: b, patience: rideTime}
	b.queues = &queues{b: b, byName: make(map[string]*queue)}
	b.slots = newSlots()
	b.pools = &pools{b: b, byLife: make(map[time.Duration]*pool)}
	b.background(b.checkVersions)
	return b, nil
}

func (c Config) capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: name, Sessions: true, Timed: true, Shared: true, Permits: true, FIFO: true,
		Push: true, LossPush: true, Watch: true, Durable: true, TokenKind: "revision",
		MinTTL: c.MinTTL, MaxTTL: maxTTL, ExpiryLag: expiryLag, MaxRenew: maxRenew,
	}
}

// Capabilities claims everything. ExpiryLag holds while the leader of etcd stays: a new leader
// gives every lease its whole TTL again.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// StoreID returns the ID of the cluster with the prefix. It implements backend.Identified.
func (b *Backend) StoreID() string {
	id := b.cluster.Load()
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("etcd-%016x-%+q", id, b.cfg.Prefix)
}

// Close ends what the backend started: calls in progress return ErrClosed. A client that was given
// to New stays open. Sessions and leases stay until they expire. A second Close does nothing.
// Errors: of closing the connection that Open made.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.finishRevokes()
	b.cancel(backend.ErrClosed)
	b.calls.Wait()
	if b.owned != nil {
		if err := b.owned.close(); err != nil {
			return fmt.Errorf("etcd: close: %w", err)
		}
	}
	return nil
}

// enter starts a call, unless its input is invalid. The context that it returns ends with ctx and with
// Close. The caller must call leave.
func (b *Backend) enter(ctx context.Context, invalid error) (context.Context, func(), error) {
	if invalid != nil {
		return nil, nil, invalid
	}
	ctx, leave, err := backend.Begin(ctx, b.base)
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed { // base ends a little later
		leave()
		return nil, nil, backend.ErrClosed
	}
	b.calls.Add(1)
	return ctx, func() { leave(); b.calls.Done() }, nil
}

// background runs f until it returns. Its context ends with Close.
func (b *Backend) background(f func(context.Context)) { b.start(&b.calls, f) }

// start runs f in a group that Close waits for. When the backend is closed, it does nothing.
func (b *Backend) start(group *sync.WaitGroup, f func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		group.Go(func() { f(b.base) })
	}
}

// request bounds one request to etcd.
func (b *Backend) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), b.cfg.RequestTimeout)
	return ownClock{ctx}, cancel
}

// ownClock hides the deadline from gRPC, which would send it to etcd. etcd's clock sometimes
// reaches the deadline first. The caller would then be told, with time left, that etcd is
// unavailable, although only the deadline had passed.
type ownClock struct{ context.Context } //nolint:containedctx // it is a context

func (ownClock) Deadline() (time.Time, bool) { return time.Time{}, false }

// txn is a transaction.
type txn struct {
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

// commit sends a transaction. It returns the errors of the client library.
func (b *Backend) commit(ctx context.Context, t txn) (*pb.TxnResponse, error) {
	ctx, cancel := b.request(ctx)
	defer cancel()
	resp, err := b.client.Txn(ctx).If(t.cmps...).Then(t.then...).Else(t.els...).Commit()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller maps it
	}
	b.cluster.Store(resp.Header.ClusterId)
	return (*pb.TxnResponse)(resp), nil
}

// txn sends one transaction outside any batch.
func (b *Backend) txn(ctx context.Context, op string, changes bool, cmps []clientv3.Cmp, then []clientv3.Op) (*pb.TxnResponse, error) {
	resp, err := b.commit(ctx, txn{cmps: cmps, then: then})
	return resp, fail(ctx, op, err, changes)
}

// get reads one range. It does not use a transaction, because etcd logs an error when a read-only
// one is cancelled.
func (b *Backend) get(ctx context.Context, op, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	rctx, cancel := b.request(ctx)
	defer cancel()
	resp, err := b.client.Get(rctx, key, opts...)
	if err != nil {
		return nil, fail(ctx, op, err, false)
	}
	return resp, nil
}

// grantLease makes an etcd lease that lives for ttl, rounded up to whole seconds. It also returns a
// term that etcd had reached before: see sessionLease.
func (b *Backend) grantLease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, uint64, error) {
	term, err := b.reached(ctx)
	if err != nil {
		return clientv3.NoLease, 0, err
	}
	rctx, cancel := b.request(ctx)
	defer cancel()
	resp, err := b.client.Grant(rctx, seconds(ttl))
	if err != nil {
		return clientv3.NoLease, 0, fail(ctx, opGrant, err, false)
	}
	b.saw(resp.RaftTerm)
	if got := time.Duration(resp.TTL) * time.Second; got >= ttl+time.Second {
		b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "etcd keeps leases longer than requested: raise Config.MinTTL, or lower the election timeout of etcd",
			slog.Duration("asked", ttl), slog.Duration("given", got))
	}
	return resp.ID, term, nil
}

// seconds rounds up: a lease never ends early.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }
