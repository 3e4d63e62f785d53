package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
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
	Session   Verb = "session" // who the client is; a session of the page at / for its token
	Manage    Verb = "manage"  // the cluster of the server's own store: its members and its data
	Status    Verb = "status"  // health, readiness, metrics, the document, the page
)

// Action is the input of Config.Authorize.
type Action struct {
	Verb Verb
	// Name of the lock: decoded once, valid, and exactly what the backend will receive. Empty
	// for List, Watch, RenewMany, Batch, Session, Manage and Status.
	Name string
	// Prefix of the names of a List or a Watch.
	Prefix string
	// Lease of a Renew or a Release.
	Lease backend.LeaseID
	// Path of a Status request, "/metrics", or of a Manage request, "/v1/cluster/remove".
	Path string
}

// route is a row of the table. Every request must match one.
type route struct {
	method  string
	pattern string // segments; {name} and {lease} match one segment, which is decoded
	verb    Verb
	query   []string // the allowed parameters
	handle  func(*Server, http.ResponseWriter, *request)
}

// isNew reports whether the requests are for something new, and not for leases that clients hold. Each acquire of a
// batch is counted on its own.
func (rt *route) isNew() bool {
	switch rt.verb { //nolint:exhaustive // the others are
	case Renew, Release, RenewMany, Batch, Status:
		return false
	}
	return true
}

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
		{"GET", "/v1/session", Session, nil, (*Server).whoAmI},
		{"POST", "/v1/session", Session, nil, (*Server).openSession},
		{"DELETE", "/v1/session", Session, nil, (*Server).endSession},
		{"GET", "/healthz", Status, nil, (*Server).healthz},
		{"GET", "/readyz", Status, nil, (*Server).readyz},
		{"GET", "/metrics", Status, nil, (*Server).metricsPage},
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
	lease     backend.LeaseID // in the store
	principal string          // who sent the request
	session   *session        // whose cookie identified the sender; nil: none
	mark      string          // of the leases of the principal; none unless they belong to it
	// actionName is the last segment of the path of a cluster change.
	actionName string
	params     url.Values
	body       []byte
	conn       *conn // nil where Serve did not accept it
	pinned     bool  // see pin
	answer     answer
	id         string // names the request in the log, and in the answer
}

func (r *request) action() Action {
	a := Action{Verb: r.route.verb, Name: r.name, Lease: r.named, Prefix: r.params.Get("prefix")}
	switch a.Verb { //nolint:exhaustive // the others have no path
	case Status:
		a.Path = r.route.pattern
	case Manage:
		a.Path = r.URL.Path
	}
	return a
}

// match finds the route, by the path as it was sent. Segments are split before they are
// decoded, so that an encoded slash is part of a name, and nothing is cleaned. Without a route,
// match returns the methods that the path has.
func match(table []route, method, escaped string) (*route, map[string]string, []string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var allow []string
	for i := range table {
		got, ok := matchPattern(table[i].pattern, escaped)
		if !ok {
			continue
		}
		if table[i].method == method {
			return &table[i], got, nil
		}
		allow = append(allow, table[i].method)
	}
	if slices.Contains(allow, http.MethodGet) {
		allow = append(allow, http.MethodHead)
	}
	return nil, nil, allow
}

func matchPattern(pattern, escaped string) (map[string]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(escaped, "/")
	if len(want) != len(got) {
		return nil, false
	}
	var vars map[string]string
	for i, seg := range want {
		if !strings.HasPrefix(seg, "{") {
			if seg != got[i] {
				return nil, false
			}
			continue
		}
		if vars == nil {
			vars = make(map[string]string, 2)
		}
		vars[strings.Trim(seg, "{}")] = got[i]
	}
	return vars, true
}

// decodeVars decodes the name and the lease once, and validates them.
func (r *request) decodeVars(vars map[string]string) error {
	for key, raw := range vars {
		v, err := url.PathUnescape(raw)
		if err != nil {
			return invalid(key, "in the path", "percent-encoded")
		}
		switch key {
		case "action":
			r.actionName = v
		case "name":
			r.name, err = v, backend.ValidateName(v)
		case "lease":
			r.named, err = backend.LeaseID(v), backend.ValidateLeaseID(backend.LeaseID(v))
		}
		if err != nil {
			return err
		}
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
