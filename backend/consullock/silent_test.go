package consullock_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// TestSilentAnswers: the answer to a request never comes, and its connection stays open. No call
// waits for that, however long its caller would; the retry is answered.
func TestSilentAnswers(t *testing.T) {
	t.Parallel()
	server := consul()
	type do = func(context.Context, *consullock.Backend, backend.SessionID, backend.AcquireRequest) error
	type call struct {
		request string // contains this
		do      do
	}
	acquire := func(wait bool) do {
		lease := backend.NewLeaseID()
		return func(ctx context.Context, b *consullock.Backend, id backend.SessionID, held backend.AcquireRequest) error {
			_, err := b.Acquire(ctx, backend.AcquireRequest{Name: "free " + held.Name, Lease: lease, Session: id, Wait: wait})
			return err
		}
	}
	next := backend.NewSessionID()
	for name, c := range map[string]call{
		"acquire": {"PUT /v1/txn", acquire(true)},
		"try":     {"GET /v1/kv/" + prefixOf(t) + "/locks/free", acquire(false)},
		"release": {"/v1/", func(ctx context.Context, b *consullock.Backend, id backend.SessionID, held backend.AcquireRequest) error {
			err := b.Release(ctx, backend.ReleaseRequest{Name: held.Name, Lease: held.Lease, Session: id})
			if errors.Is(err, backend.ErrLost) {
				return nil // it had worked
			}
			return err
		}},
		"inspect": {"GET /v1/kv/" + prefixOf(t) + "/locks/", func(ctx context.Context, b *consullock.Backend, _ backend.SessionID, held backend.AcquireRequest) error {
			_, err := b.Inspect(ctx, held.Name)
			return err
		}},
		"list": {"GET /v1/kv/" + prefixOf(t) + "/locks/", func(ctx context.Context, b *consullock.Backend, _ backend.SessionID, _ backend.AcquireRequest) error {
			_, err := b.List(ctx, backend.ListRequest{})
			return err
		}},
		"break": {"/v1/", func(ctx context.Context, b *consullock.Backend, _ backend.SessionID, held backend.AcquireRequest) error {
			_, err := b.Break(ctx, backend.BreakRequest{Name: held.Name})
			return err
		}},
		"renew": {"PUT /v1/session/renew", func(ctx context.Context, b *consullock.Backend, id backend.SessionID, _ backend.AcquireRequest) error {
			_, err := b.Renew(ctx, backend.RenewRequest{Session: id})
			return err
		}},
		"open": {"PUT /v1/session/create", func(ctx context.Context, b *consullock.Backend, _ backend.SessionID, _ backend.AcquireRequest) error {
			return b.OpenSession(ctx, backend.SessionRequest{ID: next, TTL: time.Hour})
		}},
		"end": {"PUT /v1/session/destroy", func(ctx context.Context, b *consullock.Backend, id backend.SessionID, _ backend.AcquireRequest) error {
			return b.EndSession(ctx, id)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := chaos.Start(t, server.Addr())
			b := closing(t, proxy.Addr())
			id := session(t, b, nil)
			held := leasetest.Ask(name, id)
			leasetest.Take(t, b, held)
			dropped := proxy.LoseReply(func(piece []byte) bool {
				// This does not apply to the session's own query, which Consul keeps open.
				return bytes.Contains(piece, []byte(c.request)) && !bytes.Contains(piece, []byte("/notices/"))
			})
			ctx := leasetest.Within(t)
			if err := c.do(ctx, b, id, held); !errors.Is(err, backend.ErrUnavailable) || ctx.Err() != nil {
				t.Fatalf("no answer: %v, %v", err, ctx.Err())
			}
			<-dropped
			if err := leasetest.InsistOn(t, func(ctx context.Context) error { return c.do(ctx, b, id, held) }); err != nil {
				t.Errorf("the repeated call: %v", err)
			}
		})
	}
}

// TestServerGone: a server that hangs does not keep calls, nor a backend from being closed.
func TestServerGone(t *testing.T) {
	t.Parallel()
	proxy := chaos.Start(t, consul().Addr())
	leasetest.ServerGone(t, closing(t, proxy.Addr()), proxy)
}
