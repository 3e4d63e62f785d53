package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/remoteprobe"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

func remote(t *testing.T, url string) *remotelock.Backend {
	t.Helper()
	b, _ := probed(t, url)
	return b
}

func probed(t *testing.T, url string) (*remotelock.Backend, *remoteprobe.Probe) {
	t.Helper()
	probe := new(remoteprobe.Probe)
	b, err := remotelock.Open(remoteprobe.With(t.Context(), probe), url, remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, probe
}

func remoteClient(t *testing.T, b backend.Backend) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c
}

// taken is an Acquire in progress.
type taken struct {
	done chan struct{}
	lock *holdfast.Lock
	err  error
}

func acquireAs(t *testing.T, c *holdfast.Client, name, owner string) *taken {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 9*remotePatience)
	w := &taken{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lock, w.err = c.Acquire(ctx, name, holdfast.Owner(owner))
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	return w
}

func (w *taken) get(t *testing.T) *holdfast.Lock {
	t.Helper()
	<-w.done
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.lock
}

func queueIs(t *testing.T, b backend.Backend, name string, owners ...string) {
	t.Helper()
	leasetest.Eventually(t, fmt.Sprintf("the queue is %v", owners), func() bool {
		info, err := b.Inspect(t.Context(), name)
		if err != nil || len(info.Waiters) != len(owners) {
			return false
		}
		for i, w := range info.Waiters {
			if w.Owner != owners[i] {
				return false
			}
		}
		return true
	})
}

// A server is killed and restarted while clients wait: they continue to wait, in their order, and get the
// lock in the end; the holder keeps it. For one that stops see TestServersStopInTurn.
func TestServerRestart(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	store := memlock.NewStore()
	direct := store.Open()
	defer direct.Close()
	first := newStoppable(t, store, "127.0.0.1:0")
	holder, one, two := remoteClient(t, remote(t, first.url)), remoteClient(t, remote(t, first.url)), remoteClient(t, remote(t, first.url))
	lock, err := holder.Acquire(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	a := acquireAs(t, one, "x", "one")
	queueIs(t, direct, "x", "one")
	b := acquireAs(t, two, "x", "two")
	queueIs(t, direct, "x", "one", "two")
	first.kill()
	newStoppable(t, store, first.addr)
	if err := lock.Extend(t.Context(), time.Minute); err != nil {
		t.Fatalf("the holder cannot renew: %v", err)
	}
	queueIs(t, direct, "x", "one", "two")
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := a.get(t)
	queueIs(t, direct, "x", "two")
	if err := got.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := b.get(t)
	if next.Token() <= got.Token() || got.Token() <= lock.Token() {
		t.Errorf("tokens %d, %d, %d", lock.Token(), got.Token(), next.Token())
	}
	if err := next.Release(t.Context()); err != nil { // while the server is up
		t.Error(err)
	}
}

// A lease whose TTL is shorter than the wait for it is held for all of its TTL.
func TestShortLeaseAfterLongWait(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := serveRemote(t, memlock.NewStore(), "127.0.0.1:0", server.Config{})
	b := remote(t, s.url)
	req := func(ttl time.Duration) backend.AcquireRequest {
		return backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: ttl, Wait: true}
	}
	const first, second = 8 * time.Second, 6 * time.Second
	begun := time.Now()
	if _, err := b.Acquire(t.Context(), req(first)); err != nil {
		t.Fatal(err)
	}
	g, err := b.Acquire(t.Context(), req(second))
	if err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(begun); waited < first {
		t.Errorf("waited %s", waited)
	}
	if !g.Waited || g.Left <= 0 || g.Left > second {
		t.Errorf("grant %+v", g)
	}
	if asked := g.Asked.Sub(begun); asked < first-second/20 {
		t.Errorf("the count began %s after the first grant, before the end of the wait", asked)
	}
}

// A place in the queue outlives the request that made it: a retry still has it, and no later
// remoteClient is served before.
func TestPlaceBetweenPolls(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	store := memlock.NewStore()
	direct := store.Open()
	defer direct.Close()
	s := serveRemote(t, store, "127.0.0.1:0", server.Config{})
	proxy := chaos.Start(t, strings.TrimPrefix(s.url, "holdfast://"))
	short, probe := probed(t, "holdfast://"+proxy.Addr())
	long := remote(t, s.url)
	proxy.Delay(chaos.Both, 100*time.Millisecond, 0) // between two requests
	probe.SetPoll(100 * time.Millisecond)
	req := func(owner string) backend.AcquireRequest {
		return backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Wait: true, Owner: owner}
	}
	holder := req("holder")
	holder.Wait = false
	if _, err := direct.Acquire(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 2)
	var waiting sync.WaitGroup
	wait := func(b *remotelock.Backend, owner string) {
		waiting.Go(func() {
			r := req(owner)
			if _, err := b.Acquire(t.Context(), r); err != nil {
				t.Error(err)
			}
			order <- owner
			if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: r.Lease}); err != nil {
				t.Error(err)
			}
		})
	}
	wait(short, "first")
	queueIs(t, direct, "x", "first")
	wait(long, "second")
	queueIs(t, direct, "x", "first", "second")
	for polls := time.Now(); time.Since(polls) < 2*time.Second; { // some of them
		queueIs(t, direct, "x", "first", "second")
		time.Sleep(30 * time.Millisecond)
	}
	if err := direct.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: holder.Lease}); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	if who := <-order; who != "first" {
		t.Errorf("%s was served first", who)
	}
}

// There are more waiters than streams of a connection, and than connections from one address: they all wait, a renewal
// beside them is answered, and each gets the lock.
func TestManyWaiters(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const n = 300
	store := memlock.NewStore()
	direct := store.Open()
	defer direct.Close()
	c := remoteClient(t, remote(t, serveRemote(t, store, "127.0.0.1:0", server.Config{}).url)) // with its default limits
	lock, err := c.Acquire(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*remotePatience)
	defer cancel()
	var waiters sync.WaitGroup
	defer waiters.Wait()
	for range n {
		waiters.Go(func() {
			if err := c.Do(ctx, "x", func(context.Context, *holdfast.Lock) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	leasetest.Eventually(t, "all are in the queue", func() bool {
		info, err := direct.Inspect(t.Context(), "x")
		return err == nil && len(info.Waiters) == n
	})
	if err := lock.Extend(t.Context(), time.Minute); err != nil {
		t.Errorf("a renewal beside %d waiters: %v", n, err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestOtherHTTP(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	b := memlock.New()
	defer b.Close()
	srv, err := server.New(b, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	const token = "a-secret-token"
	based := http.StripPrefix("/base", srv.Handler())
	plain := httptest.NewServer(based) // HTTP/1 only
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		based.ServeHTTP(w, r)
	}))
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	for what, open := range map[string]func() (*remotelock.Backend, error){
		"HTTP/1": func() (*remotelock.Backend, error) {
			return remotelock.Open(t.Context(), "holdfast://"+plain.Listener.Addr().String()+"/base", remotelock.Config{})
		},
		"TLS, token in the URL": func() (*remotelock.Backend, error) {
			return remotelock.Open(t.Context(), "holdfasts://:"+token+"@"+secure.Listener.Addr().String()+"/base/", remotelock.Config{TLS: conf})
		},
		"TLS, token in the options": func() (*remotelock.Backend, error) {
			return remotelock.Open(t.Context(), "holdfasts://"+secure.Listener.Addr().String()+"/base", remotelock.Config{TLS: conf, Token: token})
		},
	} {
		b, err := open()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		c, err := holdfast.New(b, holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		lock, err := c.Acquire(t.Context(), "a/b c?d#e%")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := errors.Join(lock.Release(t.Context()), c.Close(t.Context()), b.Close()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = remotelock.Open(t.Context(), "holdfasts://:wrong-secret@"+secure.Listener.Addr().String()+"/base", remotelock.Config{TLS: conf})
	if !errors.Is(err, backend.ErrRefused) || strings.Contains(err.Error(), "wrong-secret") {
		t.Errorf("a wrong token: %v", err)
	}
}
