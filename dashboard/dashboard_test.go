package dashboard_test

import (
	"io"
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

// Whoever can take a lock chooses its name: the page must never take it for markup.
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

// The page must work where there is no way out.
func TestNoOtherHosts(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/dashboard.css", "/dashboard.js"} {
		_, body := get(t, path)
		if other := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]+|@import|url\(`).FindString(body); other != "" {
			t.Errorf("%s refers to %q: the page takes nothing from other hosts", path, other)
		}
	}
}
