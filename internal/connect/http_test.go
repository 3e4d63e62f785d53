package connect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// A request that is in progress when its client ends has no connection any more, and one that
// begins later gets none: the transport by itself would keep both.
func TestHTTPLeavesNoConnection(t *testing.T) {
	t.Parallel()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	entered := make(chan struct{}, 1)
	srv := &http.Server{Protocols: &p, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done() // of the connection, too
	})}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h := connect.NewHTTP(new(net.Dialer))
	h.Protocols = &p
	c := &http.Client{Transport: h}
	get := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ln.Addr().String(), http.NoBody)
		if err != nil {
			t.Error(err)
			return nil
		}
		res, err := c.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		return err
	}
	got := make(chan error, 1)
	go func() { got <- get() }()
	<-entered
	h.Close()
	if err := <-got; err == nil || ctx.Err() != nil {
		t.Errorf("a request under way when the client ended: %v", err)
	}
	if err := get(); err == nil {
		t.Error("a client that has ended makes connections")
	}
	if n := h.Open(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// A proxy that the environment names never reads what is sent without TLS.
func TestNoProxyInTheClear(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://locks.example/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if proxy, err := connect.NewHTTP(new(net.Dialer)).Proxy(req); proxy != nil || err != nil {
		t.Errorf("plain HTTP goes to the proxy %v, %v", proxy, err)
	}
}
