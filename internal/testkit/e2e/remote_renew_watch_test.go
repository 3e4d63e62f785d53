package e2e_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

// Renewals are split so that every request fits, and keep their order.
func TestRenewChunks(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := serveRemote(t, memlock.NewStore(), "127.0.0.1:0", server.Config{})
	b := remote(t, s.url)
	const n = 2500
	var req backend.RenewRequest
	tokens := make(map[int]backend.Grant)
	for i := range n {
		name := fmt.Sprintf("%d/x%s", i, strings.Repeat(`<"\&`, i%120))
		r := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: 10 * time.Minute}
		if i%10 == 0 {
			g, err := b.Acquire(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			tokens[i] = g
		}
		req.Leases = append(req.Leases, backend.TimedRenewal{Name: name, Lease: r.Lease, TTL: time.Minute})
	}
	res, err := b.Renew(t.Context(), req)
	if err != nil || len(res.Leases) != n {
		t.Fatalf("%d results, %v", len(res.Leases), err)
	}
	for i, r := range res.Leases {
		g, held := tokens[i]
		switch {
		case held && (r.Err != nil || r.Token != g.Token || r.Left > time.Minute || r.Left < time.Minute-remotePatience):
			t.Fatalf("lease %d: %+v, granted %+v", i, r, g)
		case !held && !errors.Is(r.Err, backend.ErrLost):
			t.Fatalf("lease %d was never held: %+v", i, r)
		}
	}
	if res, err := b.Renew(t.Context(), backend.RenewRequest{}); err != nil || len(res.Leases) != 0 {
		t.Errorf("a renewal of nothing: %+v, %v", res, err)
	}
}

// A stream that breaks returns an error; package holdfast starts it again.
func TestWatchBreaks(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	store := memlock.NewStore()
	s := newStoppable(t, store, "127.0.0.1:0")
	b := remote(t, s.url)
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- b.Watch(t.Context(), backend.WatchRequest{}, func(e backend.Event) {
			if e.Kind == backend.EventWatching {
				began <- struct{}{}
			}
		})
	}()
	<-began
	s.kill()
	select {
	case err := <-ended:
		if !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("the stream ended with %v", err)
		}
	case <-time.After(remotePatience):
		t.Error("the stream did not end")
	}
}
