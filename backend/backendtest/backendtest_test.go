package backendtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestBrokenStores checks that the suite catches stores that break one rule each, and finds no fault in those that
// keep all rules. Each case has a store in memory of its own. Time is simulated: a case that waits for ever takes no
// longer than the others.
func TestBrokenStores(t *testing.T) {
	t.Parallel()
	for _, x := range stores() {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var caught, failures []string
			for _, c := range backendtest.Cases() {
				name := c.ID + "/" + c.Name
				want := x.caught == nil || slices.Contains(x.caught, name) || slices.Contains(x.caught, c.ID) && !slices.Contains(caught, c.ID)
				if !want || c.Restarts != (x.hooks.restart != nil) {
					continue
				}
				if found := judge(t, c, &x.hooks); len(found) > 0 {
					caught, failures = append(caught, c.ID, name), append(failures, found...)
				}
			}
			for _, want := range x.caught {
				if !slices.Contains(caught, want) {
					t.Errorf("%s does not catch it", want)
				}
			}
			for _, f := range failures {
				if !strings.Contains(f, "rule: ") || x.caught == nil {
					t.Error(f)
				}
			}
		})
	}
}

// judge returns what the case finds wrong with a store that the hooks break.
func judge(t *testing.T, c backendtest.Case, h *hooks) []string {
	t.Helper()
	var failures []string
	synctest.Test(t, func(t *testing.T) {
		s := &server{hooks: h, store: memlock.NewStore()}
		run := backendtest.Harness{
			Open:    s.open,
			TTL:     25 * time.Second, // under load a case waits for half of it
			Slack:   10 * time.Millisecond,
			Holders: 100, // enough for several steps of a break, and few enough to try every store
			Kills:   20,
		}
		if h.restart != nil {
			run.Restart = s.restart
		}
		failures = c.Run(t.Context(), run).Failures
	})
	return failures
}

// A call that does not end is reported, with the step that waits for it; also one that outlives Close.
func TestHangIsReported(t *testing.T) {
	t.Parallel()
	all := backendtest.Cases()
	c := all[slices.IndexFunc(all, func(c backendtest.Case) bool { return c.ID+"/"+c.Name == "C1/exclusive-excludes" })]
	for _, stubborn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			closed, over := make(chan struct{}), make(chan struct{})
			once := sync.OnceFunc(func() { close(closed) })
			h := &hooks{inspect: func(context.Context, backend.Backend, string) (backend.LockInfo, error) {
				<-closed
				if stubborn {
					<-over
				}
				return backend.LockInfo{}, backend.ErrClosed
			}, close: func(b backend.Backend) error { once(); return b.Close() }}
			s := &server{hooks: h, store: memlock.NewStore()}
			text := strings.Join(c.Run(t.Context(), backendtest.Harness{Open: s.open}).Failures, "\n")
			if !strings.Contains(text, "not done after") || !strings.Contains(text, "exclusiveExcludes") || strings.Contains(text, "after its backend was closed") != stubborn {
				t.Errorf("it outlives Close: %v; told was:\n%s", stubborn, text)
			}
			close(over)
		})
	}
}

// hooks break a store. A hook that is nil leaves its method as it is.
type hooks struct {
	caps    func(*backend.Capabilities)
	open    func(context.Context, backend.Backend, backend.SessionRequest) error
	end     func(context.Context, backend.Backend, backend.SessionID) error
	acquire func(context.Context, backend.Backend, backend.AcquireRequest) (backend.Grant, error)
	renew   func(context.Context, backend.Backend, backend.RenewRequest) (backend.RenewResult, error)
	release func(context.Context, backend.Backend, backend.ReleaseRequest) error
	inspect func(context.Context, backend.Backend, string) (backend.LockInfo, error)
	breaks  func(context.Context, backend.Backend, backend.BreakRequest) (backend.BreakResult, error)
	watch   func(context.Context, backend.Backend, backend.WatchRequest, func(backend.Event)) error
	close   func(backend.Backend) error
	// restart returns the store after a restart of it. A store with this hook runs the cases that restart it, and no others.
	restart func(*memlock.Store) *memlock.Store
}

// server is a store that can be restarted: calls in progress are cut, and the values connect again.
type server struct {
	hooks  *hooks
	mu     sync.Mutex
	store  *memlock.Store
	values []*value
}

func (s *server) open(backendtest.T) backend.Backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &value{Backend: s.store.Open(), h: s.hooks}
	s.values = append(s.values, v)
	return v
}

func (s *server) restart(backendtest.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = s.hooks.restart(s.store)
	for _, v := range s.values {
		v.mu.Lock()
		_ = v.Backend.Close()
		if !v.closed {
			v.Backend = s.store.Open()
		}
		v.mu.Unlock()
	}
}

// value is a backend value with hooks, which outlives restarts of its store.
type value struct {
	backend.Backend
	h *hooks

	mu     sync.Mutex
	closed bool
}

func (v *value) now() backend.Backend {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.Backend
}

// cut returns the error of a call, which a restart may have cut.
func (v *value) cut(err error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.h.restart != nil && errors.Is(err, backend.ErrClosed) && !v.closed {
		return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: true}
	}
	return err
}

// do calls the hook, or the method if there is none.
func do[R any](ctx context.Context, v *value, r R, hook func(context.Context, backend.Backend, R) error, method func(backend.Backend, context.Context, R) error) error {
	_, err := get(ctx, v, r, func(ctx context.Context, b backend.Backend, r R) (struct{}, error) {
		if hook != nil {
			return struct{}{}, hook(ctx, b, r)
		}
		return struct{}{}, method(b, ctx, r)
	}, nil)
	return err
}

// get is do for what returns a result.
func get[R, T any](ctx context.Context, v *value, r R, hook func(context.Context, backend.Backend, R) (T, error), method func(backend.Backend, context.Context, R) (T, error)) (T, error) {
	b := v.now()
	if hook == nil {
		hook = func(ctx context.Context, b backend.Backend, r R) (T, error) { return method(b, ctx, r) }
	}
	t, err := hook(ctx, b, r)
	return t, v.cut(err)
}

func (v *value) Capabilities() backend.Capabilities {
	c := v.now().Capabilities()
	if v.h.caps != nil {
		v.h.caps(&c)
	}
	return c
}

func (v *value) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	return do(ctx, v, r, v.h.open, backend.Backend.OpenSession)
}

func (v *value) EndSession(ctx context.Context, id backend.SessionID) error {
	return do(ctx, v, id, v.h.end, backend.Backend.EndSession)
}

func (v *value) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	return get(ctx, v, r, v.h.acquire, backend.Backend.Acquire)
}

func (v *value) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	return get(ctx, v, r, v.h.renew, backend.Backend.Renew)
}

func (v *value) Release(ctx context.Context, r backend.ReleaseRequest) error {
	return do(ctx, v, r, v.h.release, backend.Backend.Release)
}

func (v *value) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return get(ctx, v, name, v.h.inspect, backend.Backend.Inspect)
}

func (v *value) Break(ctx context.Context, r backend.BreakRequest) (backend.BreakResult, error) {
	return get(ctx, v, r, v.h.breaks, backend.Backend.Break)
}

func (v *value) Watch(ctx context.Context, r backend.WatchRequest, deliver func(backend.Event)) error {
	if v.h.watch != nil {
		return v.h.watch(ctx, v.now(), r, deliver)
	}
	return v.now().Watch(ctx, r, deliver)
}

func (v *value) Close() error {
	v.mu.Lock()
	v.closed = true
	b := v.Backend
	v.mu.Unlock()
	if v.h.close != nil {
		return v.h.close(b)
	}
	return b.Close()
}
