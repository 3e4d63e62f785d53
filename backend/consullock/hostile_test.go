package consullock_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// tap is a transport that a test controls, and that counts requests.
type tap struct {
	next     http.RoundTripper
	on       atomic.Pointer[func(*http.Request) *http.Response] // nil, or nil result: the request passes
	n, lists atomic.Int64                                       // all, and those that read a queue
	trees    atomic.Int64                                       // those that read it in a transaction
}

func (x *tap) RoundTrip(req *http.Request) (*http.Response, error) {
	x.n.Add(1)
	if req.URL.Query().Has("recurse") {
		x.lists.Add(1)
	}
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		if bytes.Contains(body, []byte(api.KVGetTree)) {
			x.trees.Add(1)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	if on := x.on.Load(); on != nil {
		if res := (*on)(req); res != nil {
			return res, nil
		}
	}
	return x.next.RoundTrip(req)
}

func tapped(t *testing.T, addr string) (*consullock.Backend, *tap) {
	t.Helper()
	const conns = 64 // as Open's
	transport := &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns}
	x := &tap{next: transport}
	c, err := api.NewClient(&api.Config{Address: addr, HttpClient: &http.Client{Transport: x}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := consullock.New(c, consullock.Config{Prefix: prefixOf(t), MinTTL: testserver.ConsulMinTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return closed(t, b), x
}

// TestSnapshotIsRestored: an operator restores a snapshot from before a waiter joined the queue.
// The waiter is told that its place is gone, and does not query in a loop.
func TestSnapshotIsRestored(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t, 1)[0]
	b, x := tapped(t, server.Addr())
	other := closing(t, server.Addr())
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
	id := session(t, b, nil)
	operator := client(t, server.Addr())
	snap, _, err := operator.Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := io.ReadAll(snap)
	if err = errors.Join(err, snap.Close()); err != nil {
		t.Fatal(err)
	}
	had := make(chan error, 1)
	go func() {
		_, err := b.Acquire(leasetest.Within(t), leasetest.Ask("n", id))
		had <- err
	}()
	leasetest.InQueue(t, other, "n", 1)
	before := x.n.Load()
	if err := operator.Snapshot().Restore(nil, bytes.NewReader(saved)); err != nil {
		t.Fatal(err)
	}
	if err := <-had; !errors.Is(err, backend.ErrLost) {
		t.Errorf("whose place is gone: %v", err)
	}
	if n := x.n.Load() - before; n > 100 {
		t.Errorf("%d requests", n)
	}
}

// TestAnswersOfAProxy: a proxy in front of Consul answers 404 by itself for a while. The waiter
// does not query in a loop, and gets the lock when it is its turn.
func TestAnswersOfAProxy(t *testing.T) {
	t.Parallel()
	server := consul()
	b, x := tapped(t, server.Addr())
	other := closing(t, server.Addr())
	first := leasetest.Ask("n", session(t, other, nil))
	leasetest.Take(t, other, first)
	id := session(t, b, nil)
	var answered atomic.Int64
	until := time.Now().Add(3 * time.Second)
	on := func(r *http.Request) *http.Response {
		if !strings.Contains(r.URL.Path, "/kv/"+prefixOf(t)+"/locks/") || answered.Load() > 0 && time.Now().After(until) {
			return nil
		}
		answered.Add(1)
		return &http.Response{StatusCode: http.StatusNotFound, Header: make(http.Header), Request: r, Body: io.NopCloser(strings.NewReader("no such backend"))}
	}
	x.on.Store(&on)
	had := make(chan error, 1)
	go func() {
		_, err := b.Acquire(leasetest.Within(t), leasetest.Ask("n", id))
		had <- err
	}()
	leasetest.InQueue(t, other, "n", 1)
	leasetest.Give(t, other, first)
	if err := <-had; err != nil {
		t.Error(err)
	}
	if n := answered.Load(); n == 0 || n > 100 {
		t.Errorf("asked %d times", n)
	}
}
