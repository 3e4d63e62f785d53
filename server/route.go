package server

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// Verb is the operation that a request asks for.
type Verb string

// The verbs. List, Watch, RenewMany and Batch are first authorised as a whole, without a name.
// Then each lock is authorised on its own, with Read, Renew, Acquire or Release.
const (
	Acquire   Verb = "acquire"
	Renew     Verb = "renew"
	Release   Verb = "release"
	Read      Verb = "read"
	Break     Verb = "break"
	List      Verb = "list"
	Watch     Verb = "watch"
	RenewMany Verb = "renew_many"
	Batch     Verb = "batch"
	SignIn    Verb = "sign_in" // who the client is; a cookie of the page at / for its token
	Status    Verb = "status"  // health, readiness, metrics, the document, the page
)

// Action is the input of Config.Authorize.
type Action struct {
	Verb Verb
	// Name of the lock: decoded once, valid, and exactly what the backend will receive. Empty
	// for List, Watch, RenewMany, Batch, SignIn and Status.
	Name string
	// Prefix of the names of a List or a Watch.
	Prefix string
	// Lease of a Renew or a Release.
	Lease backend.LeaseID
	// Path of a Status request, "/metrics".
	Path string
}

// route is a row of the table. Every request must match one.
type route struct {
	method  string
	pattern string // of http.ServeMux
	verb    Verb
	query   []string // the allowed parameters
	handle  func(*Server, http.ResponseWriter, *request)
}

const metricsPath = "/metrics"

// routes returns the whole API. The guard serves nothing else.
func routes() []route {
	return []route{
		{"POST", "/v1/locks/{name}", Acquire, nil, (*Server).acquire},
		{"PUT", "/v1/locks/{name}/leases/{lease}", Renew, nil, (*Server).renew},
		{"DELETE", "/v1/locks/{name}/leases/{lease}", Release, nil, (*Server).release},
		{"POST", "/v1/leases/renew", RenewMany, nil, (*Server).renewMany},
		{"POST", "/v1/leases/batch", Batch, nil, (*Server).batch},
		{"GET", "/v1/locks", List, []string{"prefix", "limit", "after"}, (*Server).list},
		{"GET", "/v1/locks/{name}", Read, nil, (*Server).inspect},
		{"DELETE", "/v1/locks/{name}", Break, []string{"lease", "reason"}, (*Server).breakLock},
		{"GET", "/v1/events", Watch, []string{"prefix"}, (*Server).events},
		{"GET", "/v1/losses", List, nil, (*Server).recentLosses},
		{"GET", "/v1/session", SignIn, nil, (*Server).whoAmI},
		{"POST", "/v1/session", SignIn, nil, (*Server).openSignIn},
		{"DELETE", "/v1/session", SignIn, nil, (*Server).endSignIn},
		{"GET", "/healthz", Status, nil, (*Server).healthz},
		{"GET", "/readyz", Status, nil, (*Server).readyz},
		{"GET", metricsPath, Status, nil, (*Server).metricsPage},
		{"GET", "/openapi.json", Status, nil, (*Server).openapi},
		{"GET", "/", Status, nil, (*Server).page},
		{"GET", "/dashboard/{file}", Status, nil, (*Server).page},
	}
}

// request is a request while it is being served.
type request struct {
	*http.Request
	arrived   time.Time
	route     *route
	name      string
	named     backend.LeaseID // the lease in the path
	inStore   backend.LeaseID // what the store calls it
	principal string          // who sent the request
	unknown   error           // why Config.Identify did not find that out
	signIn    *signIn         // whose cookie identified the sender; nil: none
	mark      string          // of the leases of the principal; none unless they belong to it
	params    url.Values
	body      []byte
	conn      *conn // nil where Serve did not accept it
	pinned    bool  // see pin
	answer    answer
	id        string // names the request in the log, and in the answer
}

func (r *request) action() Action {
	a := Action{Verb: r.route.verb, Name: r.name, Lease: r.named, Prefix: r.params.Get("prefix")}
	if a.Verb == Status {
		a.Path = r.route.pattern
	}
	return a
}

// requestKey is the context key of the *request.
type requestKey struct{}

// newMux returns the router of a table. Its handlers pass the guard.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	for i := range s.table {
		rt := &s.table[i]
		pattern := rt.method + " " + rt.pattern
		if rt.pattern == "/" {
			pattern += "{$}" // this path only
		}
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			r, _ := req.Context().Value(requestKey{}).(*request)
			r.Request, r.route = req, rt
			s.serve(w, r)
		})
	}
	return mux
}

// unrouted is the answer of the mux to a request without a route.
type unrouted http.Header

// Header returns the header.
func (u unrouted) Header() http.Header { return http.Header(u) }

// Write does nothing.
func (u unrouted) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader does nothing.
func (u unrouted) WriteHeader(int) {}

// dispatch serves a request that has a route. A path is never cleaned: a client that sends another one than it means
// is told so.
func (s *Server) dispatch(w http.ResponseWriter, r *request) {
	escaped := r.URL.EscapedPath()
	clean := path.Clean(escaped) == escaped
	h, pattern := s.mux.Handler(r.Request)
	if clean && pattern != "" {
		s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, r)))
		return
	}
	why := make(unrouted)
	if clean {
		h.ServeHTTP(why, r.Request)
	}
	s.noRoute(w, r, why.Header().Get("Allow"))
}

func (s *Server) noRoute(w http.ResponseWriter, r *request, allow string) {
	if allow == "" {
		s.write(w, r, http.StatusNotFound, wire.Problem{
			Type: wire.TypeNotFound, Title: "Not found", Status: http.StatusNotFound,
			Detail: "There is nothing at this path. A slash in a lock's name is sent as %2F.",
		})
		return
	}
	w.Header().Set("Allow", allow)
	s.write(w, r, http.StatusMethodNotAllowed, wire.Problem{
		Type: wire.TypeMethod, Title: "Method not allowed", Status: http.StatusMethodNotAllowed,
		Detail: "This path has " + allow + ".",
	})
}

// checkPath validates what the path names. The mux has decoded it, once.
func (r *request) checkPath() error {
	r.name, r.named = r.PathValue("name"), backend.LeaseID(r.PathValue("lease"))
	if r.name != "" {
		if err := backend.ValidateName(r.name); err != nil {
			return err
		}
	}
	if r.named != "" {
		return backend.ValidateLeaseID(r.named)
	}
	return nil
}

// decodeQuery refuses parameters that the route does not have, and repeated ones.
func (r *request) decodeQuery() error {
	if r.route.verb == Status {
		return nil // a page or a probe may be requested with any query
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("query", "given", "percent-encoded parameters")
	}
	for key, values := range q {
		if !slices.Contains(r.route.query, key) {
			return invalid("query", "parameter "+short(key), "one of "+known(r.route.query))
		}
		if len(values) > 1 {
			return invalid(key, "given twice", "given once")
		}
	}
	r.params = q
	if err := backend.ValidatePrefix(q.Get("prefix")); err != nil {
		return err
	}
	return nil
}

func known(params []string) string {
	if len(params) == 0 {
		return "none: there are no parameters here"
	}
	return strings.Join(params, ", ")
}
