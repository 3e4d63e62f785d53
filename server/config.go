package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast/backend"
)

// Config configures a Server. The zero value is suitable for a loopback listener.
type Config struct {
	// Identify returns the name of the sender of a request, always the same for the same sender. It is called once for
	// each request, before anything in it takes effect, and again for a request that has waited and at each heartbeat of an
	// event stream; not for health, readiness, the document and the page. The body has not been read. If it returns an error,
	// the name is empty for Authorize, and where Authorize then returns ErrUnauthenticated, the answer has this error: 401 if it
	// is ErrUnauthenticated too, or 503 if it is a *backend.UnavailableError. Its text is sent to the client. With Authorize, a
	// lease belongs to the principal that acquired it, on every server with the same backend, and after a restart: under
	// the same lease ID, another principal has another lease. Leases that were acquired without a principal, or under another name
	// of it, can then no longer be renewed or released. It must be safe for concurrent use. Default: the remote address, for
	// the audit only. Optional.
	Identify func(r *http.Request) (principal string, err error)
	// Authorize decides whether a principal, empty without Identify, may do what a request asks for, before anything in it takes
	// effect. A batch is checked item by item, and lists and streams leave out
	// what Authorize refuses. An acquire that names a lease is checked a second time, with the
	// lease. A caller who may not Break a lock does not see lease IDs, notes and waiters of others.
	// An error is answered with 403, or with 401 if it is ErrUnauthenticated; its text is sent to
	// the client. Authorize must be safe for concurrent use. Default: every client that can connect
	// may do everything; Serve then refuses a listener beyond this host unless Anonymous is
	// set. Optional.
	Authorize func(principal string, a Action) error
	// Quota bounds what the principal may use. It must be safe for concurrent use, and is called several times for
	// a request. Default: what a zero Quota says. Optional.
	Quota func(principal string) Quota
	// Anonymous lets Serve listen beyond this host without Authorize. Optional.
	Anonymous bool
	// TLS makes Serve speak TLS. Pass Serve a plain listener: a tls.Listener would hide the
	// addresses of the connections. Default: plain HTTP. Optional.
	TLS *tls.Config
	// CertificateExpires returns when the certificate that clients are shown expires, for the metric
	// holdfast_tls_certificate_expires_seconds. It must be safe for concurrent use. Default: there is no such
	// metric. Optional.
	CertificateExpires func() time.Time
	// Stale reports whether a file of the configuration has changed and cannot be used, for the metric holdfast_config_stale. It
	// must be safe for concurrent use. Default: there is no such metric. Optional.
	Stale func() bool
	// Hosts are the host names (without port) that a Host header may carry. "*.example.com" stands
	// for every name with exactly one label before ".example.com". Default: any name,
	// except that a loopback connection accepts only names of the loopback, so that a web page
	// cannot reach the server by DNS rebinding. Optional.
	Hosts []string
	// DefaultTTL is the TTL of a lease whose request names none. Default: 30 s. Optional.
	DefaultTTL time.Duration
	// PlaceTTL is how long a place in the queue outlives a request, or a server, that died.
	// Default: 15 s, within the backend's bounds. Optional.
	PlaceTTL time.Duration
	// Timeout is how long a request that does not wait for a lock tries to reach the
	// backend. Default: 10 s. Optional.
	Timeout time.Duration
	// DrainDelay is how long Serve still serves after its context has ended, while /readyz returns
	// 503: a load balancer stops sending clients here before the listener closes. Default: 0.
	// Optional.
	DrainDelay time.Duration
	// DrainTimeout is how long Serve waits for requests in progress when it stops. Default: 10
	// s. Optional.
	DrainTimeout time.Duration
	// Heartbeat is how often a silent event stream gets a comment. Default: 15 s.
	// Optional.
	Heartbeat time.Duration
	// Limits bound what clients may request and use. Default: see Limits. Optional.
	Limits Limits
	// Registry receives the metrics, and is what /metrics exports. Default: a new one, which
	// also has the metrics of the Go runtime and of the process. Optional.
	Registry *prometheus.Registry
	// Version is reported by /openapi.json and the metrics. Default: "dev". Optional.
	Version string
	// Logger receives the errors that have no caller to be returned to. Default: slog.Default(). Optional.
	Logger *slog.Logger
	// Audit receives a line for each break, and each request that was refused for want of an identity or a right
	// (100 in a second) or named the lease of another principal (40 in a second). Default: Logger. Optional.
	Audit *slog.Logger
}

// The bounds of one request, and of the requests of one HTTP/2 connection.
const (
	maxBody    = 64 << 10 // bytes
	maxHeaders = 16 << 10 // bytes; net/http lets 4 KiB more pass
	maxRenewed = 1000     // leases in one renewal
	maxBatch   = 256      // acquires and releases in one batch
	maxStreams = 250      // concurrent requests of a connection
)

// Limits bound what clients may request and use. A field that is 0 has its default.
type Limits struct {
	// Wait is the longest long poll. Default: 60 s. Optional.
	Wait time.Duration
	// MinTTL and MaxTTL bound leases, within the backend's bounds. Default: 1 s and
	// 24 h. Optional.
	MinTTL, MaxTTL time.Duration
	// Connections bounds all connections. At the limit, a new connection replaces the one whose last request is
	// the oldest, except those of waiters and event streams, and of holders whose renewal or release is being
	// served. It should be well above Waiters and Events together. Default: 10,000. Optional.
	Connections int
	// Waiters is how many requests may wait here for locks, and WaitersPerLock for one lock, with the
	// places that are kept until their client polls again. Default: 4,096 and 1,000. Optional.
	Waiters, WaitersPerLock int
	// Events is how many event streams there may be. Default: 256. Optional.
	Events int
	// ReadHeaderTimeout, ReadTimeout and IdleTimeout are those of http.Server.
	// Default: 5 s, 15 s and 60 s. Optional.
	ReadHeaderTimeout, ReadTimeout, IdleTimeout time.Duration
	// WriteTimeout is the time for one answer, or for one event of a stream, counted from its
	// first write. Default: 10 s. Optional.
	WriteTimeout time.Duration
	// Backlog is how many events an event stream may lag behind before it is
	// dropped. Default: 8192. Optional.
	Backlog int
}

func orDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (l *Limits) defaults(c backend.Capabilities) {
	orDefault(&l.Wait, time.Minute)
	orDefault(&l.MinTTL, time.Second)
	orDefault(&l.MaxTTL, 24*time.Hour)
	orDefault(&l.Connections, 10_000)
	orDefault(&l.Waiters, 4096)
	orDefault(&l.WaitersPerLock, 1000)
	orDefault(&l.Events, 256)
	orDefault(&l.ReadHeaderTimeout, 5*time.Second)
	orDefault(&l.ReadTimeout, 15*time.Second)
	orDefault(&l.IdleTimeout, time.Minute)
	orDefault(&l.WriteTimeout, 10*time.Second)
	orDefault(&l.Backlog, 8192)
	l.MinTTL = max(l.MinTTL, c.MinTTL)
	l.MaxTTL = min(l.MaxTTL, c.MaxTTL)
}

// defaults fills in the fields that are not set, and checks the rest.
func (c *Config) defaults(caps backend.Capabilities) error {
	c.Limits.defaults(caps)
	orDefault(&c.DefaultTTL, min(max(30*time.Second, c.Limits.MinTTL), c.Limits.MaxTTL))
	orDefault(&c.PlaceTTL, min(max(15*time.Second, caps.MinTTL), caps.MaxTTL))
	orDefault(&c.Timeout, 10*time.Second)
	orDefault(&c.DrainTimeout, 10*time.Second)
	orDefault(&c.Heartbeat, 15*time.Second)
	if c.Registry == nil {
		c.Registry = defaultRegistry()
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Audit == nil {
		c.Audit = c.Logger
	}
	return c.check(caps)
}

func (c *Config) check(caps backend.Capabilities) error {
	l := c.Limits
	for name, n := range map[string]int{
		"limits.connections": l.Connections, "limits.waiters": l.Waiters, "limits.waiters_per_lock": l.WaitersPerLock,
		"limits.events": l.Events, "limits.backlog": l.Backlog,
	} {
		if n < 0 {
			return invalid(name, strconv.Itoa(n), "0 or more")
		}
	}
	for name, d := range map[string]time.Duration{
		"limits.wait": l.Wait, "limits.read_header_timeout": l.ReadHeaderTimeout, "limits.read_timeout": l.ReadTimeout,
		"limits.idle_timeout": l.IdleTimeout, "limits.write_timeout": l.WriteTimeout, "timeout": c.Timeout,
		"drain_delay": c.DrainDelay, "drain_timeout": c.DrainTimeout, "place_ttl": c.PlaceTTL, "heartbeat": c.Heartbeat,
	} {
		if d < 0 {
			return invalid(name, d.String(), "0 or more")
		}
	}
	if l.MinTTL > l.MaxTTL {
		return invalid("limits.min_ttl", l.MinTTL.String(), fmt.Sprintf("at most limits.max_ttl, %s", l.MaxTTL))
	}
	if c.DefaultTTL < l.MinTTL || c.DefaultTTL > l.MaxTTL {
		return invalid("default_ttl", c.DefaultTTL.String(), fmt.Sprintf("%s to %s", l.MinTTL, l.MaxTTL))
	}
	if caps.Sessions {
		if err := caps.ValidateTTL(c.PlaceTTL); err != nil {
			return fmt.Errorf("place ttl: %w", err)
		}
	}
	return nil
}

func invalid(field, value, bound string) error {
	return &backend.InvalidError{Field: field, Value: value, Bound: bound}
}
