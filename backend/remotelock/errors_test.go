package remotelock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 20 * time.Second

// An answer of a proxy, of another server or of a broken one is never taken for a grant, and
// never for "not held".
func TestStrangeAnswers(t *testing.T) {
	t.Parallel()
	const problem = "application/problem+json"
	lease := backend.NewLeaseID()
	req := backend.AcquireRequest{Name: "x", Lease: lease, Timed: true, TTL: time.Minute}
	grant := func(name string, id backend.LeaseID, rest string) string {
		return fmt.Sprintf(`{"name":%q,"lease":%q,"owner":"","expires_at":"2026-11-20T11:30:05.999Z",%s}`, name, id, rest)
	}
	for _, c := range []struct {
		status     int
		kind, body string
		is         error
		mayHold    bool
	}{
		{502, "text/html", "<html>", backend.ErrUnavailable, true},
		{500, "text/plain", "", backend.ErrUnavailable, true},
		{503, problem, `{"type":"` + wire.TypeUnavailable + `","may_hold":true}`, backend.ErrUnavailable, true},
		{503, problem, `{"type":"` + wire.TypeOverloaded + `","may_hold":false}`, backend.ErrUnavailable, false},
		{503, problem, `{"type":"urn:new"}`, backend.ErrUnavailable, true},
		{503, problem, `{`, backend.ErrUnavailable, true},
		{429, problem, `{"type":"` + wire.TypeTooMany + `"}`, backend.ErrUnavailable, false},
		{307, "text/plain", "", backend.ErrUnavailable, true},
		{404, "text/html", "", backend.ErrInvalid, false},
		{401, "text/html", "", backend.ErrRefused, false},
		{401, problem, `{"type":"` + wire.TypeUnauthenticated + `","detail":"no"}`, backend.ErrRefused, false},
		{403, "text/html", "", backend.ErrRefused, false},
		{403, problem, `{"type":"` + wire.TypeForbidden + `","detail":"no"}`, backend.ErrRefused, false},
		{400, problem, `{"type":"` + wire.TypeInvalid + `","field":"ttl","value":"1","bound":"2"}`, backend.ErrInvalid, false},
		{400, problem, `{"type":"` + wire.TypeLimit + `","in_force":3}`, backend.ErrLimit, false},
		{501, problem, `{"type":"` + wire.TypeUnsupported + `"}`, backend.ErrUnsupported, false},
		{410, problem, `{"type":"` + wire.TypeLost + `"}`, backend.ErrLost, false},
		{409, problem, `{"type":"` + wire.TypeHeld + `","holders":[{"owner":"o","token":9}],"position":3}`, backend.ErrHeld, false},
		{200, "application/json", `{}`, backend.ErrUnavailable, true},
		{200, "text/html", `<html>`, backend.ErrUnavailable, true},
		{200, "application/json", grant("x", backend.NewLeaseID(), `"token":5,"ttl":"30s"`), backend.ErrUnavailable, true},
		{200, "application/json", grant("y", lease, `"token":5,"ttl":"30s"`), backend.ErrUnavailable, true},
		{200, "application/json", grant("x", lease, `"token":0,"ttl":"30s"`), backend.ErrUnavailable, true},
		{200, "application/json", grant("x", lease, `"token":5,"ttl":"0s"`), backend.ErrUnavailable, true},
		{200, "application/json", grant("x", lease, `"token":9223372036854775808,"ttl":"1s"`), backend.ErrUnavailable, true},
	} {
		b := canned(t, c.status, c.kind, c.body)
		g, err := b.Acquire(t.Context(), req)
		away, _ := errors.AsType[*backend.UnavailableError](err)
		if !errors.Is(err, c.is) || away != nil && away.MayHold != c.mayHold {
			t.Errorf("%d %s: grant %+v, error %v, want %v (may hold: %v)", c.status, c.body, g, err, c.is, c.mayHold)
		}
		if away != nil && c.status != 200 && away.RetryAfter != 7*time.Second && strings.HasSuffix(c.body, "}") {
			t.Errorf("%d: Retry-After %s", c.status, away.RetryAfter)
		}
	}
	b := canned(t, 409, problem, `{"type":"`+wire.TypeHeld+`","holders":[{"owner":"o","token":9}],"position":3}`)
	_, err := b.Acquire(t.Context(), req)
	if held, ok := errors.AsType[*backend.HeldError](err); !ok || held.Name != "x" || held.Ahead != 2 || held.Holders[0].Token != 9 {
		t.Errorf("held: %+v", err)
	}
	b = canned(t, 200, "application/json", grant("x", lease, `"token":5,"ttl":"1h"`))
	if g, err := b.Acquire(t.Context(), req); err != nil || g.Left != time.Minute {
		t.Errorf("a server that gives more than was asked for: %+v, %v", g, err)
	}
	if _, err := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: "x", Lease: lease, TTL: time.Minute}}}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a renewal that answers nothing: %v", err)
	}
}

// No server, and a server that does not answer.
func TestAway(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	silent, err := remotelock.New("holdfast://"+ln.Addr().String(), remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refused, s := serving(t, nil)
	s.Close()
	lease := backend.NewLeaseID()
	calls := map[string]func(context.Context, *remotelock.Backend) error{
		"acquire": func(ctx context.Context, b *remotelock.Backend) error {
			_, err := b.Acquire(ctx, backend.AcquireRequest{Name: "x", Lease: lease, Timed: true, TTL: time.Minute, Wait: true})
			return err
		},
		"renew": func(ctx context.Context, b *remotelock.Backend) error {
			_, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: "x", Lease: lease, TTL: time.Minute}}})
			return err
		},
		"release": func(ctx context.Context, b *remotelock.Backend) error {
			return b.Release(ctx, backend.ReleaseRequest{Name: "x", Lease: lease, Abandon: true})
		},
		"inspect": func(ctx context.Context, b *remotelock.Backend) error { _, err := b.Inspect(ctx, "x"); return err },
		"list": func(ctx context.Context, b *remotelock.Backend) error {
			_, err := b.List(ctx, backend.ListRequest{})
			return err
		},
		"break": func(ctx context.Context, b *remotelock.Backend) error {
			_, err := b.Break(ctx, backend.BreakRequest{Name: "x"})
			return err
		},
		"watch": func(ctx context.Context, b *remotelock.Backend) error {
			return b.Watch(ctx, backend.WatchRequest{}, func(backend.Event) {})
		},
	}
	mine := errors.New("the caller's own")
	for op, call := range calls {
		err := call(t.Context(), refused)
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold || away.Op != op {
			t.Errorf("%s without a server: %v", op, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, mine)
		begun := time.Now()
		if err := call(ctx, silent); !errors.Is(err, mine) {
			t.Errorf("%s with silence: %v", op, err)
		}
		if took := time.Since(begun); took > patience/2 {
			t.Errorf("%s with silence took %s", op, took)
		}
		cancel()
	}
}
