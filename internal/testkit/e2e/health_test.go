package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/observe/health"
)

func checker(t *testing.T, b backend.Backend, cfg health.Config) *health.Checker {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute // for a busy machine
	}
	c, err := holdfast.New(b, holdfast.Config{Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()) })
	check, err := health.New(c, b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return check
}

// getHealth calls the checker over HTTP.
func getHealth(t *testing.T, c http.Handler) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	var body map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	return w.Code, body
}

// Redlock on three real nodes: all are available; one is unavailable, which is degraded and named
// in the report; two are unavailable, which is unhealthy; and back.
func TestHealthOfRedlock(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	nodes := testserver.RedisNodes(t, redlock.MinNodes)
	b, err := redlock.Open(t.Context(), "redlock://"+testserver.RedisAddrs(nodes)+"?quarantine=off&timeout=5s", redlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := checker(t, b, health.Config{Slow: time.Hour, Fresh: 1})
	becomes := func(want health.Status, code int) map[string]any {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			got, body := getHealth(t, c)
			if body["status"] == string(want) {
				if got != code {
					t.Errorf("%s is %d, want %d", want, got, code)
				}
				return body
			}
			if time.Now().After(deadline) {
				t.Fatalf("want %s, is %v", want, body)
			}
		}
	}
	becomes(health.Healthy, http.StatusOK)
	nodes[1].Kill()
	found, _ := becomes(health.Degraded, http.StatusOK)["found"].([]any)
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	if text, _ := found[0].(string); !strings.HasPrefix(text, "node 2 of 3 is unavailable: ") {
		t.Errorf("found %v", found)
	}
	nodes[2].Process().Stop() // it hangs
	if body := becomes(health.Unhealthy, http.StatusServiceUnavailable); !strings.Contains(body["error"].(string), "unavailable") {
		t.Errorf("%v", body)
	}
	if _, err := b.Away(t.Context()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Away: %v", err)
	}
	nodes[2].Process().Cont()
	becomes(health.Degraded, http.StatusOK)
	nodes[1].Start()
	becomes(health.Healthy, http.StatusOK)
}
