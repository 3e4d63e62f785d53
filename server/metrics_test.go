package server_test

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// ownMetrics are the families that the server adds to those of package observe.
func ownMetrics() map[string]string {
	return map[string]string{
		"holdfast_http_requests_total":             "counter",
		"holdfast_quarantine":                      "gauge",
		"holdfast_ready":                           "gauge",
		"holdfast_config_stale":                    "gauge",
		"holdfast_tls_certificate_expires_seconds": "gauge",
		"go_goroutines":                            "gauge",
		"go_gc_duration_seconds":                   "summary",
		"process_open_fds":                         "gauge",
		"process_max_fds":                          "gauge",
		"process_resident_memory_bytes":            "gauge",
		"process_cpu_seconds_total":                "counter",
		"process_start_time_seconds":               "gauge",
	}
}

// families returns the types of the families of /metrics. Each must have its HELP before it.
func families(t *testing.T, page string) map[string]string {
	t.Helper()
	types := make(map[string]string)
	help := ""
	for line := range strings.Lines(page) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "# HELP ") && len(words) > 3:
			help = words[2]
		case strings.HasPrefix(line, "# TYPE "):
			if help != words[2] {
				t.Errorf("%s has no HELP", words[2])
			}
			types[words[2]] = words[3]
		}
	}
	return types
}

// /metrics has the families of the server, of the Go runtime and of the process,
// with their types, and with names and texts that Prometheus's own checks accept.
func TestMetricsOfTheServer(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{CertificateExpires: time.Now, Stale: func() bool { return true }})
	page := string(a.call("GET", "/metrics", "").body)
	got := families(t, page)
	for name, typ := range ownMetrics() {
		if got[name] != typ {
			t.Errorf("%s is a %q, want a %s", name, got[name], typ)
		}
	}
	for _, name := range []string{"holdfast_acquire_total", "holdfast_wait_seconds", "holdfast_build_info"} {
		if got[name] == "" {
			t.Errorf("there is no %s", name)
		}
	}
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A program's own registry receives only what is the server's: the program may have the metrics
// of the runtime in it already.
func TestMetricsOfAProgram(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Registry: prometheus.NewRegistry()})
	for name := range families(t, string(a.call("GET", "/metrics", "").body)) {
		if !strings.HasPrefix(name, "holdfast_") {
			t.Errorf("%s is not of the server", name)
		}
	}
}

// requests returns the samples of the requests that were counted, without those that are zero.
func requests(a *api) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(string(a.call("GET", "/metrics", "").body)) {
		if m := regexp.MustCompile(`^holdfast_http_requests_total\{code="(\w+)",route="(.+)"\} (\d+)$`).FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[3] != "0" {
			all[m[2]+" "+m[1]] = m[3]
		}
	}
	return all
}

// Requests are counted by their route and code, whatever the names of locks and the paths in
// them; every route has a series from the start.
func TestMetricsOfRequests(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	first := string(a.call("GET", "/metrics", "").body)
	for _, r := range server.Routes() {
		if series := `holdfast_http_requests_total{code="200",route="` + r.Method + " " + r.Pattern + `"} 0`; !strings.Contains(first, series+"\n") {
			t.Errorf("there is no %s", series)
		}
	}
	for _, name := range []string{"a", "b/c", "secret"} {
		a.take(name, `{"ttl":"1m"}`)
		a.call("POST", lockPath(name), `{}`)
		a.call("GET", "/"+url.PathEscape(name), "")
		a.call("PATCH", lockPath(name), "")
		a.call("HEAD", lockPath(name), "")
	}
	tooLong(a, lockPath("a"))
	got := requests(a)
	want := map[string]string{
		"GET /metrics 200": "1", "POST /v1/locks/{name} 200": "3", "POST /v1/locks/{name} 409": "3", "POST /v1/locks/{name} 413": "1",
		"none 404": "3", "none 405": "3", "GET /v1/locks/{name} 200": "3",
	}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// tooLong sends a part of a body above the limit. The server answers and closes the connection, without
// waiting for the rest.
func tooLong(a *api, path string) {
	a.t.Helper()
	c := dial(a.t, a)
	body := strings.Repeat(" ", 65<<10) // net/http itself would read up to 256 KiB more
	if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"+body); err != nil {
		a.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge || !res.Close {
		a.t.Errorf("a body that is too long: %d, the connection closes: %v", res.StatusCode, res.Close)
	}
}

// A request whose client is gone before an answer was written is counted as such.
func TestMetricsOfTheUnanswered(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	a.take("n", `{"ttl":"1m"}`)
	waiting := a.send("POST", lockPath("n"), `{"wait":"30s"}`)
	a.waiters("n", 1)
	waiting.cancel()
	<-waiting.done
	a.waiters("n", 0)
	leasetest.Eventually(t, "the request is counted", func() bool {
		counted := slices.Collect(maps.Keys(requests(a)))
		return slices.ContainsFunc(counted, func(s string) bool {
			return strings.HasPrefix(s, "POST /v1/locks/{name} ") && !strings.HasSuffix(s, " 200")
		})
	})
}

// The quarantine of the store is a metric, which ends with it.
func TestMetricsOfAQuarantine(t *testing.T) {
	t.Parallel()
	f := &faulty{Backend: memlock.NewStore().Open()}
	a := serve(t, f, server.Config{})
	if got := metric(a, "holdfast_quarantine"); got != 0 {
		t.Errorf("holdfast_quarantine %v before", got)
	}
	until := time.Now().Add(time.Hour)
	f.until.Store(&until)
	a.call("POST", lockPath("a"), `{}`)
	if got := metric(a, "holdfast_quarantine"); got != 1 {
		t.Errorf("holdfast_quarantine %v during the quarantine", got)
	}
}

// A client that polls for one lease is one waiter, as old as its first request; it ends with its place.
func TestMetricsOfAPollingWaiter(t *testing.T) {
	t.Parallel()
	virtual(t, inMemory, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		oldest := func() float64 { return metric(a, `holdfast_oldest_waiter_seconds{backend="memory"}`) }
		g := a.take("n", `{"ttl":"1m"}`)
		begun := time.Now()
		for range 5 {
			got := a.call("POST", lockPath("n"), `{"wait":"200ms","lease":"a-lease-of-a-client"}`, wire.HeaderKeepPlace, "10s")
			if got.status != 409 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
		}
		if age := oldest(); age < 1 || age > time.Since(begun).Seconds() { // each poll took 200 ms or more
			t.Errorf("the oldest waiter is %v s old after five polls in %v", age, time.Since(begun))
		}
		a.release("n", g.Lease, 204)
		want[wire.Grant](a, 200, "POST", lockPath("n"), `{"wait":"10s","lease":"a-lease-of-a-client"}`)
		leasetest.Eventually(t, "no client waits", func() bool { return oldest() == 0 })
	})
}
