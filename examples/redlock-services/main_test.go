package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// The command runs as the README has it.
func TestRun(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), t.Output(), "", 3, ""); err != nil {
		t.Error(err)
	}
}

// Health and the metrics that the document asks for are served.
func TestServe(t *testing.T) {
	t.Parallel()
	url := "redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, 3)) + "?quarantine=off"
	listen, err := freeAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, t.Output(), url, 2, listen) }()
	get := func(path string) string {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listen+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK {
					t.Fatalf("%s: %d %v", path, res.StatusCode, err)
				}
				return string(body)
			}
			select {
			case err := <-ended:
				t.Fatalf("it has ended: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	var health struct{ Status string }
	if err := json.Unmarshal([]byte(get("/healthz")), &health); err != nil || health.Status == "" || health.Status == "unhealthy" {
		t.Errorf("%+v, %v", health, err)
	}
	metrics := get("/metrics")
	for _, want := range []string{
		`holdfast_acquire_total{backend="redlock",mode="exclusive",result="acquired"}`, `holdfast_acquire_total{backend="redlock",mode="exclusive",result="held"}`,
		`holdfast_wait_seconds_count{backend="redlock",mode="exclusive"}`, `holdfast_hold_seconds_count`, `holdfast_lost_total`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("there is no %s", want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
