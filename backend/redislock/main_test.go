package redislock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open connects as one more process would.
func open(t testing.TB, s *testserver.RedisServer, cfg redislock.Config) *redislock.Backend {
	t.Helper()
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, answered)
	b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// within returns a context for what must happen, on a machine however busy.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// settled waits until the server grants again after its start. It uses the minimum TTL,
// because the longest in use determines the length of a quarantine.
func settled(t testing.TB, b *redislock.Backend) {
	t.Helper()
	req := backend.AcquireRequest{Name: "settled", Lease: backend.NewLeaseID(), Timed: true, TTL: redislock.MinTTL}
	leasetest.Succeeds(t, func() error {
		_, err := b.Acquire(t.Context(), req)
		return err
	})
	// The lease may have ended already.
	_ = b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease})
}

// session opens a session.
func session(t testing.TB, b *redislock.Backend, ttl time.Duration) backend.SessionID {
	t.Helper()
	return sessionWith(t, b, ttl, nil)
}

func sessionWith(t testing.TB, b *redislock.Backend, ttl time.Duration, lost func(backend.Loss)) backend.SessionID {
	t.Helper()
	id := backend.NewSessionID()
	if err := b.OpenSession(within(t, patience), backend.SessionRequest{ID: id, TTL: ttl, Lost: lost}); err != nil {
		t.Fatalf("open session: %v", err)
	}
	return id
}

// patience bounds what must happen.
const patience = time.Minute

// answered is the time-out of requests, unless it is what is tested: a server answers nothing while its disk stands still.
const answered = patience / 2

// lease is a grant and its request.
type lease struct {
	backend.AcquireRequest
	backend.Grant
}

// acquire takes the lock, which must work. It generates the lease ID if none is given.
func acquire(t testing.TB, b *redislock.Backend, req backend.AcquireRequest) lease {
	t.Helper()
	if req.Lease == "" {
		req.Lease = backend.NewLeaseID()
	}
	g, err := b.Acquire(within(t, patience), req)
	if err != nil {
		t.Fatalf("acquire %q: %v", req.Name, err)
	}
	return lease{req, g}
}

// release releases the lease, which must work.
func release(t testing.TB, b *redislock.Backend, l lease) {
	t.Helper()
	err := b.Release(within(t, patience), backend.ReleaseRequest{Name: l.Name, Lease: l.Lease, Session: l.Session})
	if err != nil {
		t.Fatalf("release %q: %v", l.Name, err)
	}
}

// client is a Backend with a session of an hour, as one more process has it.
type client struct {
	*redislock.Backend
	t  testing.TB
	id backend.SessionID
}

// on opens a client of the server.
func on(t testing.TB, s *testserver.RedisServer, cfg redislock.Config) *client {
	t.Helper()
	return withSession(t, open(t, s, cfg))
}

func withSession(t testing.TB, b *redislock.Backend) *client {
	t.Helper()
	return mortal(t, b, time.Hour)
}

// mortal returns a client whose session has that TTL.
func mortal(t testing.TB, b *redislock.Backend, ttl time.Duration) *client {
	t.Helper()
	return &client{b, t, session(t, b, ttl)}
}

// change is how a request differs from one for an exclusive lease of the session.
type change = func(*backend.AcquireRequest)

func shared(r *backend.AcquireRequest) { r.Mode = backend.Shared }

func timed(ttl time.Duration) change {
	return func(r *backend.AcquireRequest) { r.Timed, r.TTL = true, ttl }
}

// alone is timed without a session.
func alone(ttl time.Duration) change {
	return func(r *backend.AcquireRequest) { r.Session, r.Timed, r.TTL = "", true, ttl }
}

func (c *client) req(name string, changes ...change) backend.AcquireRequest {
	r := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: c.id}
	for _, f := range changes {
		f(&r)
	}
	return r
}

func (c *client) take(name string, changes ...change) lease {
	c.t.Helper()
	return acquire(c.t, c.Backend, c.req(name, changes...))
}

// try acquires without waiting.
func (c *client) try(name string, changes ...change) error {
	_, err := c.Acquire(within(c.t, patience), c.req(name, changes...))
	return err
}

// asks starts an Acquire that waits, and returns when n leases wait for the lock.
func (c *client) asks(name string, n int, changes ...change) *asking {
	c.t.Helper()
	a := ask(c.t, c.Backend, c.req(name, changes...))
	inQueue(c.t, c.Backend, name, n)
	return a
}

func (c *client) give(l lease) {
	c.t.Helper()
	release(c.t, c.Backend, l)
}

// drop is give that may fail.
func (c *client) drop(l lease) error {
	return c.Release(within(c.t, patience), backend.ReleaseRequest{Name: l.Name, Lease: l.Lease, Session: l.Session})
}

func (c *client) breaks(name string) backend.BreakResult {
	c.t.Helper()
	r, err := c.Break(within(c.t, patience), backend.BreakRequest{Name: name})
	if err != nil {
		c.t.Fatalf("break %q: %v", name, err)
	}
	return r
}

// renews renews the session, which must work.
func (c *client) renews() {
	c.t.Helper()
	if r, err := c.Renew(within(c.t, patience), backend.RenewRequest{Session: c.id}); err != nil || r.SessionLost {
		c.t.Errorf("renew: %+v, %v", r, err)
	}
}

// heldBy fails unless these leases hold the lock, and no others, and so many wait for it.
func (c *client) heldBy(name string, waiters int, leases ...backend.LeaseID) {
	c.t.Helper()
	info, err := c.Inspect(within(c.t, patience), name)
	var holders []backend.LeaseID
	for _, h := range info.Holders {
		holders = append(holders, h.Lease)
	}
	if slices.Sort(holders); err != nil || !slices.Equal(holders, slices.Sorted(slices.Values(leases))) || len(info.Waiters) != waiters {
		c.t.Errorf("%q: %+v, %v; want the holders %q, and %d waiters", name, info, err, leases, waiters)
	}
}

// is fails unless the error of a call is the one that is wanted.
func is(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}

// away fails unless a call failed because the server is unavailable, and says whether it may have worked.
func away(t testing.TB, what string, err error, mayHold bool) {
	t.Helper()
	if u, ok := errors.AsType[*backend.UnavailableError](err); !ok || u.MayHold != mayHold {
		t.Errorf("%s: %v; want an UnavailableError, MayHold %t", what, err, mayHold)
	}
}

// thin returns the record of a thin lock, as the server has it: "" if it is not thin.
func thin(s *testserver.RedisServer, name string) string {
	all, _ := s.Do("ZRANGEBYLEX", "{hf0}:t", "["+name+"\n", "("+name+"\v").([]any)
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprint(all[0])
}

// inQueue waits until n leases wait for the lock.
func inQueue(t testing.TB, b *redislock.Backend, name string, n int) {
	t.Helper()
	leasetest.Succeeds(t, func() error {
		info, err := b.Inspect(t.Context(), name)
		if err == nil && len(info.Waiters) != n {
			err = fmt.Errorf("%d wait for %q, not %d", len(info.Waiters), name, n)
		}
		return err
	})
}

// asking is an Acquire in progress.
type asking struct {
	backend.AcquireRequest
	cancel context.CancelCauseFunc
	done   chan struct{}
	grant  backend.Grant
	err    error
	took   time.Duration
}

// ask starts an Acquire that waits.
func ask(t testing.TB, b *redislock.Backend, req backend.AcquireRequest) *asking {
	t.Helper()
	if req.Lease == "" {
		req.Lease = backend.NewLeaseID()
	}
	req.Wait = true
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &asking{AcquireRequest: req, cancel: cancel, done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(a.done)
		a.grant, a.err = b.Acquire(ctx, req)
		a.took = time.Since(began)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-a.done
	})
	return a
}

// ends waits until the Acquire has returned.
func (a *asking) ends(t testing.TB) error {
	t.Helper()
	select {
	case <-a.done:
		return a.err
	case <-within(t, patience).Done():
		t.Fatalf("acquire %q did not return", a.Name)
		return nil
	}
}

// granted waits for the grant.
func (a *asking) granted(t testing.TB) lease {
	t.Helper()
	if err := a.ends(t); err != nil {
		t.Fatalf("acquire %q: %v", a.Name, err)
	}
	return lease{a.AcquireRequest, a.grant}
}

// scriptsOnly returns arguments of a server without functions, like those before Redis 7.
func scriptsOnly() []string {
	return []string{"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-fcall", "-function"}
}

// inBothForms runs a test with the program as a function of the server, and as a script.
func inBothForms(t *testing.T, test func(t *testing.T, args ...string)) {
	t.Helper()
	for form, args := range map[string][]string{"function": nil, "script": scriptsOnly()} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			test(t, args...)
		})
	}
}

// quick starts a server that grants immediately and keeps its data.
func quick(t testing.TB, args ...string) (*testserver.RedisServer, redislock.Config) {
	t.Helper()
	s := testserver.Redis(t, args...)
	cfg := redislock.Config{Quarantine: time.Millisecond, RequestTimeout: answered}
	settled(t, open(t, s, cfg))
	return s, cfg
}
