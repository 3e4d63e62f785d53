package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// signIn exchanges the token of a caller for a cookie.
func (a *api) signIn(t *testing.T, who, body string) *http.Cookie {
	t.Helper()
	got := a.call("POST", sessionPath, body, "Authorization", who)
	cookies, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if got.status != 200 || err != nil {
		t.Fatalf("session of %s: %d %s, %v", who, got.status, got.body, err)
	}
	return cookies
}

// with returns the headers that the page sends with the cookie when it changes something.
func (a *api) with(c *http.Cookie) []string {
	return []string{"Cookie", c.Name + "=" + c.Value, "Origin", a.base, wire.HeaderPage, "1"}
}

func TestSessionCookie(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller, Hosts: []string{"127.0.0.1", "locks.example"}})
	plain := a.signIn(t, "op", "")
	if !plain.HttpOnly || plain.Secure || plain.SameSite != http.SameSiteStrictMode || plain.Path != "/" || plain.Domain != "" || plain.MaxAge != 8*60*60 {
		t.Errorf("on the loopback: %s", plain)
	}
	got := a.call("POST", sessionPath, `{"break":true}`, "Authorization", "op", "Host", "locks.example")
	if c := got.header.Get("Set-Cookie"); !strings.HasPrefix(c, "__Host-holdfast=") || !strings.Contains(c, "; Secure") || !strings.Contains(c, "; SameSite=Strict") || !strings.Contains(c, "Max-Age=3600;") {
		t.Errorf("elsewhere: %s", c)
	}
	front := httptest.NewTLSServer(a.srv.Handler())
	defer front.Close()
	over := &api{t: t, base: front.URL, http: front.Client()}
	if c := over.signIn(t, "op", ""); c.Name != "__Host-holdfast" || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" {
		t.Errorf("over TLS: %s", c)
	} else if who := want[wire.Caller](over, 200, "GET", sessionPath, "", over.with(c)...); !who.Cookie {
		t.Errorf("over TLS: %+v", who)
	}
	if strings.Contains(plain.Value, "op") {
		t.Error("the cookie has the token")
	}
	who := want[wire.Caller](a, 200, "GET", sessionPath, "", a.with(plain)...)
	if who.Principal != "op" || !who.Cookie || who.Break || !who.Policy || time.Until(who.EndsAt.Time) < time.Hour {
		t.Errorf("%+v", who)
	}
	if got := a.call("DELETE", sessionPath, "", a.with(plain)...); got.status != 204 || !strings.Contains(got.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("end: %d %s", got.status, got.header)
	}
	want[wire.Problem](a, 401, "GET", sessionPath, "", a.with(plain)...)
	want[wire.Problem](a, 401, "POST", sessionPath, "", "Authorization", "")
	want[wire.Problem](a, 403, "POST", sessionPath, "", a.with(a.signIn(t, "op", ""))...)
}

// On every route a session has at most the rights of its token, and only those to read. The test visits the
// table of routes, so that no new route is forgotten.
func TestSessionRights(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller})
	reads, breaks, bob := a.signIn(t, "op", ""), a.signIn(t, "op", `{"break":true}`), a.signIn(t, "bob", `{"break":true}`)
	for _, r := range server.Routes() {
		if r.Method == http.MethodDelete && r.Verb == server.SignIn {
			continue // ends the session
		}
		path := somePath(r.Pattern)
		for name, c := range map[string]*http.Cookie{"reads": reads, "breaks": breaks, "bob": bob} {
			allowed := r.Verb == server.Read || r.Verb == server.List || r.Verb == server.Watch || r.Verb == server.Status ||
				r.Verb == server.SignIn && r.Method == http.MethodGet || r.Verb == server.Break && name == "breaks"
			if r.Verb == server.Break {
				path = lockPath("x") + "?reason=r"
			}
			if r.Verb == server.Watch {
				continue // a stream: below
			}
			if got := a.call(r.Method, path, "", a.with(c)...); (got.status == 403) == allowed {
				t.Errorf("%s %s, %s: %d %s", r.Method, r.Pattern, name, got.status, got.body)
			}
		}
	}
	listen(t, a, "/v1/events", a.with(reads)...).next(t, "watching")
	want[wire.Problem](a, 400, "DELETE", lockPath("x"), "", a.with(breaks)...) // no reason
	a.call("POST", lockPath("x"), `{}`, "Authorization", "bob")
	for c, may := range map[*http.Cookie]bool{reads: false, breaks: true, bob: false} {
		if l := want[wire.Lock](a, 200, "GET", lockPath("x"), "", a.with(c)...); l.MayBreak != may || (l.Holders[0].Lease != "") == (c == reads) {
			t.Errorf("may break: %v, want %v: %+v", l.MayBreak, may, l)
		}
	}
}

// A browser adds the cookie to what other pages make it send. That changes nothing.
func TestSessionIsNotForged(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller})
	c := a.signIn(t, "op", `{"break":true}`)
	cookie := []string{"Cookie", c.Name + "=" + c.Value}
	for name, headers := range map[string][]string{
		"only the cookie": {}, "no header": {"Origin", a.base}, "no origin": {wire.HeaderPage, "1"},
		"another origin": {wire.HeaderPage, "1", "Origin", "http://evil.example"}, "a null origin": {wire.HeaderPage, "1", "Origin", "null"},
		"another port": {wire.HeaderPage, "1", "Origin", "http://127.0.0.1:1"},
		"another origin, of a browser that says it is the same": {wire.HeaderPage, "1", "Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin"},
	} {
		for _, path := range []string{lockPath("x") + "?reason=r", sessionPath} {
			if got := a.call("DELETE", path, "", append(headers, cookie...)...); got.status != 403 {
				t.Errorf("%s: DELETE %s: %d %s", name, path, got.status, got.body)
			}
		}
	}
	want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason=r", "", a.with(c)...)
	// The name of the cookie that is not Secure means nothing where the other is expected.
	h := start(t, server.Config{Authorize: operatorsBreak, Identify: caller, Hosts: []string{"127.0.0.1", "locks.example"}})
	c = h.signIn(t, "op", "")
	want[wire.Problem](h, 401, "GET", sessionPath, "", append(h.with(c), "Host", "locks.example")...)
}

// A session ends with its token, and does not outlive it on a stream.
func TestSessionEndsWithItsToken(t *testing.T) {
	t.Parallel()
	var revoked atomic.Bool
	var refused atomic.Int32
	a := start(t, server.Config{Identify: caller, Authorize: func(who string, _ server.Action) error {
		if who == "" || revoked.Load() && who == "op" {
			refused.Add(1)
			return server.ErrUnauthenticated
		}
		return nil
	}})
	c := a.signIn(t, "op", "")
	stream := listen(t, a, "/v1/events", a.with(c)...)
	stream.next(t, "watching")
	want[wire.List](a, 200, "GET", "/v1/locks", "", a.with(c)...)
	revoked.Store(true)
	want[wire.Problem](a, 401, "GET", "/v1/locks", "", a.with(c)...)
	// A header comes before the cookie, also one that is refused.
	want[wire.Caller](a, 200, "GET", sessionPath, "", append(a.with(c), "Authorization", "bob")...)
	before := refused.Load()
	a.call("POST", lockPath("x"), `{}`, "Authorization", "bob")
	leasetest.Eventually(t, "the stream is not told of x", func() bool { return refused.Load() > before })
	revoked.Store(false)
	a.call("POST", lockPath("y"), `{}`, "Authorization", "bob")
	if e := stream.next(t, "acquired"); e.Name != "y" {
		t.Errorf("the stream of a revoked token has %s", e.Name)
	}
	// Nor does a stream outlive the session.
	other := listen(t, a, "/v1/events", "Authorization", "bob")
	other.next(t, "watching")
	if got := a.call("DELETE", sessionPath, "", a.with(c)...); got.status != 204 {
		t.Errorf("end: %d %s", got.status, got.body)
	}
	a.call("POST", lockPath("z"), `{}`, "Authorization", "bob")
	if e := other.next(t, "acquired"); e.Name != "z" {
		t.Errorf("%+v", e)
	}
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if kind, data := stream.event(t); kind != "error" {
		t.Errorf("the stream of an ended session has %s %s", kind, data)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s server.SignIns
		first := s.Open("p", time.Hour)
		for range 15 {
			s.Open("p", 2*time.Hour)
		}
		other := s.Open("q", time.Minute)
		if !s.Has(first) || !s.Has(other) {
			t.Error("a session ended early")
		}
		if s.Open("p", time.Hour); s.Has(first) || !s.Has(other) || s.Len() != 17 {
			t.Errorf("%d sessions, want 17", s.Len())
		}
		time.Sleep(time.Minute)
		if s.Has(other) {
			t.Error("a session outlived its time")
		}
		for i := range 5000 {
			s.Open(time.Duration(i).String(), time.Hour)
		}
		if s.Len() != 4096 {
			t.Errorf("%d sessions, want 4096", s.Len())
		}
	})
}
