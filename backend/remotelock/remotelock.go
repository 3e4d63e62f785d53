package remotelock

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/remoteprobe"
	"github.com/holdfast-io/holdfast/internal/wire"
)

const (
	name = "holdfast"
	// poll is how long one request waits in the queue. keep is how long the server keeps its
	// place afterwards. A waiter that dies silently delays the queue by at most the sum of
	// both.
	poll = 20 * time.Second
	keep = 10 * time.Second
	// answerIn is how much longer than its wait a request may take. A connection that is slower
	// is taken to be dead.
	answerIn = 15 * time.Second
)

// Config configures Open and New. Its fields override the URL.
type Config struct {
	// Token is sent as a bearer token. It takes precedence over one in the URL. A token is not sent
	// over plain HTTP, except to this host. Default: none. Optional.
	Token string
	// TokenFile has the token. It is read again when it is older than a second. Default: that of the
	// URL. Optional.
	TokenFile string
	// TLS is for holdfasts URLs. Default: that of the URL's parameters, or the system's
	// certificates. Optional.
	TLS *tls.Config
	// Logger receives, at level Debug, that the backend changes from one server of its URL to another, and why.
	// Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// Backend is a client of a Holdfast server. It implements backend.Backend. Its methods are safe
// for concurrent use.
type Backend struct {
	servers endpoints
	token   *token
	caps    backend.Capabilities
	poll    time.Duration
	log     *slog.Logger

	together *together

	life context.Context //nolint:containedctx // ends with ErrClosed when the backend is closed
	end  context.CancelCauseFunc
}

var _ backend.Backend = (*Backend)(nil)

// Open returns a Backend after asking the server what its backend can do. It succeeds if the
// server answers that it cannot grant locks now, because its store is unavailable or in
// quarantine, or elects a leader: the calls of the Backend report that, and a holdfast.Client
// retries them.
//
// Errors: *InvalidError for a bad URL; *RefusedError when the server refuses the credentials;
// *UnavailableError when the server does not answer; ctx's cause.
func Open(ctx context.Context, rawURL string, o Config) (*Backend, error) {
	if ctx == nil {
		return nil, invalid("ctx", "nil", "a context")
	}
	b, err := New(rawURL, o)
	if err != nil {
		return nil, err
	}
	ready, err := b.ready(ctx, "open")
	if err == nil && ready.Capabilities == nil {
		err = invalid("url", strconv.Quote(b.servers.current().base.Redacted()), "that of a Holdfast server")
	}
	// A server that grants no locks now may have ended that by the first call.
	if err != nil && (ready.Capabilities == nil || !errors.Is(err, backend.ErrUnavailable)) {
		_ = b.Close()
		return nil, err
	}
	b.caps = capabilities(*ready.Capabilities)
	b.poll = min(poll, time.Duration(ready.Capabilities.MaxWait))
	if p := remoteprobe.From(ctx); p != nil {
		*p = b.probe()
	}
	return b, nil
}

// Quarantined asks the server whether its store grants locks. It implements
// backend.Guarded.
func (b *Backend) Quarantined(ctx context.Context) error {
	_, err := b.ready(ctx, "ready")
	return err
}

// ready asks whether the server's backend can be used, and what it can do. A server that
// grants no locks now reports both.
func (b *Backend) ready(ctx context.Context, op string) (wire.Health, error) {
	var ready wire.Health
	var refusal wire.Problem
	_, err := b.do(ctx, call{op: op, method: http.MethodGet, path: "/readyz", out: &ready, refusal: &refusal})
	if ready.Capabilities == nil {
		ready.Capabilities = refusal.Capabilities
	}
	return ready, err
}

// New returns a Backend without sending anything to the server. It assumes that the server's
// backend supports everything, as a file does; the server refuses what its backend
// does not support.
//
// Errors: *InvalidError for a bad URL, for a token that would be sent in the clear, and for a file that
// cannot be read.
func New(rawURL string, o Config) (*Backend, error) {
	t, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	if o.Token != "" {
		t.token = &token{value: o.Token}
	} else if o.TokenFile != "" {
		t.token = &token{file: o.TokenFile}
	}
	if o.TLS != nil {
		t.tls = o.TLS
	}
	if err := t.mayCarry(); err != nil {
		return nil, err
	}
	if _, err := t.token.get(); err != nil {
		return nil, err
	}
	b := &Backend{token: t.token, poll: poll, log: o.Logger, caps: capabilities(wire.Capabilities{
		Shared: true, Permits: true, FIFO: true, Push: true, Watch: true, Durable: true, TokenKind: "revision",
		MinTTL: wire.Duration(time.Second), MaxTTL: wire.Duration(24 * time.Hour), ExpiryLag: wire.Duration(time.Second),
	})}
	if b.log == nil {
		b.log = slog.Default()
	}
	b.together = &together{b: b, late: lateTime, asking: make(map[string]int), crowded: make(map[string]struct{})}
	for _, base := range t.bases {
		b.servers.all = append(b.servers.all, newEndpoint(base, t.socket, t.tls))
	}
	b.life, b.end = context.WithCancelCause(context.Background())
	return b, nil
}

func capabilities(c wire.Capabilities) backend.Capabilities {
	return backend.Capabilities{
		Name: name, Timed: true, Shared: c.Shared, Permits: c.Permits, FIFO: c.FIFO, Push: c.Push, Watch: c.Watch,
		Durable: c.Durable, TokenKind: c.TokenKind,
		MinTTL: time.Duration(c.MinTTL), MaxTTL: time.Duration(c.MaxTTL), ExpiryLag: time.Duration(c.ExpiryLag),
	}
}

// Capabilities returns those capabilities of the server's backend that HTTP carries. There are
// no sessions and no push of losses.
func (b *Backend) Capabilities() backend.Capabilities { return b.caps }

// Close ends the calls in progress with ErrClosed, and closes the connections.
func (b *Backend) Close() error {
	b.together.close()
	for _, e := range b.servers.all {
		e.close()
	}
	return nil
}

func invalid(field, value, bound string) error {
	return &backend.InvalidError{Field: field, Value: value, Bound: bound}
}
