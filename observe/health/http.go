package health

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// shared is the check that concurrent requests share.
type shared struct {
	mu      sync.Mutex
	running chan struct{} // closed when the check is done; nil: no check is in progress
	last    Report
	at      time.Time // when the last check was done; zero: never
}

// answer is the JSON form of a report.
type answer struct {
	Status  Status   `json:"status"`
	Backend string   `json:"backend"`
	TookMS  float64  `json:"acquire_and_release_ms"`
	Found   []string `json:"found"`
	Notes   []string `json:"notes"`
	Error   string   `json:"error,omitempty"`
}

// MarshalJSON encodes the report as an object: status, backend, acquire_and_release_ms, found, and
// error if there is one.
func (r Report) MarshalJSON() ([]byte, error) {
	a := answer{Status: r.Status, Backend: r.Backend, TookMS: float64(r.Took.Microseconds()) / 1000, Found: append([]string{}, r.Found...), Notes: append([]string{}, r.Notes...)}
	if r.Err != nil {
		a.Error = r.Err.Error()
	}
	return json.Marshal(a) //nolint:wrapcheck // it cannot fail
}

// ServeHTTP answers GET and HEAD with the report as JSON: status 200 if locks can be acquired, even
// if degraded, and 503 if they cannot. Requests that arrive together, or within Config.Fresh, share
// one check. The report names servers: it is for the program's operators.
func (c *Checker) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	r, ok := c.recent(req.Context())
	if !ok {
		return // the caller has hung up
	}
	body, err := json.Marshal(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if r.Status == Unhealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(append(body, '\n')) // a caller that hung up needs no answer
}

// recent returns the result of a check that is in progress or was done within Config.Fresh, or of a
// new one. It reports false when ctx ended before that.
func (c *Checker) recent(ctx context.Context) (Report, bool) {
	s := &c.shared
	s.mu.Lock()
	if s.running == nil {
		if !s.at.IsZero() && time.Since(s.at) < c.cfg.Fresh {
			defer s.mu.Unlock()
			return s.last, true
		}
		s.running = make(chan struct{})
		// The check continues when its first caller hangs up, because other callers wait for it.
		go c.run(context.WithoutCancel(ctx))
	}
	running := s.running
	s.mu.Unlock()
	select {
	case <-running:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.last, true
	case <-ctx.Done():
		return Report{}, false
	}
}

func (c *Checker) run(ctx context.Context) {
	r := c.Check(ctx)
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.shared.last, c.shared.at = r, time.Now()
	close(c.shared.running)
	c.shared.running = nil
}
