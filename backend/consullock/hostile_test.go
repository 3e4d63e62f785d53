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

// tap is a transport that a test controls; nil: the request passes.
type tap struct {
	next http.RoundTripper
	on   atomic.Pointer[func(*http.Request) *http.Response] // nil result: it passes
	n    atomic.Int64
}

func (x *tap) RoundTrip(req *http.Request) (*http.Response, error) {
	x.n.Add(1)
	if on := x.on.Load(); on != nil {
		if res := (*on)(req); res != nil {
			return res, nil
		}
	}
	return x.next.RoundTrip(req)
}

func tapped(t *testing.T, addr string) (*consullock.Backend, *tap) {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
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

// TestRefusedInQueue: a lease is in the queue, and cannot leave it when another limit is found to be
// in force: the error says so.
func TestRefusedInQueue(t *testing.T) {
	t.Parallel()
	server := consul()
	b, x := tapped(t, server.Addr())
	other := closing(t, server.Addr())
	id, first := session(t, b, nil), leasetest.Ask("n", session(t, other, nil))
	first.Mode, first.Limit = backend.Shared, 1
	leasetest.Take(t, other, first)
	on := func(r *http.Request) *http.Response {
		if r.Body == nil {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if err != nil || !bytes.Contains(body, []byte(api.KVDelete)) {
			return nil
		}
		return &http.Response{StatusCode: http.StatusTooManyRequests, Header: make(http.Header), Request: r, Body: io.NopCloser(strings.NewReader("too many"))}
	}
	x.on.Store(&on)
	req := leasetest.Ask("n", id)
	req.Mode, req.Limit = backend.Shared, 2
	_, err := b.Acquire(leasetest.Within(t), req)
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("refused after it was in the queue: %v", err)
	}
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders)+len(info.Waiters) != 2 {
		t.Errorf("it is not there: %+v, %v", info, err)
	}
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
	operator, pool := client(t, server.Addr(), nil)
	defer pool.CloseIdleConnections()
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

// TestLongReasons: locks of many sessions are broken again and again, with reasons that take much
// room. Every break works, and the newest reason is reported.
func TestLongReasons(t *testing.T) {
	t.Parallel()
	const sessions, breaks = 5, 30
	server := consul()
	b, operator := closing(t, server.Addr()), closing(t, server.Addr())
	told := make(chan backend.Loss, sessions*breaks)
	var ids []backend.SessionID
	for range sessions {
		ids = append(ids, session(t, b, func(l backend.Loss) { told <- l }))
	}
	reason := strings.Repeat("<", backend.MaxNoteLen) // each takes six bytes in JSON
	for range breaks {
		for _, id := range ids {
			req := leasetest.Ask("n", id)
			req.Mode = backend.Shared
			leasetest.Take(t, b, req)
		}
		res, err := operator.Break(leasetest.Within(t), backend.BreakRequest{Name: "n", Reason: reason})
		if err != nil || len(res.Broken) != sessions {
			t.Fatalf("%d broken, %v", len(res.Broken), err)
		}
		for range sessions {
			if l := <-told; l.Reason != reason || l.Cause != backend.CauseBroken {
				t.Fatalf("told %+v", l)
			}
		}
	}
}
