package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/observe"
)

// Server serves the API. Create it with New. Its methods are safe for concurrent use.
type Server struct {
	cfg         Config
	b           backend.Backend // counted by the metrics
	caps        backend.Capabilities
	table       []route
	mux         *http.ServeMux
	admission   *admission
	signIns     signIns
	audit       *auditor
	crossOrigin *http.CrossOriginProtection
	metrics     *observe.Server
	requests    *prometheus.CounterVec
	queue       *queue
	registry    *registry
	renewer     *renewer // renews leases that are known here
	claims      *renewer // renews the others
	hub         *hub
	losses      losses
	ready       readiness
	guarded     backend.Guarded    // the backend, if it can be in quarantine
	identified  backend.Identified // the backend, if it knows its store
	quarantine  atomic.Int64       // when the quarantine ends, in nanoseconds of the wall clock
	document    []byte

	agent   *acquire.Agent
	session *acquire.Session // of the requests that wait under lease IDs that the server made
	hooks   *holdfast.Hooks  // the counters of acquires and renewals

	leaving  atomic.Bool     // the context of Serve has ended: /readyz reports that the server stops
	stopping context.Context //nolint:containedctx // ends when the server begins to stop
	stop     context.CancelFunc

	mu      sync.Mutex
	closed  bool
	closing sync.Once
	work    sync.WaitGroup // background work, see later
}

// New returns a server on b. It sends nothing to b yet. Close the server, or let Serve close
// it, before b. The server does not close b.
//
// A backend without timed leases is refused with backend.ErrUnsupported: leases over HTTP
// outlive the connection. A field of cfg that is out of bounds is a *backend.InvalidError. A
// registry that already has the metrics is an error.
func New(b backend.Backend, cfg Config) (*Server, error) {
	if b == nil {
		return nil, fmt.Errorf("new server: %w", invalid("backend", "nil", "a backend"))
	}
	caps := b.Capabilities()
	if !caps.Timed {
		return nil, fmt.Errorf("new server on %s: leases over HTTP are timed leases: %w", caps.Name, backend.ErrUnsupported)
	}
	if err := cfg.defaults(caps); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s := &Server{
		cfg: cfg, caps: caps, table: routes(), admission: newAdmission(cfg.Limits), audit: newAuditor(cfg.Audit),
		crossOrigin: http.NewCrossOriginProtection(), queue: newLine(), document: openAPI(cfg.Version),
	}
	var err error
	own := prometheus.NewRegistry()
	s.metrics, err = observe.NewServer(own, observe.Options{
		Backend: caps.Name, Version: cfg.Version, OldestWaiter: s.queue.oldest, Sessions: s.sessions,
	})
	if err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s.mux = s.newMux()
	s.b = s.metrics.Backend(b)
	s.guarded, _ = b.(backend.Guarded)
	s.identified, _ = b.(backend.Identified)
	s.registry = newRegistry(s.metrics)
	s.renewer = newRenewer(s.b, callsForHolders, cfg.Timeout)
	s.claims = newRenewer(s.b, callsForClaims, cfg.Timeout)
	s.hub = newHub(s.b, cfg.Limits.Backlog, &s.losses)
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.hooks = s.metrics.Hooks()
	s.agent = acquire.New(acquire.Config{
		Backend: bounded{s.b, s}, TTL: cfg.PlaceTTL, Timeout: cfg.Timeout, Logger: cfg.Logger, Observer: observer{s.hooks},
	})
	s.session = s.agent.NewSession()
	if err := errors.Join(s.register(own), cfg.Registry.Register(own)); err != nil { // last: a scrape may come at any time
		return nil, errors.Join(fmt.Errorf("new server: %w", err), s.Close(context.Background()))
	}
	return s, nil
}

func (s *Server) sessions() int {
	s.agent.Mu.Lock()
	defer s.agent.Mu.Unlock()
	return s.agent.Sessions()
}

// Handler returns the server as a handler, for a program that has its own http.Server. That
// program then sets the time-outs and the limits on connections and headers: see [Limits].
// Close the Server in the end.
func (s *Server) Handler() http.Handler { return s }

// Serve answers the requests that arrive on ln until ctx ends, and then stops. To stop, it
// returns 503 at /readyz for Config.DrainDelay, answers all waiters (503 with Retry-After; their
// places in the queue are kept for a while), accepts no more connections, waits for the requests
// in progress, and closes the Server. Config.DrainTimeout bounds all that comes before the closing, and the
// closing once more. Leases stay. Serve closes ln.
//
// The error is nil after a stop that ctx asked for. Otherwise it says why Serve could not begin
// or continue. Unless Config.Authorize or Config.Anonymous is set, ln must be on the loopback
// or a Unix socket.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if err := s.checkListener(ln); err != nil {
		return errors.Join(fmt.Errorf("serve: %w", err), ln.Close(), s.Close(context.WithoutCancel(ctx)))
	}
	h := s.httpServer(ctx)
	bounded := &boundedListener{Listener: ln, s: s}
	failed := make(chan error, 1) // gets one value when accepting has ended, and is closed then
	go func() {
		defer close(failed)
		if h.TLSConfig != nil {
			failed <- h.ServeTLS(bounded, "", "")
			return
		}
		failed <- h.Serve(bounded)
	}()
	if s.guarded != nil {
		s.later(func(ctx context.Context) { // log a quarantine before the first request arrives
			ctx, cancel := context.WithTimeout(ctx, readyTimeout)
			defer cancel()
			defer context.AfterFunc(s.stopping, cancel)()
			s.noteQuarantine(s.guarded.Quarantined(ctx))
		})
	}
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		err = s.linger(failed)
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	s.stop()
	// A waiter learns from its answer that the server stops, and not from a refused connection. It sends no other request on
	// this one, which is about to be closed.
	h.SetKeepAlivesEnabled(false)
	select {
	case <-s.queue.emptied():
	case <-drain.Done():
	}
	if shut := h.Shutdown(drain); shut != nil {
		s.cfg.Logger.LogAttrs(ctx, levelWarn, "requests were cut short", attrError(shut))
		err = errors.Join(err, h.Close())
	}
	for range failed { // wait until accepting has ended
	}
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancelLast()
	return errors.Join(err, s.Close(last))
}

// linger serves for Config.DrainDelay more, not ready, unless accepting fails.
func (s *Server) linger(failed <-chan error) error {
	s.leaving.Store(true)
	delay := time.NewTimer(s.cfg.DrainDelay)
	defer delay.Stop()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-delay.C:
		return nil
	}
}

// checkListener refuses a listener on the network for a server without authorisation.
func (s *Server) checkListener(ln net.Listener) error {
	if s.cfg.Authorize != nil || s.cfg.Anonymous {
		return nil
	}
	if _, ok := ln.Addr().(*net.UnixAddr); ok || isLoopback(ln.Addr()) {
		return nil
	}
	return invalid("listener", short(ln.Addr().String()), "on the loopback or a Unix socket, unless Config.Authorize or Config.Anonymous is set")
}

func (s *Server) httpServer(ctx context.Context) *http.Server {
	l := s.cfg.Limits
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           s,
		TLSConfig:         s.cfg.TLS.Clone(),
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ReadHeaderTimeout: l.ReadHeaderTimeout,
		ReadTimeout:       l.ReadTimeout,
		IdleTimeout:       l.IdleTimeout,
		ConnContext:       withConn,
		MaxHeaderBytes:    maxHeaders,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: 16 << 10},
	}
}

// later runs f in the background, within the time that Close allows. It runs f immediately, in
// the caller, when the Server is already closed.
func (s *Server) later(f func(context.Context)) {
	run := func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.PlaceTTL+s.cfg.Timeout)
		defer cancel()
		f(ctx)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		run()
		return
	}
	s.work.Go(run)
	s.mu.Unlock()
}

// Close answers all waiters and ends what the Server started. Leases stay, and the places in
// the queue of client-made leases stay for a while. When ctx ends before the backend has
// answered, Close returns the cause of ctx. Serve calls Close. A second Close does nothing.
func (s *Server) Close(ctx context.Context) error {
	s.stop()
	var err error
	s.closing.Do(func() {
		s.hub.close()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		settled := make(chan struct{})
		go func() { s.work.Wait(); close(settled) }()
		select {
		case <-settled:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		err = errors.Join(err, s.agent.Close(ctx, s.session, func() []backend.ReleaseRequest { return nil }))
	})
	if err != nil {
		return fmt.Errorf("close server: %w", err)
	}
	return nil
}

const levelWarn = slog.LevelWarn

func attrLock(name string) slog.Attr { return slog.String("lock", name) }
func attrError(err error) slog.Attr  { return slog.String("error", err.Error()) }

// cause wraps err in the reason why ctx ended.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}
