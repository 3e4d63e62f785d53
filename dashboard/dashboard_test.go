package dashboard_test

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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

// scripts returns the scripts by their paths.
func scripts(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.js")
	if err != nil || len(names) < 5 {
		t.Fatalf("%v, %v", names, err)
	}
	all := make(map[string]string)
	for _, name := range names {
		res, text := get(t, "/dashboard/"+name)
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", name, res.StatusCode)
		}
		all["/dashboard/"+name] = text
	}
	return all
}

func TestFiles(t *testing.T) {
	t.Parallel()
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/dashboard/page.css": "text/css; charset=utf-8", "/dashboard/main.js": "text/javascript; charset=utf-8",
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
	for _, path := range []string{"/dashboard/dashboard.go", "/dashboard/page.html", "/dashboard/", "/page.css", "/dashboard/testdata/cases.js", "/dashboard/../page.css"} {
		if res, _ := get(t, path); res.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: status %d, want 404", path, res.StatusCode)
		}
	}
}

// Any client that can take a lock chooses its name: the page must never take it for markup.
func TestNoMarkupFromData(t *testing.T) {
	t.Parallel()
	for path, js := range scripts(t) {
		for _, bad := range []string{
			"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc", "javascript:", "createContextualFragment",
			"XMLHttpRequest", "sendBeacon", "WebSocket", "Storage", "document.cookie", "import(", "Worker(",
		} {
			if strings.Contains(js, bad) {
				t.Errorf("%s has %s", path, bad)
			}
		}
		if lines := strings.Count(js, "\n"); lines >= 500 {
			t.Errorf("%s has %d lines", path, lines)
		}
	}
	_, html := get(t, "/")
	if inline := regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>[^<]|\son[a-z]+=|<style|\sstyle=|<(iframe|object|embed|base)\b`).FindString(html); inline != "" {
		t.Errorf("page.html has %q: the policy lets no inline script or style run", inline)
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

// All requests are in one file, and three of them change something: the break, and the two ends of a session.
func TestRequests(t *testing.T) {
	t.Parallel()
	all := scripts(t)
	api := all["/dashboard/api.js"]
	delete(all, "/dashboard/api.js")
	for path, js := range all {
		if found := regexp.MustCompile(`fetch\(|EventSource|/v1/|method:`).FindString(js); found != "" {
			t.Errorf("%s has %s: requests belong into api.js", path, found)
		}
	}
	if n := strings.Count(api, "changing(\""); n != 3 {
		t.Errorf("%d requests change something", n)
	}
}

// Every element that a script looks up is on the page, and every file that the page or a script loads is
// served.
func TestPartsFitTogether(t *testing.T) {
	t.Parallel()
	_, html := get(t, "/")
	refs := regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(html, -1)
	ids := 0
	for _, js := range scripts(t) {
		for _, id := range regexp.MustCompile(`byId\("([^"]+)"\)`).FindAllStringSubmatch(js, -1) {
			ids++
			if !strings.Contains(html, `id="`+id[1]+`"`) {
				t.Errorf("there is no element %s", id[1])
			}
		}
		for _, from := range regexp.MustCompile(`from "\.(/[^"]+)"`).FindAllStringSubmatch(js, -1) {
			refs = append(refs, []string{"", "/dashboard" + from[1]})
		}
	}
	if ids < 40 || len(refs) < 15 {
		t.Fatalf("only %d elements and %d files are looked up", ids, len(refs))
	}
	for _, ref := range refs {
		if res, _ := get(t, ref[1]); res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", ref[1], res.StatusCode)
		}
	}
}

// The page must work without access to other hosts.
func TestNoOtherHosts(t *testing.T) {
	t.Parallel()
	all := scripts(t)
	for _, path := range []string{"/", "/dashboard/page.css"} {
		_, all[path] = get(t, path)
	}
	for path, body := range all {
		body = strings.ReplaceAll(body, "http://www.w3.org/2000/svg", "") // a name, which is never fetched
		if other := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]+|@import|url\(`).FindString(body); other != "" {
			t.Errorf("%s refers to %q: the page takes nothing from other hosts", path, other)
		}
	}
}

// The text colours of both themes have the contrast of WCAG AA, 4.5 to 1, on every ground.
func TestContrast(t *testing.T) {
	t.Parallel()
	_, css := get(t, "/dashboard/page.css")
	colours := make(map[string][2]string)
	for _, m := range regexp.MustCompile(`--([a-z]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)`).FindAllStringSubmatch(css, -1) {
		colours[m[1]] = [2]string{m[2], m[3]}
	}
	for theme := range 2 {
		for _, ground := range []string{"ground", "raised", "faint", "mark"} {
			for _, text := range []string{"ink", "quiet", "accent", "good", "warn", "bad"} {
				a, b := luminance(t, colours[text][theme]), luminance(t, colours[ground][theme])
				if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
					t.Errorf("theme %d: %s on %s: %.2f", theme, text, ground, ratio)
				}
			}
		}
	}
}

// The pure functions of the page, where Node is there. Chromium runs the same cases in internal/testkit/e2e.
func TestStateInNode(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Log("there is no node")
		return
	}
	dir := t.TempDir()
	for name, from := range map[string]string{"state.js": "state.js", "cases.js": "testdata/cases.js", "state.test.js": "testdata/state.test.js"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, "--test", "--test-reporter=tap")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	passed := 0
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		if strings.HasPrefix(strings.TrimSpace(lines.Text()), "ok ") {
			passed++
		}
	}
	if err != nil || passed < 30 {
		t.Errorf("%d passed, %v\n%s", passed, err, out)
	}
}
