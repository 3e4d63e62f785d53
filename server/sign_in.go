package server

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// A sign-in of the page is a token that a browser does not keep: POST /v1/session exchanges it for a cookie that scripts
// cannot read. A request with the cookie is served as if it carried the token, so a token that was revoked
// ends its sign-ins. A sign-in can do less than its token: it reads, and breaks locks if that was requested
// for the sign-in. It lives on this server only.

const (
	// signInLife is the life of a sign-in that only reads, and breakLife that of one that may break locks.
	signInLife = 8 * time.Hour
	breakLife  = time.Hour
	// maxSignIns bounds the sign-ins of all clients, and maxOwnSignIns those of one principal. Beyond
	// that, the sign-in that ends first gives way.
	maxSignIns    = 4096
	maxOwnSignIns = 16
	// cookiePlain is for plain HTTP on the loopback. A browser accepts the prefix of the other name only
	// with Secure, Path=/ and no Domain, so that no other host can have set the cookie.
	cookiePlain  = "holdfast"
	cookieSecure = "__Host-holdfast"
)

var (
	errNoToken   = errors.New("a sign-in needs a token in the Authorization header")
	errForged    = errors.New("a sign-in of the page changes something only with the header " + wire.HeaderPage + " and an Origin that is this server")
	errReadsOnly = errors.New("a sign-in of the page may only read, unless it was opened to break locks")
)

// cookieHash is the SHA-256 of a cookie.
type cookieHash [sha256.Size]byte

type signIn struct {
	key           cookieHash
	authorization string // the header that the cookie stands for
	principal     string
	ends          time.Time
	breaks        bool
}

// allows reports whether a request with the cookie may ask for the action. Whether the token may is decided
// by Config.Authorize, as for every request.
func (o *signIn) allows(a Action) bool {
	switch a.Verb { //nolint:exhaustive // the others are not for the page
	case Read, List, Watch, Status, SignIn:
		return true
	case Break:
		return o.breaks
	}
	return false
}

// sign-ins are found by the hash of the cookie, so the time of a search says nothing about a cookie.
type signIns struct {
	mu  sync.Mutex
	all map[cookieHash]signIn
}

func (a *signIns) find(key cookieHash) (signIn, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, ok := a.all[key]
	return o, ok && time.Now().Before(o.ends)
}

func (a *signIns) end(key cookieHash) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, key)
}

// open adds a sign-in and returns its cookie.
func (a *signIns) open(o signIn) string {
	cookie := rand.Text()
	o.key = sha256.Sum256([]byte(cookie))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.makeRoomLocked(o.principal)
	if a.all == nil {
		a.all = make(map[cookieHash]signIn)
	}
	a.all[o.key] = o
	return cookie
}

// makeRoomLocked removes the sign-ins that have ended, and one more if there are too many.
func (a *signIns) makeRoomLocked(principal string) {
	now, own := time.Now(), 0
	var first, firstOwn cookieHash
	for key, o := range a.all {
		if !now.Before(o.ends) {
			delete(a.all, key)
			continue
		}
		if f, ok := a.all[first]; !ok || o.ends.Before(f.ends) {
			first = key
		}
		if o.principal != principal {
			continue
		}
		own++
		if f, ok := a.all[firstOwn]; !ok || o.ends.Before(f.ends) {
			firstOwn = key
		}
	}
	switch {
	case own >= maxOwnSignIns:
		delete(a.all, firstOwn)
	case len(a.all) >= maxSignIns:
		delete(a.all, first)
	}
}

// secure reports whether the cookie of the request is Secure: everywhere, except for plain HTTP that a browser
// sends to its own host.
func secure(r *http.Request) bool { return r.TLS != nil || !isLoopbackName(hostOnly(r.Host)) }

func cookieOf(r *http.Request) string {
	name := cookiePlain
	if secure(r) {
		name = cookieSecure
	}
	c, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return c.Value
}

// resume makes the request of a sign-in one with the sign-in's token. A cookie that is unknown or has ended is
// ignored: it gives no rights, and takes none that the client has without it. A cookie alone changes
// nothing, because browsers add it to requests that other sites make them send.
func (s *Server) resume(r *request) error {
	if _, ok := r.Header["Authorization"]; ok || s.cfg.Authorize == nil {
		return nil
	}
	o, ok := s.signIns.find(sha256.Sum256([]byte(cookieOf(r.Request))))
	if !ok {
		return nil
	}
	req := r.WithContext(r.Context())
	req.Header = r.Header.Clone()
	req.Header.Set("Authorization", o.authorization)
	r.Request, r.signIn = req, &o
	if safe := r.Method == http.MethodGet || r.Method == http.MethodHead; !safe && !fromPage(r.Request) {
		return errForged
	}
	return nil
}

// fromPage reports whether a script of the page sent the request.
func fromPage(r *http.Request) bool {
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && r.Header.Get(wire.HeaderPage) != "" && origin.Host != "" && strings.EqualFold(origin.Host, r.Host) &&
		(r.TLS == nil || origin.Scheme == "https")
}

// whoAmI serves GET /v1/session.
func (s *Server) whoAmI(w http.ResponseWriter, r *request) {
	s.write(w, r, http.StatusOK, s.describe(r))
}

func (s *Server) describe(r *request) wire.Caller {
	out := wire.Caller{Policy: s.cfg.Authorize != nil, Backend: s.caps.Name, Version: s.cfg.Version}
	if s.cfg.Identify != nil {
		out.Principal = r.principal
	}
	if r.signIn != nil {
		out.Cookie, out.Break, out.EndsAt = true, r.signIn.breaks, wire.Time{Time: r.signIn.ends}
	}
	return out
}

// openSignIn serves POST /v1/session. The guard has identified the owner of the token.
func (s *Server) openSignIn(w http.ResponseWriter, r *request) {
	var req wire.SignInRequest
	if err := wire.Decode(r.body, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	header := r.Header.Get("Authorization")
	switch {
	case s.cfg.Authorize == nil:
		s.fail(w, r, backend.ErrUnsupported)
		return
	case header == "" || r.signIn != nil:
		s.fail(w, r, s.refused(r, r.action(), http.StatusForbidden, errNoToken))
		return
	}
	life := signInLife
	if req.Break {
		life = breakLife
	}
	o := signIn{authorization: header, principal: r.principal, ends: time.Now().Add(life), breaks: req.Break}
	s.setCookie(w, r, s.signIns.open(o), int(life/time.Second))
	s.audit.act(r, "session", slog.String("action", "open"), slog.Bool("break", o.breaks))
	r.signIn = &o
	s.write(w, r, http.StatusOK, s.describe(r))
}

// endSignIn serves DELETE /v1/session.
func (s *Server) endSignIn(w http.ResponseWriter, r *request) {
	if r.signIn != nil {
		s.signIns.end(r.signIn.key)
		s.audit.act(r, "session", slog.String("action", "end"))
	}
	s.setCookie(w, r, "", -1)
	w.WriteHeader(http.StatusNoContent)
}

// setCookie sets the cookie for a time in seconds; below 0 removes it.
func (s *Server) setCookie(w http.ResponseWriter, r *request, value string, age int) {
	c := &http.Cookie{Name: cookiePlain, Value: value, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if secure(r.Request) {
		c.Name, c.Secure = cookieSecure, true
	}
	http.SetCookie(w, c)
}
