package e2e_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

// The holder of a lease that was broken through one server learns the reason from another one on the same etcd, though
// nobody watches there. A lease that was released, or never was, is lost without a reason.
func TestBrokenThroughAnotherServer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	at := sharedEtcd().Addr()
	client := func() backend.Backend {
		b, err := leasetest.Insist(t, func(ctx context.Context) (*etcdlock.Backend, error) {
			return etcdlock.Open(ctx, "etcd://"+at, etcdlock.Config{})
		})
		if err != nil {
			t.Fatal(err)
		}
		srv, err := server.New(b, server.Config{})
		if err != nil {
			t.Fatal(err)
		}
		front := httptest.NewServer(srv.Handler())
		c, err := remotelock.New("holdfast://"+strings.TrimPrefix(front.URL, "http://"), remotelock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), leasetest.Patience)
			defer cancel()
			closed := c.Close()
			front.Close()
			if err := errors.Join(closed, srv.Close(ctx), b.Close()); err != nil {
				t.Error(err)
			}
		})
		return c
	}
	near, far := client(), client()
	var renew backend.RenewRequest
	for _, name := range []string{"broken", "without a reason", "released", "kept", "never held"} {
		req := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
		renew.Leases = append(renew.Leases, backend.TimedRenewal{Name: name, Lease: req.Lease})
		if name != "never held" {
			leasetest.Take(t, near, req)
		}
		if name == "released" {
			leasetest.Give(t, near, req)
		}
	}
	for name, reason := range map[string]string{"broken": "it hangs", "without a reason": ""} {
		res, err := leasetest.Insist(t, func(ctx context.Context) (backend.BreakResult, error) {
			return far.Break(ctx, backend.BreakRequest{Name: name, Reason: reason})
		})
		if err != nil {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	res, err := leasetest.Insist(t, func(ctx context.Context) (backend.RenewResult, error) { return near.Renew(ctx, renew) })
	if err != nil || len(res.Leases) != len(renew.Leases) {
		t.Fatalf("%+v, %v", res, err)
	}
	for i, l := range renew.Leases {
		err := res.Leases[i].Err
		lost, explained := errors.AsType[*backend.LossError](err)
		switch l.Name {
		case "kept":
			if err != nil {
				t.Errorf("%s: %v", l.Name, err)
			}
		case "released", "never held":
			if !errors.Is(err, backend.ErrLost) || explained {
				t.Errorf("%s: %v; want ErrLost without a cause", l.Name, err)
			}
		default:
			if want := map[string]string{"broken": "it hangs"}[l.Name]; !explained || lost.Cause != backend.CauseBroken || lost.Reason != want {
				t.Errorf("%s: %v; want that it was broken, and the reason %q", l.Name, err, want)
			}
		}
	}
}
