package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/holdfast-io/holdfast/internal/wire"
)

// defaultRegistry returns the registry of a server whose program has none. It has the metrics of
// the Go runtime and of the process.
func defaultRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// register registers the server's own metrics.
func (s *Server) register(reg prometheus.Registerer) error {
	s.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_http_requests_total",
		Help: "HTTP requests, by route and status code; none: no such route, or no answer.",
	}, []string{"route", "code"})
	for i := range s.table {
		s.requests.WithLabelValues(s.table[i].label(), strconv.Itoa(http.StatusOK))
	}
	err := errors.Join(
		reg.Register(s.requests),
		state(reg, "holdfast_quarantine", "1 while the store is in quarantine: it is new or may have lost data, and grants nothing.", s.quarantined),
		state(reg, "holdfast_ready", "1 if the store answers and grants locks, as /readyz says. A scrape asks it.", s.isReady),
	)
	if stale := s.cfg.Stale; stale != nil {
		err = errors.Join(err, state(reg, "holdfast_config_stale", "1 while the policy or the certificates have changed and cannot be used.", stale))
	}
	if expires := s.cfg.CertificateExpires; expires != nil {
		err = errors.Join(err, reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_tls_certificate_expires_seconds", Help: "Unix time at which the certificate that clients are shown expires.",
		}, func() float64 { return float64(expires().Unix()) })))
	}
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// state registers a gauge that is 1 while is reports true.
func state(reg prometheus.Registerer, name, help string, is func() bool) error {
	return reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { //nolint:wrapcheck // by its caller
		if is() {
			return 1
		}
		return 0
	}))
}

// label returns the value of the label route. A nil receiver is a request without a route.
func (rt *route) label() string {
	if rt == nil {
		return "none"
	}
	return rt.method + " " + rt.pattern
}

// answered counts and logs a request when it has been served. Its labels are bounded: they come from the
// table of routes and from the codes that the server sends.
func (s *Server) answered(r *request) {
	code := "none" // the client was gone
	if r.answer.code != 0 {
		code = strconv.Itoa(r.answer.code)
	}
	s.requests.WithLabelValues(r.route.label(), code).Inc()
	if ctx := r.Context(); s.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		s.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "request", attrRequest(r), slog.String("route", r.route.label()), attrLock(r.name),
			slog.String("code", code), slog.Duration("took", time.Since(r.arrived)), slog.String("from", r.RemoteAddr))
	}
}

func attrRequest(r *request) slog.Attr { return slog.String("request", r.id) }

// requestID returns the ID that the client, or a proxy, gave the request, or a new one.
func requestID(r *http.Request) string {
	const most = 64
	id := r.Header.Get(wire.HeaderRequestID)
	if id == "" || len(id) > most || strings.ContainsFunc(id, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune("._:-", c)
	}) {
		return rand.Text()
	}
	return id
}

// answer is the ResponseWriter of a request. It remembers the status code.
type answer struct {
	http.ResponseWriter

	store func() string // the ID that the answer names
	code  int
	first []func()
}

// before makes the answer call f before it is sent. The caller must call the function that is returned, which
// calls f if there was no answer. A client that has its answer may send the next request at once: what the
// last one used must not count then.
func (a *answer) before(f func()) func() {
	f = sync.OnceFunc(f)
	a.first = append(a.first, f)
	return f
}

// begin remembers the code of the answer, and adds the ID of the store, which the first answer of the store has told.
func (a *answer) begin(code int) {
	if a.code != 0 {
		return
	}
	a.code = code
	if id := a.store(); id != "" {
		a.Header().Set(wire.HeaderStore, id)
	}
	for _, f := range a.first {
		f()
	}
}

// WriteHeader remembers the code and sends the header.
func (a *answer) WriteHeader(code int) {
	a.begin(code)
	a.ResponseWriter.WriteHeader(code)
}

// Write writes a part of the answer.
func (a *answer) Write(b []byte) (int, error) {
	a.begin(http.StatusOK)
	return a.ResponseWriter.Write(b) //nolint:wrapcheck // it stands for the writer
}

// Unwrap returns the writer of net/http, for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
