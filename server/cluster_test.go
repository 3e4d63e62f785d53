package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/server"
)

// nodes is a cluster that records its calls.
type nodes struct {
	waiting string
	err     error
	asked   []string
}

func (n *nodes) Waiting() string            { return n.waiting }
func (n *nodes) ID() string                 { return "c1" }
func (n *nodes) Status(context.Context) any { return map[string]string{"name": "a"} }
func (n *nodes) Init(context.Context) error { n.asked = append(n.asked, "init"); return n.err }
func (n *nodes) Add(_ context.Context, name, url string) error {
	n.asked = append(n.asked, "add "+name+" "+url)
	return n.err
}

func (n *nodes) Metrics() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_cluster_unreachable_members", Help: "Members of the cluster that did not answer.",
	}, func() float64 { return 1 })
}

func (n *nodes) Remove(_ context.Context, name string) error {
	n.asked = append(n.asked, "remove "+name)
	return n.err
}

func (n *nodes) Promote(_ context.Context, name string) error {
	n.asked = append(n.asked, "promote "+name)
	return n.err
}

func (n *nodes) Compact(context.Context) error {
	n.asked = append(n.asked, "compact")
	return n.err
}

func (n *nodes) Snapshot(_ context.Context, w io.Writer) error {
	n.asked = append(n.asked, "snapshot")
	if n.err != nil {
		return n.err
	}
	_, err := io.WriteString(w, "all of it")
	return err
}

// The cluster is called as the request says, and not at all for a client that must not manage
// it, nor for a page of another site. Its refusals are reported as such.
func TestCluster(t *testing.T) {
	t.Parallel()
	n := &nodes{}
	allowed := true
	a := start(t, server.Config{Cluster: n, Authorize: func(_ *http.Request, act server.Action) error {
		if act.Verb == server.Manage && (!allowed || !strings.HasPrefix(act.Path, "/v1/cluster")) {
			return errors.New("no")
		}
		return nil
	}})
	for _, c := range []struct {
		method, path, body, asks string
		status                   int
	}{
		{"GET", "/v1/cluster", "", "", 200},
		{"POST", "/v1/cluster/init", "", "init", 200},
		{"POST", "/v1/cluster/add", `{"name":"d","url":"u"}`, "add d u", 200},
		{"POST", "/v1/cluster/remove", `{"name":"c"}`, "remove c", 200},
		{"POST", "/v1/cluster/promote", `{"name":"c"}`, "promote c", 200},
		{"POST", "/v1/cluster/compact", "", "compact", 200},
		{"GET", "/v1/cluster/snapshot", "", "snapshot", 200},
		{"POST", "/v1/cluster/forget", "", "", 400},
		{"POST", "/v1/cluster/remove", `{"node":"c"}`, "", 400},
	} {
		n.asked = nil
		if got := a.call(c.method, c.path, c.body); got.status != c.status || strings.Join(n.asked, ", ") != c.asks {
			t.Errorf("%s %s: status %d, asked for %q", c.method, c.path, got.status, n.asked)
		}
		n.asked, allowed = nil, false
		if got := a.call(c.method, c.path, c.body); got.status != 403 || len(n.asked) > 0 {
			t.Errorf("%s %s, not allowed: status %d, asked for %q", c.method, c.path, got.status, n.asked)
		}
		allowed = true
		if c.method == "POST" {
			if got := a.call(c.method, c.path, c.body, "Sec-Fetch-Site", "cross-site"); got.status != 403 || len(n.asked) > 0 {
				t.Errorf("%s %s, from another site: status %d, asked for %q", c.method, c.path, got.status, n.asked)
			}
		}
	}
	for err, status := range map[error]int{
		server.ErrClusterRefused: 409, errors.New("no majority"): 503, &backend.InvalidError{Field: "name"}: 400,
	} {
		n.err = err
		for _, path := range []string{"/v1/cluster/init", "/v1/cluster/add", "/v1/cluster/remove", "/v1/cluster/promote", "/v1/cluster/compact"} {
			if got := a.call("POST", path, ""); got.status != status {
				t.Errorf("%s that fails with %v: status %d", path, err, got.status)
			}
		}
		if got := a.call("GET", "/v1/cluster/snapshot", ""); got.status != status {
			t.Errorf("a snapshot that fails with %v: status %d", err, got.status)
		}
	}
	n.waiting = "waiting for b"
	if got := a.call("GET", "/readyz", ""); got.status != 503 || !strings.Contains(string(got.body), "waiting for b") {
		t.Errorf("readyz: %d %s", got.status, got.body)
	}
	if got := a.call("GET", "/healthz", ""); got.status != 200 {
		t.Errorf("healthz: %d", got.status)
	}
	if got := metric(a, "holdfast_cluster_unreachable_members"); got != 1 {
		t.Errorf("/metrics does not have the metrics of the cluster: %v", got)
	}
}

// Without authorisation, the cluster is managed from this host only: a stranger could remove
// its members, and read all its data.
func TestClusterFromElsewhere(t *testing.T) {
	t.Parallel()
	n := &nodes{}
	a := start(t, server.Config{Cluster: n, Anonymous: true})
	for from, status := range map[string]int{
		"192.0.2.1:1234": 403, "[2001:db8::1]:1234": 403, "127.0.0.1:1234": 200, "[::1]:1234": 200, "[::ffff:127.0.0.1]:1234": 200, "@": 403, "127.0.0.1": 403, "203.0.113.7": 403, "": 403,
	} {
		for _, c := range [][2]string{{"GET", "/v1/cluster/snapshot"}, {"POST", "/v1/cluster/init"}} {
			n.asked = nil
			req := httptest.NewRequestWithContext(t.Context(), c[0], "http://127.0.0.1"+c[1], http.NoBody)
			req.RemoteAddr = from
			answer := httptest.NewRecorder()
			a.srv.ServeHTTP(answer, req)
			if answer.Code != status || (len(n.asked) > 0) != (status == 200) {
				t.Errorf("%s %s from %s: status %d, asked for %q", c[0], c[1], from, answer.Code, n.asked)
			}
		}
		for _, how := range []string{"a proxy", "a Unix socket"} {
			ctx := t.Context()
			if how == "a Unix socket" {
				ctx = context.WithValue(ctx, http.LocalAddrContextKey, &net.UnixAddr{Name: "/s", Net: "unix"})
			}
			req := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1/v1/cluster/init", http.NoBody)
			req.RemoteAddr = from
			want := 200
			if how == "a proxy" {
				req.Header.Set("X-Forwarded-For", "127.0.0.1")
				want = 403
			}
			answer := httptest.NewRecorder()
			if a.srv.ServeHTTP(answer, req); answer.Code != want {
				t.Errorf("by %s, from %q: status %d, want %d", how, from, answer.Code, want)
			}
		}
		req := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/v1/cluster", http.NoBody)
		req.RemoteAddr = from
		answer := httptest.NewRecorder()
		if a.srv.ServeHTTP(answer, req); answer.Code != 200 {
			t.Errorf("the status, from %s: %d", from, answer.Code)
		}
	}
}

// A server on another store has no cluster.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	if got := a.call("GET", "/v1/cluster", ""); got.status != 404 {
		t.Errorf("status %d", got.status)
	}
}
