package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// somePath fills in a route's pattern.
func somePath(pattern string) string {
	return strings.NewReplacer("{name}", "team-a%2Fx", "{lease}", "0123456789abcdef", "{action}", "init").Replace(pattern)
}

// teamA may do everything below team-a/ and nothing else.
func teamA(_ string, act server.Action) error {
	switch act.Verb {
	case server.List, server.Watch, server.RenewMany, server.Batch, server.SignIn, server.Status:
		return nil
	case server.Acquire, server.Renew, server.Release, server.Read, server.Break:
	}
	if strings.HasPrefix(act.Name, "team-a/") {
		return nil
	}
	return errors.New("only team-a/")
}

// Batches, lists and streams are authorised item by item.
func TestElementsAreAuthorized(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: teamA})
	take := func(name string) backend.LeaseID {
		id := backend.NewLeaseID()
		if _, err := a.b.Acquire(t.Context(), backend.AcquireRequest{Name: name, Lease: id, Timed: true, TTL: patience * 10}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	stream := listen(t, a, "/v1/events")
	stream.next(t, "watching")
	mine, theirs := take("team-a/x"), take("team-ab/x")
	page := want[wire.List](a, 200, "GET", "/v1/locks", "")
	if len(page.Locks) != 1 || page.Locks[0].Name != "team-a/x" {
		t.Errorf("list shows %+v", page)
	}
	res := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew",
		fmt.Sprintf(`{"leases":[{"name":"team-a/x","lease":%q},{"name":"team-ab/x","lease":%q}]}`, mine, theirs)).Leases
	if res[0].Error != nil || res[1].Error == nil || res[1].Error.Status != 403 {
		t.Errorf("batch %+v", res)
	}
	for _, path := range []string{"team-ab%2Fx", "team-a", "team-a%2F..%2Fteam-ab%2Fx", "team-a%252Fx"} {
		if got := a.call("GET", "/v1/locks/"+path, ""); got.status == 200 {
			t.Errorf("GET %s is allowed", path)
		}
	}
	take("team-a/y")
	if e := stream.next(t, "acquired"); e.Name != "team-a/x" {
		t.Errorf("event of %s", e.Name)
	}
	if e := stream.next(t, "acquired"); e.Name != "team-a/y" {
		t.Errorf("event of %s", e.Name)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for path, status := range map[string]int{
		"/v1/locks/a%2Fb": 200, "/v1/locks/a%2fb": 200, "/v1/locks/%41": 200, "/v1/locks/%E2%82%AC": 200, "/v1/locks/a%252Fb": 200, "/v1/locks/a%20b": 200,
		"/v1/locks/leases": 200, "/v1/locks/a%3Fb%23c": 200,
		"/v1/locks/": 404, "/v1/locks/%00": 400, "/v1/locks/%FF": 400, "/v1/locks/%0A": 400, "/v1/locks/a%2F%2Fb": 400, "/v1/locks/%2Fa": 400,
		"/v1/locks/a%2F": 400, "/v1/locks/..": 404, "/v1/locks/.": 404, "/v1/locks/%2e%2e": 400, "/v1/locks/a%2F..%2Fb": 400, "/v1/locks/a%2F.": 400,
		"/v1/locks/" + strings.Repeat("a", 512): 200, "/v1/locks/" + strings.Repeat("a", 513): 400,
		"/v1/locks/a/b": 404, "/v1/locks/a/../b": 404, "//v1/locks/a": 404, "/v1//locks": 404, "/v1/locks/a/": 404, "/V1/locks": 404,
		"/v2/locks": 404, "/nothing": 404, "/healthz/": 404, "/%76%31/locks": 200,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.base, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.URL = &url.URL{Scheme: "http", Host: req.URL.Host, Opaque: path}
		if strings.HasPrefix(path, "//") {
			req.URL = &url.URL{Scheme: "http", Host: req.URL.Host, Path: path}
		}
		res, err := a.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != status {
			t.Errorf("GET %.60s: status %d, want %d", path, res.StatusCode, status)
		}
	}
	if got := a.inspect("a/b"); got.Name != "a/b" {
		t.Errorf("name %q", got.Name)
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for path, allow := range map[string]string{
		"/v1/locks": "GET, HEAD", lockPath("x"): "DELETE, GET, HEAD, POST", lockPath("x") + "/leases/0123456789abcdef": "DELETE, PUT",
		"/v1/leases/renew": "POST", "/v1/leases/batch": "POST", "/v1/events": "GET, HEAD", "/": "GET, HEAD",
	} {
		for _, method := range []string{http.MethodPatch, http.MethodOptions, "BREW"} {
			got := a.call(method, path, "")
			if got.status != 405 || got.header.Get("Allow") != allow || decode[wire.Problem](t, got).Type != wire.TypeMethod {
				t.Errorf("%s %s: status %d, Allow %q, want %q", method, path, got.status, got.header.Get("Allow"), allow)
			}
		}
	}
}

// A web page that points its own name at this server is refused.
func TestHostHeader(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for host, status := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:7420": 200, "localhost": 200, "LOCALHOST:1": 200, "[::1]:7420": 200, "127.9.9.9": 200,
		"evil.example": 403, "evil.example:7420": 403, "localhost.evil.example": 403, "10.0.0.1": 403, "127.0.0.1.evil.example": 403,
	} {
		if got := a.call("GET", "/openapi.json", "", "Host", host); got.status != status {
			t.Errorf("Host %s: status %d, want %d", host, got.status, status)
		}
	}
	b := start(t, server.Config{Hosts: []string{"locks.example"}})
	for _, path := range []string{"/healthz", "/readyz"} { // a load balancer asks under the address
		if got := b.call("GET", path, "", "Host", "10.0.0.1"); got.status != 200 {
			t.Errorf("%s: status %d", path, got.status)
		}
	}
	for host, status := range map[string]int{"locks.example": 200, "Locks.Example:443": 200, "127.0.0.1": 403, "other.example": 403} {
		if got := b.call("GET", "/openapi.json", "", "Host", host); got.status != status {
			t.Errorf("with Hosts, Host %s: status %d, want %d", host, got.status, status)
		}
	}
	c := start(t, server.Config{Hosts: []string{"*.locks.example"}})
	for host, status := range map[string]int{
		"a.locks.example": 200, "A.Locks.Example:443": 200, "*.locks.example": 200,
		"locks.example": 403, ".locks.example": 403, "a.b.locks.example": 403, "a.locks.example.evil.example": 403, "a.evil.example": 403,
		"alocks.example": 403, "127.0.0.1": 403, "localhost": 403,
	} {
		if got := c.call("GET", "/openapi.json", "", "Host", host); got.status != status {
			t.Errorf("with a wildcard, Host %s: status %d, want %d", host, got.status, status)
		}
	}
}

// A page of another site cannot take or break a lock with a visitor's browser.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for _, h := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"},
	} {
		for _, r := range []struct{ method, path string }{
			{"POST", lockPath("x")},
			{"DELETE", lockPath("x")},
			{"PUT", lockPath("x") + "/leases/0123456789abcdef"},
			{"POST", "/v1/leases/renew"},
			{"POST", "/v1/leases/batch"},
		} {
			if got := a.call(r.method, r.path, "", h...); got.status != 403 {
				t.Errorf("%s %s with %v: status %d, want 403", r.method, r.path, h, got.status)
			}
		}
	}
	if got := a.call("POST", lockPath("x"), "", "Sec-Fetch-Site", "same-origin"); got.status != 200 {
		t.Errorf("same origin: status %d", got.status)
	}
	if n := metric(a, `holdfast_auth_failed_total{backend="memory"}`); n != 20 {
		t.Errorf("auth_failed_total %v", n)
	}
}

// Any client that can take a lock chooses its name and its owner. No chosen text reaches a
// browser as markup.
func TestStoredXSS(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	const hostile = `<img src=x onerror=alert(1)>"'</script><script>alert(2)<!--`
	name := strings.ReplaceAll(hostile, "</", "<\\")
	a.take(name, `{"owner":`+quoteJSON(hostile)+`,"note":`+quoteJSON(hostile)+`}`)
	for _, path := range []string{"/v1/locks", lockPath(name), "/", "/metrics"} {
		got := a.call("GET", path, "", "Accept", "text/html")
		if strings.Contains(string(got.body), "<img") || strings.Contains(string(got.body), "alert(2)<") {
			t.Errorf("GET %s has the markup in it: %s", path, got.body)
		}
		if got.header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(got.header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("GET %s: headers %v", path, got.header)
		}
		if ct := got.header.Get("Content-Type"); path != "/" && strings.Contains(ct, "html") {
			t.Errorf("GET %s: Content-Type %s", path, ct)
		}
	}
	p := a.call("POST", lockPath(name), `{}`)
	if strings.Contains(string(p.body), "<img") {
		t.Errorf("problem %s", p.body)
	}
	l := a.inspect(name)
	if l.Name != name || l.Holders[0].Owner != hostile {
		t.Errorf("the text came back as %q, %q", l.Name, l.Holders[0].Owner)
	}
	page := a.call("GET", "/", "")
	if csp := page.header.Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("policy of the page: %s", csp)
	}
}

// changes counts the calls that can change something.
type changes struct {
	backend.Backend
	n atomic.Int32
}

func (b *changes) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	b.n.Add(1)
	return b.Backend.OpenSession(ctx, r)
}

func (b *changes) EndSession(ctx context.Context, id backend.SessionID) error {
	b.n.Add(1)
	return b.Backend.EndSession(ctx, id)
}

func (b *changes) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	b.n.Add(1)
	return b.Backend.Acquire(ctx, r)
}

func (b *changes) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	b.n.Add(1)
	return b.Backend.Renew(ctx, r)
}

func (b *changes) Release(ctx context.Context, r backend.ReleaseRequest) error {
	b.n.Add(1)
	return b.Backend.Release(ctx, r)
}

func (b *changes) Break(ctx context.Context, r backend.BreakRequest) (backend.BreakResult, error) {
	b.n.Add(1)
	return b.Backend.Break(ctx, r)
}

// A link, an image or a prefetch changes nothing, whatever it says about its method.
func TestReadingChangesNothing(t *testing.T) {
	t.Parallel()
	b := &changes{Backend: memlock.New()}
	a := serve(t, &faulty{Backend: b}, server.Config{})
	a.take("team-a/x", `{"ttl":"1h"}`)
	before := b.n.Load()
	for _, r := range server.Routes() {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, "TRACE"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if r.Verb == server.Watch && method == http.MethodGet {
				cancel()
			}
			_, _ = a.do(ctx, method, somePath(r.Pattern), "", "X-HTTP-Method-Override", r.Method, "X-Method-Override", "DELETE")
			_, _ = a.do(ctx, method, somePath(r.Pattern)+"?_method=DELETE&method=DELETE", "")
			cancel()
		}
	}
	if n := b.n.Load() - before; n != 0 {
		t.Errorf("%d calls that can change something", n)
	}
	if len(a.inspect("team-a/x").Holders) != 1 {
		t.Error("the lock is gone")
	}
}

func quoteJSON(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// Secrets in a request do not appear in any output.
func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	const canary = "canary-5f2c9d"
	log := &logBuffer{}
	a := start(t, server.Config{Logger: log.logger(), Authorize: identified, Identify: func(r *http.Request) (string, error) {
		if r.Header.Get("Authorization") != "Bearer "+canary {
			return "", server.ErrUnauthenticated
		}
		return "somebody", nil
	}})
	var seen []string
	for _, header := range []string{"Bearer " + canary, "Bearer " + canary + "x"} {
		for _, r := range server.Routes() {
			if r.Verb == server.Watch {
				continue
			}
			got := a.call(r.Method, somePath(r.Pattern), "{", "Authorization", header)
			seen = append(seen, fmt.Sprint(got.header), string(got.body))
		}
	}
	seen = append(seen, log.String())
	if i := slices.IndexFunc(seen, func(s string) bool { return strings.Contains(s, canary) }); i >= 0 {
		t.Errorf("the token is in %s", seen[i])
	}
}
