package httpfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/httpfence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// service is a stock that is written over HTTP.
type service struct {
	stock  string
	tokens []fence.Token // that the handler saw
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		t, _ := httpfence.Token(r.Context())
		s.tokens = append(s.tokens, t)
		s.stock = r.FormValue("n")
	}
	w.WriteHeader(http.StatusNoContent)
}

// writes returns the name of the guarded resource: writes of the stock.
func writes(r *http.Request) string {
	if r.Method == http.MethodGet {
		return ""
	}
	return "stock"
}

// guarded returns the service behind the gate, for callers that are all allowed.
func guarded(t *testing.T, s *service, gate httpfence.Gate, resource func(*http.Request) string) http.Handler {
	t.Helper()
	h, err := httpfence.Handler(s, httpfence.Config{Authorize: httpfence.Authenticated, Resource: resource, Gate: gate})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func serve(t *testing.T, h http.Handler) (string, *http.Client) {
	t.Helper()
	srv := httptest.NewServer(h)
	base := &http.Transport{}
	t.Cleanup(func() { srv.Close(); base.CloseIdleConnections() })
	return srv.URL, &http.Client{Transport: &httpfence.Transport{Base: base}}
}

// put sends a write, with the given headers besides those of the transport.
func put(ctx context.Context, t *testing.T, c *http.Client, url, n string, headers ...string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"?n="+n, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		req.Header.Add(httpfence.Header, h)
	}
	before := req.Header.Clone()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if len(req.Header) != len(before) {
		t.Errorf("the caller's request was changed: %v", req.Header)
	}
	var body map[string]any
	if res.StatusCode != http.StatusNoContent {
		if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("Content-Type %q", got)
		}
		if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
	}
	return res.StatusCode, body
}

// TestLateWriter: the late request is refused, and the answer names the newer token; without the
// guard the data is lost.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	s := &service{}
	url, c := serve(t, guarded(t, s, httpfence.InProcess(fence.NewGuard()), writes))
	first, second := httpfence.WithToken(t.Context(), 33), httpfence.WithToken(t.Context(), 34)
	if status, body := put(second, t, c, url, "7"); status != 204 {
		t.Fatal(status, body)
	}
	status, body := put(first, t, c, url, "9")
	if status != http.StatusPreconditionFailed || body["newest"] != 34.0 || body["token"] != 33.0 || s.stock != "7" {
		t.Errorf("the late write: %d %v, stock %s", status, body, s.stock)
	}
	if len(s.tokens) != 1 || s.tokens[0] != 34 {
		t.Errorf("the handler saw the tokens %v", s.tokens)
	}
	open := &service{}
	url, c = serve(t, open)
	put(second, t, c, url, "7")
	if put(first, t, c, url, "9"); open.stock != "9" {
		t.Errorf("stock %s: without the guard the late write was to be there", open.stock)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := &service{}
	url, c := serve(t, guarded(t, s, httpfence.InProcess(fence.NewGuard()), writes))
	for name, tc := range map[string]struct {
		headers []string
		want    int
	}{
		"none":     {nil, http.StatusPreconditionRequired},
		"plus":     {[]string{"+11"}, http.StatusBadRequest},
		"zeros":    {[]string{"011"}, http.StatusBadRequest},
		"hex":      {[]string{"0xff"}, http.StatusBadRequest},
		"2^64+11":  {[]string{"18446744073709551627"}, http.StatusBadRequest},
		"Unicode":  {[]string{"\uff11"}, http.StatusBadRequest},
		"spaced":   {[]string{"1 1"}, http.StatusBadRequest},
		"epoch 0":  {[]string{"0:11"}, http.StatusBadRequest},
		"no epoch": {[]string{":11"}, http.StatusBadRequest},
		"greatest": {[]string{"9223372036854775807"}, http.StatusBadRequest},
		"epoch 1":  {[]string{"1:11"}, http.StatusConflict},
		"empty":    {[]string{""}, http.StatusBadRequest},
		"zero":     {[]string{"0"}, http.StatusBadRequest},
		"negative": {[]string{"-1"}, http.StatusBadRequest},
		"words":    {[]string{"seven"}, http.StatusBadRequest},
		"too much": {[]string{"9223372036854775808"}, http.StatusBadRequest},
		"twice":    {[]string{"1", "2"}, http.StatusBadRequest},
		"a list":   {[]string{"1,2"}, http.StatusBadRequest},
	} {
		if status, body := put(t.Context(), t, c, url, "1", tc.headers...); status != tc.want || body["status"] != float64(tc.want) {
			t.Errorf("%s: %d %v, want %d", name, status, body, tc.want)
		}
	}
	if s.stock != "" {
		t.Error("a bad request was served")
	}
	res, err := c.Get(url) //nolint:noctx // an unguarded request needs no token
	if err != nil || res.StatusCode != http.StatusNoContent {
		t.Errorf("%v, %v", res, err)
	}
	res.Body.Close()
}

// TestGateFails: however the gate fails, the request is not served, and the gate's secrets are not
// shown.
func TestGateFails(t *testing.T) {
	t.Parallel()
	s := &service{}
	gate := httpfence.At(func(context.Context, string, fence.Stamp) error { return errors.New("postgres://u:secret@db is down") })
	url, c := serve(t, guarded(t, s, gate, writes))
	status, body := put(httpfence.WithToken(t.Context(), 5), t, c, url, "1")
	if status != http.StatusServiceUnavailable || s.stock != "" {
		t.Errorf("%d, stock %q", status, s.stock)
	}
	if text, _ := body["detail"].(string); strings.Contains(text, "secret") {
		t.Errorf("it tells %q", text)
	}
	silent := guarded(t, s, func(context.Context, string, fence.Stamp, func()) error { return nil }, writes)
	url, c = serve(t, silent)
	if status, _ := put(httpfence.WithToken(t.Context(), 5), t, c, url, "1"); status != http.StatusInternalServerError || s.stock != "" {
		t.Errorf("a gate that neither serves nor refuses: %d, stock %q", status, s.stock)
	}
	long := guarded(t, s, httpfence.InProcess(fence.NewGuard()), func(*http.Request) string { return strings.Repeat("x", 600) })
	url, c = serve(t, long)
	if status, _ := put(httpfence.WithToken(t.Context(), 5), t, c, url, "1"); status != http.StatusBadRequest {
		t.Errorf("a resource that is too long: %d", status)
	}
}

// TestAt: a gate that checks elsewhere gets the arguments to check, and the handler has the token
// for the write.
func TestAt(t *testing.T) {
	t.Parallel()
	s := &service{}
	var asked []string
	gate := httpfence.At(func(_ context.Context, resource string, s fence.Stamp) error {
		asked = append(asked, resource+" "+s.String())
		if s.Token < 3 {
			return &fence.StaleError{Resource: resource, Token: s.Token, Newest: 3}
		}
		return nil
	})
	url, c := serve(t, guarded(t, s, gate, writes))
	if status, _ := put(httpfence.WithToken(t.Context(), 3), t, c, url, "1"); status != http.StatusNoContent {
		t.Error(status)
	}
	if status, _ := put(t.Context(), t, c, url, "2", "2"); status != http.StatusPreconditionFailed {
		t.Error(status)
	}
	if strings.Join(asked, ",") != "stock 3,stock 2" || s.stock != "1" || s.tokens[0] != 3 {
		t.Errorf("asked %v, stock %s, tokens %v", asked, s.stock, s.tokens)
	}
}
