package server

import (
	"net/http"

	"github.com/holdfast-io/holdfast/backend"
)

// RouteInfo is a row of the table, for tests that go through all of it.
type RouteInfo struct {
	Method, Pattern string
	Verb            Verb
}

// Routes gives the table.
func Routes() []RouteInfo {
	var out []RouteInfo
	for _, r := range routes() {
		out = append(out, RouteInfo{r.method, r.pattern, r.verb})
	}
	return out
}

// Parse gives the name and the lease that a path stands for.
func Parse(method, escaped string) (string, string, bool, error) {
	rt, vars, _ := match(routes(), method, escaped)
	if rt == nil {
		return "", "", false, nil
	}
	r := &request{route: rt, Request: &http.Request{}}
	err := r.decodeVars(vars)
	return r.name, string(r.lease), true, err
}

// Streams counts the event streams that get events.
func (s *Server) Streams() int {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return len(s.hub.subs)
}

// DefaultLimits are the limits of a server with the zero Config.
func DefaultLimits(c backend.Capabilities) Limits {
	var l Limits
	l.defaults(c)
	return l
}

// Queued counts the renewals that wait for a call.
func (s *Server) Queued() int {
	s.renewer.mu.Lock()
	defer s.renewer.mu.Unlock()
	return len(s.renewer.queue)
}
