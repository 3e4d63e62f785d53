package httpfence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/httpfence"
)

// raw sends the header lines unchanged, and returns the status of the answer.
func raw(t *testing.T, url, lines string) int {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT /?n=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n%s\r\n", lines)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// TestRawHeaders: however the header is spelled, one token counts or none does.
func TestRawHeaders(t *testing.T) {
	t.Parallel()
	s := &service{}
	url, _ := serve(t, guarded(t, s, httpfence.InProcess(fence.NewGuard()), writes))
	for _, tc := range []struct {
		name, lines string
		want        int
	}{
		{"the holder", "Holdfast-Token: 10\r\n", http.StatusNoContent},
		{"lower case, stale", "holdfast-token: 5\r\n", http.StatusPreconditionFailed},
		{"two headers", "Holdfast-Token: 5\r\nHoldfast-Token: 11\r\n", http.StatusBadRequest},
		{"two headers in two cases", "Holdfast-Token: 11\r\nHOLDFAST-TOKEN: 5\r\n", http.StatusBadRequest},
		{"one of two is empty", "Holdfast-Token: 11\r\nHoldfast-Token: \r\n", http.StatusBadRequest},
		{"a list", "Holdfast-Token: 11, 5\r\n", http.StatusBadRequest},
		{"another header", "Holdfast_Token: 11\r\n", http.StatusPreconditionRequired},
		{"a full-width digit", "Holdfast-Token: \xef\xbc\x91\r\n", http.StatusBadRequest},
		{"the greatest token there is", "Holdfast-Token: 9223372036854775807\r\n", http.StatusBadRequest},
		{"the greatest epoch there is", "Holdfast-Token: 4294967295:11\r\n", http.StatusConflict},
		{"the rightful holder, after all that", "Holdfast-Token: 10\r\n", http.StatusNoContent},
	} {
		if got := raw(t, url, tc.lines); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	if len(s.tokens) != 2 {
		t.Errorf("the handler was called with the tokens %v; two of them were the holder's", s.tokens)
	}
}

// TestStrangers: a caller that is not allowed reaches neither the guard nor the handler, whatever
// the token and the name.
func TestStrangers(t *testing.T) {
	t.Parallel()
	s, asked := &service{}, 0
	guard := fence.NewGuard()
	h, err := httpfence.Handler(s, httpfence.Config{
		Authorize: func(w http.ResponseWriter, r *http.Request, resource string) bool {
			if user, _, _ := r.BasicAuth(); user == "holder" && resource == "/stock" {
				return true
			}
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "{}")
			return false
		},
		Resource: func(r *http.Request) string { return r.URL.Path },
		Gate: func(ctx context.Context, resource string, stamp fence.Stamp, serve func()) error {
			asked++
			return httpfence.InProcess(guard)(ctx, resource, stamp, serve)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	url, c := serve(t, h)
	for i := range 50 {
		if status, _ := put(t.Context(), t, c, fmt.Sprintf("%s/stock%d", url, i), "9", "1000"); status != http.StatusForbidden {
			t.Fatalf("a stranger: %d", status)
		}
	}
	if status, _ := put(t.Context(), t, c, url+"/stock", "9", httpfence.Header); status != http.StatusForbidden {
		t.Errorf("a stranger with a bad token: %d; it is not told what is wrong with it", status)
	}
	if asked != 0 {
		t.Errorf("the gate was asked %d times for strangers", asked)
	}
	mine := strings.Replace(url, "http://", "http://holder:x@", 1)
	if status, _ := put(t.Context(), t, c, mine+"/stock", "7", "12"); status != http.StatusNoContent || s.stock != "7" {
		t.Errorf("the holder: %d, stock %q", status, s.stock)
	}
}

// TestBounds: an authorized caller that invents names, or jumps, is refused with an explanation;
// known resources still work.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := &service{}
	guard, err := fence.New(fence.Config{MaxResources: 3, MaxJump: 1000})
	if err != nil {
		t.Fatal(err)
	}
	url, c := serve(t, guarded(t, s, httpfence.InProcess(guard), func(r *http.Request) string { return r.URL.Path }))
	for i, want := range []int{204, 204, 204, http.StatusInsufficientStorage, http.StatusInsufficientStorage} {
		if status, body := put(t.Context(), t, c, fmt.Sprintf("%s/%d", url, i), "1", "5"); status != want {
			t.Errorf("name %d: %d %v, want %d", i, status, body, want)
		}
	}
	for _, step := range []struct {
		token string
		want  int
	}{{"6", 204}, {"1007", http.StatusBadRequest}, {"1006", 204}, {"1005", http.StatusPreconditionFailed}} {
		if status, body := put(t.Context(), t, c, url+"/0", "1", step.token); status != step.want {
			t.Errorf("token %s: %d %v, want %d", step.token, status, body, step.want)
		}
	}
}

// TestCeiling: the bound follows the clock, fits the tokens of Redis, and can be set by the caller.
func TestCeiling(t *testing.T) {
	t.Parallel()
	s := &service{}
	url, c := serve(t, guarded(t, s, httpfence.InProcess(fence.NewGuard()), writes))
	redis := fence.Token(time.Now().UnixMicro())
	if status, body := put(t.Context(), t, c, url, "1", redis.String()); status != http.StatusNoContent {
		t.Errorf("a token of Redis: %d %v", status, body)
	}
	const twoDays = 2 * 86_400_000_000
	if status, _ := put(t.Context(), t, c, url, "1", (redis + twoDays).String()); status != http.StatusBadRequest {
		t.Errorf("a token of the day after tomorrow: %d", status)
	}
	h, err := httpfence.Handler(s, httpfence.Config{
		Authorize: httpfence.Authenticated, Resource: writes, Gate: httpfence.InProcess(fence.NewGuard()),
		Ceiling: func(time.Time) fence.Token { return fence.MaxToken },
	})
	if err != nil {
		t.Fatal(err)
	}
	url, c = serve(t, h)
	if status, body := put(t.Context(), t, c, url, "1", fence.MaxToken.String()); status != http.StatusNoContent {
		t.Errorf("without a ceiling: %d %v", status, body)
	}
}

// TestEpochs: the transport carries the epoch, the handler sees it, and a token of another epoch is
// distinguished from a stale one.
func TestEpochs(t *testing.T) {
	t.Parallel()
	s := &service{}
	var seen fence.Stamp
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen, _ = httpfence.Stamp(r.Context())
		s.ServeHTTP(w, r)
	})
	h, err := httpfence.Handler(next, httpfence.Config{Authorize: httpfence.Authenticated, Resource: writes, Gate: httpfence.InProcess(fence.NewGuard().Epoch(1))})
	if err != nil {
		t.Fatal(err)
	}
	url, c := serve(t, h)
	now := httpfence.WithStamp(t.Context(), fence.Stamp{Epoch: 1, Token: 7})
	if status, body := put(now, t, c, url, "7"); status != http.StatusNoContent || seen != (fence.Stamp{Epoch: 1, Token: 7}) {
		t.Errorf("%d %v, the handler saw %v", status, body, seen)
	}
	status, body := put(httpfence.WithToken(t.Context(), 1_000_000), t, c, url, "9")
	if detail, _ := body["detail"].(string); status != http.StatusConflict || s.stock != "7" || !strings.Contains(detail, "epoch 1 is in force") {
		t.Errorf("a token of the store before: %d %v, stock %s", status, body, s.stock)
	}
	if status, _ := put(httpfence.WithStamp(t.Context(), fence.Stamp{Epoch: 1, Token: 6}), t, c, url, "9"); status != http.StatusPreconditionFailed {
		t.Errorf("a stale token: %d", status)
	}
}

// TestIncomplete: a handler that would admit every caller is not created.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	whole := httpfence.Config{Authorize: httpfence.Authenticated, Resource: writes, Gate: httpfence.InProcess(fence.NewGuard())}
	for field, change := range map[string]func(*httpfence.Config){
		"authorize": func(c *httpfence.Config) { c.Authorize = nil },
		"resource":  func(c *httpfence.Config) { c.Resource = nil },
		"gate":      func(c *httpfence.Config) { c.Gate = nil },
	} {
		cfg := whole
		change(&cfg)
		var bad *fence.InvalidError
		if h, err := httpfence.Handler(&service{}, cfg); h != nil || !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("without %s: %v", field, err)
		}
	}
}

func ExampleHandler() {
	write := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stamp, _ := httpfence.Stamp(r.Context())
		fmt.Fprintln(w, "written with token", stamp)
	})
	guarded, err := httpfence.Handler(write, httpfence.Config{
		Authorize: func(w http.ResponseWriter, r *http.Request, resource string) bool {
			if _, password, _ := r.BasicAuth(); password == "the holder's" && resource == "/stock/7" {
				return true // first the caller, then its token
			}
			http.Error(w, "not allowed", http.StatusUnauthorized)
			return false
		},
		Resource: func(r *http.Request) string { return r.URL.Path },
		Gate:     httpfence.InProcess(fence.NewGuard()),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, password := range []string{"", "the holder's"} {
		req := httptest.NewRequestWithContext(context.Background(), http.MethodPut, "/stock/7", nil)
		req.SetBasicAuth("w7", password)
		req.Header.Set(httpfence.Header, "33")
		res := httptest.NewRecorder()
		guarded.ServeHTTP(res, req)
		fmt.Println(res.Code, strings.TrimSpace(res.Body.String()))
	}
	// Output:
	// 401 not allowed
	// 200 written with token 33
}
