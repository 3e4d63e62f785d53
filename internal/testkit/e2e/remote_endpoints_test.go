package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	openurl "github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/server"
)

// remoteTTL is long enough for a machine that stands still for some seconds.
const remoteTTL = 15 * time.Second

// several returns the URL of several servers.
func several(servers ...*running) string {
	hosts := make([]string, len(servers))
	for i, s := range servers {
		hosts[i] = strings.TrimPrefix(s.url, "holdfast://")
	}
	return "holdfast://" + strings.Join(hosts, ",")
}

// clientOfServers returns a client of the servers.
func clientOfServers(t *testing.T, url string) *holdfast.Client {
	t.Helper()
	b, err := remotelock.Open(t.Context(), url, remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(b, holdfast.Config{TTL: remoteTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// renewedOnce waits until a renewal that was sent after now has succeeded.
func renewedOnce(t *testing.T, held *holdfast.Lock) {
	t.Helper()
	outlived := time.Now().Add(remoteTTL)
	leasetest.Eventually(t, "the lease is renewed", func() bool {
		if err := held.Err(); err != nil {
			t.Fatalf("the lock was lost with its server: %v", err)
		}
		return held.Deadline().After(outlived)
	})
}

// A client keeps what it holds, and its place in the queue, when the server that it uses stops. Nothing is
// lost when all stop in turn.
func TestServersStopInTurn(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	store := memlock.NewStore()
	first, second := serveRemote(t, store, "127.0.0.1:0", server.Config{}), serveRemote(t, store, "127.0.0.1:0", server.Config{})
	holder, waiter := clientOfServers(t, several(first, second)), clientOfServers(t, several(first, second))
	held, err := holder.Acquire(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := waiter.Acquire(t.Context(), "x")
		if err == nil {
			err = l.Release(t.Context())
		}
		got <- err
	}()
	leasetest.Eventually(t, "the other waits", func() bool {
		info, err := holder.Inspect(t.Context(), "x")
		return err == nil && len(info.Waiters) == 1
	})
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	renewedOnce(t, held)
	addr := strings.TrimPrefix(first.url, "holdfast://")
	serveRemote(t, store, addr, server.Config{})
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	renewedOnce(t, held)
	if err := held.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := <-got; err != nil {
		t.Errorf("the waiter: %v", err)
	}
}

// A server of another store is never used, whichever is met first: it would grant the lock a second time.
func TestServerOfAnotherStore(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	store := func(id string, granted *int) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Holdfast-Store", id)
			if r.URL.Path == "/readyz" {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"status":"ready","backend":"etcd","capabilities":{"max_wait":"1m","min_ttl":"1s","max_ttl":"1h"}}`)
				return
			}
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				*granted++
			}
			w.WriteHeader(http.StatusNoContent)
		}))
	}
	var ours, theirs int
	a, b := store("a", &ours), store("b", &theirs)
	defer b.Close()
	remote, err := remotelock.Open(t.Context(), "holdfast://"+a.Listener.Addr().String()+","+b.Listener.Addr().String(), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	a.Close()
	var last error
	for range 4 { // the first one meets the end of a connection
		if last = remote.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: backend.NewLeaseID()}); last == nil {
			t.Error("a server of another store was used")
		}
	}
	if !errors.Is(last, backend.ErrUnavailable) || !strings.Contains(last.Error(), "another store") && !strings.Contains(last.Error(), "refused") {
		t.Errorf("%v does not say why", last)
	}
	if ours+theirs > 0 {
		t.Errorf("%d and %d requests", ours, theirs)
	}
}

// identified is a backend of a store with an ID.
type identified struct {
	backend.Backend
	id string
}

func (b identified) StoreID() string { return b.id }

// An address that leads to another store, as behind a balancer or after a restart on another --backend, is refused, also on
// connections that are new: the lock may be held in the first store. Nothing is done in the other store.
func TestAddressLeadsToAnotherStore(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	stores := map[string]backend.Backend{"a": memlock.NewStore().Open(), "b": memlock.NewStore().Open()}
	handlers := make(map[string]http.Handler)
	for id, b := range stores {
		srv, err := server.New(identified{b, id}, server.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(srv.Close(context.WithoutCancel(t.Context())), b.Close()); err != nil {
				t.Error(err)
			}
		})
		handlers[id] = srv.Handler()
	}
	var at atomic.Value
	at.Store("a")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers[at.Load().(string)].ServeHTTP(w, r) //nolint:forcetypeassert // stored here only
	}))
	t.Cleanup(front.Close)
	remote, err := remotelock.Open(t.Context(), "holdfast://"+front.Listener.Addr().String(), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Close() })
	ask := func(name string) backend.AcquireRequest {
		req := leasetest.Ask(name, "")
		req.Timed, req.TTL, req.Wait = true, time.Minute, false
		return req
	}
	held := ask("held")
	leasetest.Take(t, remote, held)
	at.Store("b")
	front.CloseClientConnections()
	var one, many error
	leasetest.Eventually(t, "a connection is made to the other store", func() bool {
		_, one = remote.Acquire(t.Context(), ask("one"))
		return errors.Is(one, backend.ErrRefused)
	})
	if away, ok := errors.AsType[*backend.UnavailableError](one); !ok || away.MayHold {
		t.Errorf("an acquire in the other store: %v; want an *UnavailableError that nothing is held", one)
	}
	renewal := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: held.Name, Lease: held.Lease, TTL: held.TTL}}}
	_, many = remote.Renew(t.Context(), renewal)
	if !errors.Is(many, backend.ErrRefused) {
		t.Errorf("a renewal in the other store: %v; want ErrRefused", many)
	}
	if page, err := stores["b"].List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) > 0 {
		t.Errorf("the other store has %+v, %v", page.Locks, err)
	}
	at.Store("a")
	if _, err := remote.Renew(t.Context(), renewal); err != nil {
		t.Errorf("a renewal in the first store again: %v", err)
	}
}

// silent returns the address of a server that accepts connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// Many calls at the same time find out together that a server is silent, not one after the other.
func TestServerIsSilentToMany(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	servers := []*running{{url: "holdfast://" + silent(t)}, serveRemote(t, memlock.NewStore(), "127.0.0.1:0", server.Config{})}
	remote := remote(t, several(servers...))
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second) // three times what one of them waits for the silent one
	defer cancel()
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if _, err := remote.Inspect(ctx, "n"); err != nil {
				t.Errorf("the other server was not asked in time: %v", err)
			}
		})
	}
	calls.Wait()
}

// The end of a wait does not move a client to another server, which may hang: renewals would go there.
func TestEndOfAWaitKeepsTheServer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	servers := []*running{serveRemote(t, memlock.NewStore(), "127.0.0.1:0", server.Config{}), {url: "holdfast://" + silent(t)}}
	remote := remote(t, several(servers...))
	held := leasetest.Ask("n", "")
	held.Timed, held.TTL = true, time.Minute
	leasetest.Take(t, remote, held)
	waiter := held
	waiter.Lease = backend.NewLeaseID()
	soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if g, err := remote.Acquire(soon, waiter); err == nil {
		t.Fatalf("the lock is held, and a waiter got %+v", g)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // a silent server is given up after four
	defer cancel()
	renewal := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: held.Name, Lease: held.Lease, TTL: held.TTL}}}
	if _, err := remote.Renew(ctx, renewal); err != nil {
		t.Errorf("a renewal after a wait that ended: %v", err)
	}
}

// A holder learns from its next renewal that an operator broke the lock, and why, also if that was done through another
// server on the same etcd.
func TestHolderLearnsTheReason(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	through := func() *holdfast.Client {
		store, err := openurl.URL(t.Context(), "etcd://"+sharedEtcd().Addr(), openurl.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return clientOfServers(t, "holdfast://"+overHTTP(t, store))
	}
	near, far := through(), through()
	for name, reason := range map[string]string{t.Name(): "ticket 4711", t.Name() + "/silent": ""} {
		held, err := near.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := far.Break(t.Context(), name, reason); err != nil {
			t.Fatal(err)
		}
		select {
		case <-held.Context().Done():
		case <-time.After(leasetest.Patience):
			t.Fatal("the holder learns nothing")
		}
		lost, ok := errors.AsType[*holdfast.LostError](context.Cause(held.Context()))
		if !ok || lost.Cause != holdfast.CauseBroken || lost.Reason != reason {
			t.Errorf("the holder is told %v", context.Cause(held.Context()))
		}
	}
}
