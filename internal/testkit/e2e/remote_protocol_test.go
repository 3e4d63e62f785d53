package e2e_test

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

// A server that is being restarted hangs up on the first request. That shows nothing about its
// protocols: HTTP/2 is used as soon as it answers, otherwise a thousand waiters would use a
// thousand connections for ever.
func TestHTTP2AfterAHangUp(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b, err := remotelock.New("holdfast://"+ln.Addr().String(), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		for range 2 { // the request that tries HTTP/2, and the one for the locks
			if c, err := ln.Accept(); err == nil {
				c.Close()
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), remotePatience)
	defer cancel()
	for ask := true; ask; {
		if _, err := b.List(ctx, backend.ListRequest{}); err == nil {
			t.Fatal("there was no answer, and List returned no error")
		}
		select {
		case <-restarted:
			ask = false
		default:
		}
	}
	store := memlock.New()
	srv, err := server.New(store, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var major atomic.Int32
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	h := &http.Server{Protocols: &protocols, ReadHeaderTimeout: remotePatience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		major.Store(int32(r.ProtoMajor))
		srv.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(ln) }()
	t.Cleanup(func() {
		_ = b.Close()
		_ = h.Close()
		<-served
		if err := srv.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		_ = store.Close()
	})
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for major.Load() != 2 {
		if _, err := b.List(ctx, backend.ListRequest{}); err != nil && ctx.Err() != nil {
			t.Fatalf("the last request came in HTTP/%d: %v", major.Load(), err)
		}
		<-tick.C
	}
}
