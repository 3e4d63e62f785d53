package consullock_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// A query that is kept open shares no connection with another request: its end could take a release
// with it.
func TestPollsHaveTheirConnections(t *testing.T) {
	t.Parallel()
	server := consul()
	target, err := url.Parse("http://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	polls, calls := make(map[string]int), make(map[string]int)
	between := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		mu.Lock()
		defer mu.Unlock()
		if r.In.URL.Query().Has("wait") {
			polls[r.In.RemoteAddr]++
		} else {
			calls[r.In.RemoteAddr]++
		}
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }}
	front := httptest.NewServer(between)
	t.Cleanup(front.Close)
	b, other := closing(t, strings.TrimPrefix(front.URL, "http://")), closing(t, server.Addr())
	mine, theirs := session(t, b, nil), session(t, other, nil)
	const rounds = 10
	for range rounds { // the lock goes from one process to the other
		held, next := leasetest.Ask("n", theirs), leasetest.Ask("n", mine)
		leasetest.Take(t, other, held)
		got := leasetest.Start(t, b, next)
		leasetest.InQueue(t, other, "n", 1)
		leasetest.Give(t, other, held)
		if g := <-got; g.Err != nil {
			t.Fatal(g.Err)
		}
		leasetest.Give(t, b, next)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(polls) == 0 || len(calls) == 0 {
		t.Fatalf("%d connections with polls, %d with other calls", len(polls), len(calls))
	}
	for addr, n := range polls {
		if calls[addr] > 0 {
			t.Errorf("a connection had %d polls and %d other calls", n, calls[addr])
		}
	}
}
