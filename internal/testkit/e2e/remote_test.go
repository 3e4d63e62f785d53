package e2e_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

const remotePatience = 20 * time.Second

// running is a server on a port of its own.
type running struct {
	url  string
	stop func() error
}

// serveRemote starts a server of the store on addr, "127.0.0.1:0" for any port.
func serveRemote(t *testing.T, store *memlock.Store, addr string, cfg server.Config) *running {
	t.Helper()
	b := store.Open()
	srv, err := server.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var ln net.Listener
	leasetest.Succeeds(t, func() error { // a connection of another process may have the port for a while
		var err error
		ln, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
		return err
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	r := &running{url: "holdfast://" + ln.Addr().String()}
	r.stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		if closed := b.Close(); err == nil {
			err = closed
		}
		return err
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop the server: %v", err)
		}
	})
	return r
}

// limits returns limits that are wide enough for the clients of the suite.
func limits() server.Limits { return server.Limits{Connections: 20_000} }

func openRemote(t backendtest.T, url string) backend.Backend {
	t.Helper()
	b, err := remotelock.Open(t.Context(), url, remotelock.Config{})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := serveRemote(t, memlock.NewStore(), "127.0.0.1:0", server.Config{Limits: limits()})
	backendtest.Run(t, backendtest.Harness{Open: func(t backendtest.T) backend.Backend { return openRemote(t, s.url) }})
}

// The leases of a principal have other IDs in the store, which no answer shows.
func TestConformanceOfAPrincipal(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := serveRemote(t, memlock.NewStore(), "127.0.0.1:0", server.Config{
		Limits: limits(), Authorize: func(string, server.Action) error { return nil },
		Identify: func(*http.Request) (string, error) { return "suite", nil },
	})
	only := append(leasetest.Transport(), "C5/strangers-cannot-release", "C5/strangers-cannot-renew", "C7/release-of-a-place-in-queue",
		"C10/one-of-the-holders-is-broken", "C10/timed-victims-are-told")
	backendtest.Run(t, backendtest.Harness{Only: only, Open: func(t backendtest.T) backend.Backend { return openRemote(t, s.url) }})
}
