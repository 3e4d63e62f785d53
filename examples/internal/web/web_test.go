package web_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
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
	}, func(error) *web.ProblemError { return nil }, web.Portuguese{})
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

// Problems are told in the language that the client prefers, or in that of the service.
func TestLanguages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first        bool
		accept, want string
	}{
		{false, "", "en"},
		{true, "", "pt"},
		{true, "*", "pt"},
		{true, "de, fr;q=0.5", "pt"},
		{false, "pt-BR", "pt"},
		{false, "PT", "pt"},
		{true, "en-US,en;q=0.9,pt;q=0.8", "en"},
		{false, "en;q=0.4, pt;q=0.6", "pt"},
		{false, "pt;q=0", "en"},
		{true, "en;q=x", "pt"},
	} {
		h := web.New(slog.New(slog.DiscardHandler), map[string]web.Handler{
			"GET /known": func(http.ResponseWriter, *http.Request) error {
				return &web.ProblemError{Status: 409, Type: "known", Title: "Known"}
			},
			"GET /unknown": func(http.ResponseWriter, *http.Request) error { return &web.ProblemError{Status: 409, Type: "unknown"} },
			"GET /invalid": func(http.ResponseWriter, *http.Request) error { return web.Invalid("ate", "must be given") },
		}, nil, web.Portuguese{First: c.first, Texts: map[string]web.Text{"known": {Title: "Conhecido", Detail: "sim"}}})
		ask := func(path string) (string, string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			r.Header.Set("Accept-Language", c.accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Header().Get("Content-Language"), w.Body.String()
		}
		if got, body := ask("/known"); got != c.want || strings.Contains(body, "Conhecido") != (c.want == "pt") {
			t.Errorf("%q, first %t: %s %s, want %s", c.accept, c.first, got, body, c.want)
		}
		if got, body := ask("/invalid"); got != c.want || strings.Contains(body, "o campo ate não é válido") != (c.want == "pt") {
			t.Errorf("%q, first %t: %s %s, want %s", c.accept, c.first, got, body, c.want)
		}
		if got, body := ask("/unknown"); got != "en" {
			t.Errorf("a problem without a text: %s %s", got, body)
		}
	}
}
