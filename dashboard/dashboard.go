// Package dashboard serves the page that shows the holders and the waiters of every lock, live.
// The page reads the HTTP API of the server that serves it (/v1/locks and /v1/events) from the
// browser. It changes nothing, and loads nothing from any other host.
//
// The names of locks, owners and notes are chosen by any client that can acquire a lock. The page
// shows them as text only (textContent), never as markup, and its Content Security Policy lets
// no script run but its own file.
package dashboard

import (
	"bytes"
	"embed"
	"net/http"
	"time"
)

//go:embed dashboard.html dashboard.css dashboard.js
var files embed.FS

// Policy is the Content-Security-Policy of the page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// Serve answers GET requests for /, /dashboard.css and /dashboard.js. Any other path is
// answered with 404.
func Serve(w http.ResponseWriter, r *http.Request) {
	var file, kind string
	switch r.URL.Path {
	case "/":
		file, kind = "dashboard.html", "text/html; charset=utf-8"
	case "/dashboard.css":
		file, kind = "dashboard.css", "text/css; charset=utf-8"
	case "/dashboard.js":
		file, kind = "dashboard.js", "text/javascript; charset=utf-8"
	}
	body, err := files.ReadFile(file)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
