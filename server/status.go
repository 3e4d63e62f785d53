package server

import (
	"bytes"
	"context"
	_ "embed" // for the OpenAPI document
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/dashboard"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/wire"
)

//go:embed openapi.json
var openAPIDocument []byte

// openAPI returns the document with the version filled in.
func openAPI(version string) []byte {
	return bytes.Replace(openAPIDocument, []byte(`"0.0.0"`), []byte(strconv.Quote(version)), 1)
}

// readiness caches for a moment whether the backend answers. It reads: a store that is full is ready.
type readiness struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

const (
	readyFor     = time.Second     // how long an answer is valid
	readyTimeout = 2 * time.Second // for one check
	readyName    = "holdfast-readyz"
)

// check asks the backend, unless there is a recent answer.
func (r *readiness) check(ctx context.Context, s *Server) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.asked.IsZero() && time.Since(r.asked) < readyFor {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
	defer cancel()
	before := r.err
	_, r.err = s.b.Inspect(ctx, readyName)
	if r.err == nil && s.guarded != nil {
		r.err = s.guarded.Quarantined(ctx)
	}
	r.asked = time.Now()
	switch {
	case r.err == nil && before != nil:
		s.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "the store answers and grants locks again", slog.String("backend", s.caps.Name))
	case r.err != nil && before == nil && !errors.Is(r.err, backend.ErrQuarantine):
		s.cfg.Logger.LogAttrs(ctx, levelWarn, "the store does not answer: this server is not ready", attrError(r.err))
	}
	s.noteQuarantine(r.err)
	return r.err
}

// isReady reports whether /readyz returns 200.
func (s *Server) isReady() bool {
	return !s.leaving.Load() && s.stopping.Err() == nil && s.ready.check(context.Background(), s) == nil
}

// noteQuarantine remembers a quarantine of the backend, and logs it once.
func (s *Server) noteQuarantine(err error) {
	q, ok := errors.AsType[*backend.QuarantineError](err)
	if !ok {
		return
	}
	const slack = 2 * time.Second // its end is never known exactly
	if known := s.quarantine.Swap(q.Until.Add(slack).UnixNano()); q.Until.UnixNano() > known {
		acquire.LogQuarantine(s.cfg.Logger, q)
	}
}

// quarantined reports whether the last answer of the backend was a quarantine that has not
// ended.
func (s *Server) quarantined() bool { return time.Now().UnixNano() < s.quarantine.Load() }

// storeID returns the ID of the store; empty if it is not known, or not yet.
func (s *Server) storeID() string {
	if s.identified == nil {
		return ""
	}
	return s.identified.StoreID()
}

// checkStore refuses a client that uses another store.
func (s *Server) checkStore(r *http.Request) error {
	want, is := r.Header.Get(wire.HeaderStore), s.storeID()
	if want == "" || is == "" || want == is {
		return nil
	}
	return &refusal{http.StatusPreconditionFailed, errors.New("this server has another store than the client")}
}

// healthz serves GET /healthz: the process is alive.
func (s *Server) healthz(w http.ResponseWriter, r *request) {
	s.write(w, r, http.StatusOK, wire.Health{Status: "ok"})
}

// readyz serves GET /readyz: the backend answers and grants locks, and the server is not
// stopping.
func (s *Server) readyz(w http.ResponseWriter, r *request) {
	var err error
	if s.leaving.Load() || s.stopping.Err() != nil {
		err = errStopping
	} else {
		err = s.ready.check(r.Context(), s)
	}
	caps := wire.FromCapabilities(s.caps, s.cfg.Limits.MinTTL, s.cfg.Limits.MaxTTL, s.cfg.Limits.Wait)
	if err != nil { // the capabilities do not depend on err: a client that opens now may wait until the failure has ended
		s.failWith(w, r, err, caps)
		return
	}
	s.write(w, r, http.StatusOK, wire.Health{Status: "ready", Backend: s.caps.Name, Capabilities: caps})
}

// metricsPage serves GET /metrics.
func (s *Server) metricsPage(w http.ResponseWriter, r *request) {
	s.registry.sweep()
	s.deadline(w)
	promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r.Request)
}

// openapi serves GET /openapi.json.
func (s *Server) openapi(w http.ResponseWriter, r *request) {
	s.deadline(w)
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r.Request, "", time.Time{}, bytes.NewReader(s.document))
}

// page serves the dashboard.
func (s *Server) page(w http.ResponseWriter, r *request) {
	s.deadline(w)
	dashboard.Serve(w, r.Request)
}

// deadline sets the write deadline of answers that other packages write.
func (s *Server) deadline(w http.ResponseWriter) {
	err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.Limits.WriteTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.cfg.Logger.Debug("no write deadline", attrError(err))
	}
}
