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

	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
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

	a := testserver.Do[any](t, http.MethodGet, url+"/fails", "").Expect(t, http.StatusServiceUnavailable, "unavailable")
	if strings.Contains(a.Text, "secret") || a.Header.Get("Retry-After") != "1" {
		t.Errorf("an unmapped error: %v %s", a.Header, a.Text)
	}
	slow := make(chan string, 1)
	go func() { slow <- testserver.Do[any](t, http.MethodGet, url+"/slow", "").Text }()
	<-begun
	stop()
	for err == nil { // the listener goes first
		_, err = testserver.Ask[any](t.Context(), http.MethodGet, url+"/fails", "")
	}
	if len(served) > 0 {
		t.Error("it ended with a request under way")
	}
	close(goOn)
	if body := <-slow; !strings.Contains(body, "done") {
		t.Errorf("the request under way got %q", body)
	}
	if err := <-served; err != nil {
		t.Errorf("it ended with %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestInput: every refusal is a problem that says what is wrong.
func TestInput(t *testing.T) {
	t.Parallel()
	h := web.New(slog.New(slog.DiscardHandler), map[string]web.Handler{
		"POST /things/{id}": func(w http.ResponseWriter, r *http.Request) error {
			if _, err := web.ID(r, "id"); err != nil {
				return err
			}
			return web.Decode(w, r, new(struct {
				Number int `json:"number"`
			}))
		},
	}, nil, web.Portuguese{})
	for _, c := range []struct {
		method, path, body, want string
		status                   int
	}{
		{"POST", "/things/1", `{"number":1}`, "", 200},
		{"POST", "/things/1", ``, `"field":"body"`, 400},
		{"POST", "/things/1", `{`, `"field":"body"`, 400},
		{"POST", "/things/1", `[]`, `"field":"body"`, 400},
		{"POST", "/things/1", `{"number":"1"}`, `"field":"number"`, 400},
		{"POST", "/things/1", `{"number":1.5}`, `"field":"number"`, 400},
		{"POST", "/things/1", `{"number":1,"price":0}`, `"field":"body"`, 400},
		{"POST", "/things/1", `{"number":1} {}`, `"field":"body"`, 400},
		{"POST", "/things/1", `{"number":1` + strings.Repeat(" ", 5000) + `}`, "too-large", 413},
		{"POST", "/things/0", ``, `"field":"id"`, 400},
		{"POST", "/things/99999999999999999999", ``, `"field":"id"`, 400},
		{"GET", "/things/1", ``, "POST", 405},
		{"GET", "/nothing", ``, "no-such-path", 404},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body)))
		if kind := w.Header().Get("Content-Type"); w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || (kind == "application/problem+json") != (c.status != 200) {
			t.Errorf("%s %s %.60s: %d %s", c.method, c.path, c.body, w.Code, w.Body)
		}
	}
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
