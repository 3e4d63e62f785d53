package k8slock

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

const name = "kubernetes"

// Config configures a Backend.
type Config struct {
	// Namespace is the namespace of the Leases. Default: "default". Optional.
	Namespace string
	// Foreign is for how long candidates of client-go's leader election wait for a holder of this
	// package that has died when no other process of this package is left: 10 s to a day. A held
	// lock is written again each third of it, one request for each lock. At least twice the TTL of
	// the session counts. Default: 10 minutes. Optional.
	Foreign time.Duration
	// Logger receives errors that cannot be returned to a caller. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

const (
	defaultForeign = 10 * time.Minute
	minForeign     = 10 * time.Second
	maxForeign     = 24 * time.Hour
	minTTL         = time.Second
	maxTTL         = 24 * time.Hour
	// lag is by how much later than the TTL, counted from when it has seen the newest renewal, an
	// observer has ended a session.
	lag = 3 * time.Second
	// defaultIdle is after how long a lock's object that is not in use is deleted.
	defaultIdle = time.Hour
	// attempt bounds one request. An API server that takes longer counts as unavailable.
	attempt = 10 * time.Second
	// recordsAtOnce bounds the changes and reads of locks that a value has under way. An API server
	// that is sent a thousand requests at the same time answers none of them in time, and no
	// renewal either. Sessions are opened and renewed in addition to them. Half as many cost a
	// fifth of the pairs a second of 64 callers.
	recordsAtOnce = 32
)

// Backend keeps leases in Kubernetes. It implements backend.Backend. Its methods are safe for
// concurrent use. Make it with New or Open.
type Backend struct {
	cfg     Config
	caps    backend.Capabilities
	rest    restAPI
	owned   *connect.HTTP   // of NewForConfig, closed by Close
	value   string          // names this value in its sessions
	idle    time.Duration   // after which a lock's object is deleted
	safety  time.Duration   // after which a waiter reads its lock although the watch reported nothing
	recheck chan struct{}   // capacity 1: check the ends of sessions again
	slots   chan struct{}   // has capacity recordsAtOnce: the requests about locks under way
	base    context.Context //nolint:containedctx // it is what Close ends
	end     context.CancelCauseFunc
	cache   cache
	stream  stream

	mu        sync.Mutex // guards the fields below
	closed    bool
	sessions  map[backend.SessionID]*session
	ended     *lockstate.Ended[backend.SessionID] // sessions that are known to exist no longer
	writers   map[string]*writer                  // changes of locks under way, by the lock's name
	asking    map[lockstate.Key][]*acquisition    // acquires in progress
	abandoned *lockstate.Ended[sessionLease]      // leases that must not come to life
	work      sync.WaitGroup
	closing   sync.Once
}

var _ backend.Backend = (*Backend)(nil)

// NewForConfig makes a backend from a rest.Config of client-go, with connections of its own, which
// Close closes. It sends nothing yet, and does not change config. Transport and Dial must not be
// set. Timeout, QPS, Burst and RateLimiter have no effect: the requests have their own bounds.
//
// Errors: *backend.InvalidError for a config that cannot be used, and for a field that is out of
// bounds.
func NewForConfig(config *rest.Config, cfg Config) (*Backend, error) {
	if config == nil || config.Transport != nil || config.Dial != nil {
		return nil, &backend.InvalidError{Field: "config", Value: "nil, or with Transport or Dial", Bound: "without them, or the client of rest.HTTPClientFor, for New"}
	}
	l, err := newLink(rest.CopyConfig(config))
	if err != nil {
		return nil, &backend.InvalidError{Field: "config", Value: "of the cluster and the user", Bound: "usable: " + err.Error()}
	}
	b, err := New(&http.Client{Transport: l}, config.Host, cfg)
	if err != nil {
		return nil, err
	}
	b.owned = l.conns
	return b, nil
}

// New makes a backend on an HTTP client that authenticates itself, such as rest.HTTPClientFor of
// client-go makes, and the URL of the API server, as in Host of rest.Config. It sends nothing yet.
// Close does not close the client. The client must not have a time-out: a watch lasts for minutes.
// No redirect is followed: client-go's would send the credentials to wherever it points. A request
// must end with its context, which client-go's does not while a login program hangs: for a config
// with ExecProvider, use NewForConfig.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(client *http.Client, server string, cfg Config) (*Backend, error) {
	if client == nil {
		return nil, &backend.InvalidError{Field: "client", Value: "nil", Bound: "a client"}
	}
	if client.Timeout != 0 {
		return nil, &backend.InvalidError{Field: "client", Value: "a time-out of " + client.Timeout.String(), Bound: "without one: a watch lasts for minutes"}
	}
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" {
		return nil, &backend.InvalidError{Field: "server", Value: "the URL given", Bound: "like https://10.0.0.1:443"}
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "default"
	}
	if !isSubdomain(cfg.Namespace) || strings.Contains(cfg.Namespace, ".") || len(cfg.Namespace) > 63 {
		return nil, &backend.InvalidError{Field: "namespace", Value: strconv.QuoteToASCII(cfg.Namespace[:min(len(cfg.Namespace), 64)]), Bound: "a DNS label"}
	}
	if cfg.Foreign == 0 {
		cfg.Foreign = defaultForeign
	}
	if cfg.Foreign < minForeign || cfg.Foreign > maxForeign {
		return nil, &backend.InvalidError{Field: "foreign", Value: cfg.Foreign.String(), Bound: minForeign.String() + " to " + maxForeign.String()}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	own := *client
	own.CheckRedirect = connect.Stay
	b := &Backend{
		cfg: cfg, value: rand.Text(), idle: defaultIdle, safety: defaultSafety, recheck: make(chan struct{}, 1), sessions: make(map[backend.SessionID]*session),
		ended: lockstate.NewEnded[backend.SessionID](rememberedEnds), writers: make(map[string]*writer), slots: make(chan struct{}, recordsAtOnce),
		asking: make(map[lockstate.Key][]*acquisition), abandoned: lockstate.NewEnded[sessionLease](remembered),
		rest: restAPI{
			client: &own, clock: &clock{},
			leases: strings.TrimSuffix(u.String(), "/") + "/apis/coordination.k8s.io/v1/namespaces/" + cfg.Namespace + "/leases",
		},
		caps: backend.Capabilities{
			Name: name, Sessions: true, Bound: true, Shared: true, Permits: true, FIFO: true, Push: true, LossPush: true,
			Durable: true, TokenKind: "revision", MinTTL: minTTL, MaxTTL: maxTTL, ExpiryLag: lag, Doubles: true,
		},
	}
	b.base, b.end = context.WithCancelCause(context.Background())
	b.cache.init()
	b.stream.synced, b.stream.tried = make(chan struct{}), make(chan struct{})
	return b, nil
}

// Capabilities returns what Kubernetes can do.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// Close ends the sessions that were opened here, with their leases, and the goroutines. It takes at
// most a second if the API server is unreachable; then the sessions end when they expire. A second
// Close does nothing.
func (b *Backend) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		b.closed = true
		sessions := b.sessions
		b.sessions = nil
		b.mu.Unlock()
		b.end(backend.ErrClosed)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for _, s := range sessions {
			all.Go(func() { _ = b.remove(ctx, s) }) // otherwise it ends when it expires
		}
		all.Wait()
		b.work.Wait()
		if b.owned != nil {
			b.owned.Close()
		}
	})
	return nil
}

// background runs f, unless the backend is closed already. Close ends f and waits for it.
func (b *Backend) background(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.work.Go(f)
	}
}
