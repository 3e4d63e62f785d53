package dashboard_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/dashboard"
)

func get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	w := httptest.NewRecorder()
	dashboard.Serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	res := w.Result()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/dashboard.css": "text/css; charset=utf-8", "/dashboard.js": "text/javascript; charset=utf-8",
	} {
		res, body := get(t, path)
		if res.StatusCode != http.StatusOK || body == "" {
			t.Errorf("GET %s: status %d, %d bytes", path, res.StatusCode, len(body))
		}
		if got := res.Header.Get("Content-Type"); got != kind {
			t.Errorf("GET %s: Content-Type %q, want %q", path, got, kind)
		}
		if got := res.Header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none';") || strings.Contains(got, "unsafe") {
			t.Errorf("GET %s: Content-Security-Policy %q", path, got)
		}
	}
	if res, _ := get(t, "/dashboard.go"); res.StatusCode != http.StatusNotFound {
		t.Errorf("GET /dashboard.go: status %d, want 404", res.StatusCode)
	}
}

// Any client that can take a lock chooses its name: the page must never take it for markup.
func TestNoMarkupFromData(t *testing.T) {
	t.Parallel()
	_, js := get(t, "/dashboard.js")
	for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc", "javascript:", "createContextualFragment"} {
		if strings.Contains(js, bad) {
			t.Errorf("dashboard.js has %s: use textContent, so that no name or owner is ever markup", bad)
		}
	}
	_, html := get(t, "/")
	if inline := regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>[^<]|\son[a-z]+=|<style|\sstyle=`).FindString(html); inline != "" {
		t.Errorf("dashboard.html has %q: the policy lets no inline script or style run", inline)
	}
}

// The policy permits what the page needs, from its own host, and nothing else.
func TestPolicy(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self'",
		"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'", "require-trusted-types-for": "'script'",
	}
	res, _ := get(t, "/")
	got := make(map[string]string)
	for directive := range strings.SplitSeq(res.Header.Get("Content-Security-Policy"), ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), " ")
		got[name] = value
	}
	if !maps.Equal(got, want) {
		t.Errorf("policy %v, want %v", got, want)
	}
	for header, value := range map[string]string{
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	} {
		if got := res.Header.Get(header); got != value {
			t.Errorf("%s is %q, want %q", header, got, value)
		}
	}
}

// The page only reads: two addresses, and no way to send anything.
func TestReadsOnly(t *testing.T) {
	t.Parallel()
	_, js := get(t, "/dashboard.js")
	for _, bad := range []string{"method:", "XMLHttpRequest", "sendBeacon", "WebSocket", "localStorage", "cookie", "import(", "Worker("} {
		if strings.Contains(js, bad) {
			t.Errorf("dashboard.js has %s: the page only reads", bad)
		}
	}
	asked := regexp.MustCompile(`(?:fetch|EventSource)\("([^"?]*)`).FindAllStringSubmatch(js, -1)
	if len(asked) != 2 || asked[0][1] != "/v1/locks" || asked[1][1] != "/v1/events" {
		t.Errorf("dashboard.js asks %v", asked)
	}
	_, html := get(t, "/")
	if form := regexp.MustCompile(`(?i)<(form|button|iframe|object|embed|base)\b`).FindString(html); form != "" {
		t.Errorf("dashboard.html has %s", form)
	}
}

// Every element that the script looks up is on the page, and every file that the page loads is
// served.
func TestPartsFitTogether(t *testing.T) {
	t.Parallel()
	_, html := get(t, "/")
	_, js := get(t, "/dashboard.js")
	_, css := get(t, "/dashboard.css")
	ids := regexp.MustCompile(`byId\("([^"]+)"\)`).FindAllStringSubmatch(js, -1)
	if len(ids) < 8 {
		t.Fatalf("only %d elements are looked up", len(ids))
	}
	for _, id := range ids {
		if !strings.Contains(html, `id="`+id[1]+`"`) {
			t.Errorf("there is no element %s", id[1])
		}
	}
	for _, ref := range regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(html, -1) {
		if res, _ := get(t, ref[1]); res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", ref[1], res.StatusCode)
		}
	}
	for _, class := range regexp.MustCompile(`"(who|owner|note|nobody|name|tag|num|first|soon|over|more)"`).FindAllStringSubmatch(js, -1) {
		if !strings.Contains(css, "."+class[1]) {
			t.Errorf("there is no style for %s", class[1])
		}
	}
}

// The page must work without access to other hosts.
func TestNoOtherHosts(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/dashboard.css", "/dashboard.js"} {
		_, body := get(t, path)
		if other := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]+|@import|url\(`).FindString(body); other != "" {
			t.Errorf("%s refers to %q: the page takes nothing from other hosts", path, other)
		}
	}
}
