// Package dashboard serves the page that shows the holders and the waiters of every lock, live.
// The page uses the HTTP API of the server that serves it, from the browser: it reads, and it can
// break a lock. It loads nothing from any other host.
//
// The names of locks, owners and notes are chosen by any client that can acquire a lock. The page
// shows them as text only (textContent), never as markup, with direction marks made visible, and its
// Content Security Policy lets no script run but its own files.
package dashboard

import (
	"bytes"
	"embed"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed page.html page.css icon.svg *.js
var files embed.FS

// Policy is the Content-Security-Policy of the page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// Serve answers GET requests for /, and for the style sheet, the scripts and the icon of the page below
// /dashboard/. Any other path is answered with 404.
func Serve(w http.ResponseWriter, r *http.Request) {
	kinds := map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	file, below := strings.CutPrefix(r.URL.Path, "/dashboard/")
	if r.URL.Path == "/" {
		file = "page.html"
	}
	body, err := files.ReadFile(file)
	if err != nil || below == (file == "page.html") {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kinds[path.Ext(file)])
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
