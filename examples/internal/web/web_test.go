package web_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestStop: a service that is told to stop takes no more requests, and finishes those in
// progress first.
func TestStop(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := web.New(slog.New(slog.DiscardHandler), map[string]web.Handler{
		"GET /slow": func(w http.ResponseWriter, _ *http.Request) error {
			close(begun)
			<-goOn
			return web.JSON(w, http.StatusOK, "done")
		},
		"GET /fails": func(http.ResponseWriter, *http.Request) error { return errors.New("a secret") },
	}, func(error) *web.ProblemError { return nil })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, line := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- web.Serve(ctx, "127.0.0.1:0", h, line) }()
	text := make([]byte, 100)
	n, err := out.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(strings.TrimPrefix(string(text[:n]), "listening on "))

	status, body := get(t, url+"/fails")
	if status != http.StatusServiceUnavailable || strings.Contains(body, "secret") {
		t.Errorf("an unmapped error: %d %s", status, body)
	}
	slow := make(chan string, 1)
	go func() { _, body := get(t, url+"/slow"); slow <- body }()
	<-begun
	stop()
	for refused := false; !refused; { // the listener goes first
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/fails", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if refused = err != nil; !refused {
			_ = res.Body.Close()
		}
	}
	if len(served) > 0 {
		t.Error("it ended with a request under way")
	}
	close(goOn)
	if body := <-slow; !strings.Contains(body, "done") {
		t.Errorf("the request under way got %q", body)
	}
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it did not end")
	}
	if err := web.Serve(t.Context(), "127.0.0.1:99999", h, io.Discard); err == nil {
		t.Error("it listens on a port that there is not")
	}
	http.DefaultClient.CloseIdleConnections()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(body)
}
