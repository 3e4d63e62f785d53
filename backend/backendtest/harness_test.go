package backendtest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// find returns a case by its ID and name.
func find(t *testing.T, name string) backendtest.Case {
	t.Helper()
	for _, c := range backendtest.Cases() {
		if c.ID+"/"+c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no case %s", name)
	return backendtest.Case{}
}

// The cases of a slice exist, and a backend that keeps all rules passes them.
func TestOnly(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	backendtest.Run(t, backendtest.Harness{Only: leasetest.Transport(), TTL: 300 * time.Millisecond, Open: func(backendtest.T) backend.Backend { return store.Open() }})
}

func TestCasesAreComplete(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	ids := make(map[string]bool)
	for _, c := range backendtest.Cases() {
		ids[c.ID] = true
		if c.Rule == "" || c.Name == "" || strings.ContainsAny(c.Name, " /") {
			t.Errorf("case %q of %s has no rule, or a name that cannot be typed", c.Name, c.ID)
		}
		if seen[c.ID+c.Name] {
			t.Errorf("there are two cases %s/%s", c.ID, c.Name)
		}
		seen[c.ID+c.Name] = true
	}
	for _, id := range []string{"C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13", "C14"} {
		if !ids[id] {
			t.Errorf("no case of %s", id)
		}
	}
}

// TestHangIsReported runs a case on a backend that ignores every context, and on one
// that does so even after it was closed.
func TestHangIsReported(t *testing.T) {
	t.Parallel()
	for _, stubborn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, block, closed := memlock.NewStore(), make(chan struct{}), make(chan struct{})
			h := &hooks{inspect: func(context.Context, backend.Backend, string) (backend.LockInfo, error) {
				if stubborn {
					<-block
				}
				<-closed
				return backend.LockInfo{}, backend.ErrClosed
			}}
			opened := 0
			open := func(backendtest.T) backend.Backend {
				opened++
				if opened > 1 {
					return store.Open()
				}
				return closing{mutated{store.Open(), h}, closed}
			}
			r := find(t, "C1/exclusive-excludes").Run(t.Context(), backendtest.Harness{Open: open})
			text := strings.Join(r.Failures, "\n")
			if !strings.Contains(text, "not done after") || !strings.Contains(text, "exclusiveExcludes") {
				t.Errorf("the hang, and where it is, is not told:\n%s", text)
			}
			if told := strings.Contains(text, "after its backend was closed"); told != stubborn {
				t.Errorf("a call that outlives Close: told %v, want %v:\n%s", told, stubborn, text)
			}
			close(block)
		})
	}
}

// closing signals when it is closed.
type closing struct {
	backend.Backend
	closed chan struct{}
}

func (c closing) Close() error {
	close(c.closed)
	return c.Backend.Close()
}

// TestStandstill: a machine that stood still is no fault of the store, and a store that soon says
// that it is unavailable is.
func TestStandstill(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		takes time.Duration
		fails bool
	}{{10 * time.Second, false}, {time.Millisecond, true}} {
		synctest.Test(t, func(t *testing.T) {
			store, calls := memlock.NewStore(), 0
			unanswered := func() error { // every other call, which works
				if calls++; calls%2 == 0 {
					return nil
				}
				time.Sleep(x.takes)
				return &backend.UnavailableError{Op: "call", MayHold: true, Err: context.DeadlineExceeded}
			}
			h := &hooks{
				open: func(ctx context.Context, b backend.Backend, r backend.SessionRequest) error {
					return errors.Join(b.OpenSession(ctx, r), unanswered())
				},
				end: func(ctx context.Context, b backend.Backend, id backend.SessionID) error {
					return errors.Join(b.EndSession(ctx, id), unanswered())
				},
				acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
					g, err := b.Acquire(ctx, r)
					if err == nil {
						err = unanswered()
					}
					return g, err
				},
				release: func(ctx context.Context, b backend.Backend, r backend.ReleaseRequest) error {
					err := b.Release(ctx, r)
					if err == nil {
						err = unanswered()
					}
					return err
				},
			}
			r := find(t, "C1/exclusive-excludes").Run(t.Context(), backendtest.Harness{
				Open:  func(backendtest.T) backend.Backend { return mutated{store.Open(), h} },
				TTL:   time.Minute,
				Slack: 30 * time.Second,
			})
			if calls == 0 || (len(r.Failures) > 0) != x.fails {
				t.Errorf("%d calls, each other unanswered for %s: %q", calls, x.takes, r.Failures)
			}
		})
	}
}

// TestBreakStandsStill: whom a break took that had no answer is unknown, so the case is run again, but not
// for ever. A break that fails soon is a failure.
func TestBreakStandsStill(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		takes time.Duration
		times int
		fails bool
	}{{10 * time.Second, 1, false}, {10 * time.Second, 1000, true}, {time.Millisecond, 1, true}} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore()
			var breaks atomic.Int64
			h := &hooks{breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
				res, err := b.Break(ctx, r)
				if err == nil && breaks.Add(1) <= int64(x.times) {
					time.Sleep(x.takes)
					return backend.BreakResult{}, &backend.UnavailableError{Op: "break", MayHold: true, Err: context.DeadlineExceeded}
				}
				return res, err
			}}
			r := find(t, "C10/a-break-beside-one-arrival").Run(t.Context(), backendtest.Harness{
				Open:  func(backendtest.T) backend.Backend { return mutated{store.Open(), h} },
				TTL:   time.Minute,
				Slack: time.Minute,
			})
			if r.Skipped != "" || (len(r.Failures) > 0) != x.fails {
				t.Errorf("%d breaks without an answer for %s: skipped %q, failures %q", x.times, x.takes, r.Skipped, r.Failures)
			}
		})
	}
}

// TestOpenStandsStill: a value that could not be opened is no fault either, and one that soon could not
// is.
func TestOpenStandsStill(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		takes time.Duration
		fails bool
	}{{10 * time.Second, false}, {time.Millisecond, true}} {
		synctest.Test(t, func(t *testing.T) {
			store, opened := memlock.NewStore(), 0
			r := find(t, "C1/exclusive-excludes").Run(t.Context(), backendtest.Harness{TTL: time.Minute, Open: func(t backendtest.T) backend.Backend {
				if opened++; opened == 1 {
					time.Sleep(x.takes)
					t.Fatalf("open: %v", &backend.UnavailableError{Op: "open", Err: context.DeadlineExceeded})
				}
				return store.Open()
			}})
			if (len(r.Failures) > 0) != x.fails {
				t.Errorf("the first of %d values was not opened within %s: %q", opened, x.takes, r.Failures)
			}
		})
	}
}

// TestStandstillBesideBreak: an Acquire that had no answer, and whose grant a break took, is granted
// again. The case does not blame the store.
func TestStandstillBesideBreak(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, broke := memlock.NewStore(), make(chan struct{})
		var asked, lost atomic.Int64
		var arrived sync.Map // the sessions of which a client has arrived: the case waits for one of each
		h := &hooks{
			acquire: func(ctx context.Context, b backend.Backend, r backend.AcquireRequest) (backend.Grant, error) {
				g, err := b.Acquire(ctx, r)
				if err != nil || asked.Add(1) <= holders {
					return g, err
				}
				if _, second := arrived.LoadOrStore(r.Session, true); !second {
					return g, nil
				}
				select {
				case <-broke:
					return g, nil
				default:
				}
				lost.Add(1)
				<-broke
				time.Sleep(10 * time.Second)
				return backend.Grant{}, &backend.UnavailableError{Op: "acquire", MayHold: true, Err: context.DeadlineExceeded}
			},
			breaks: func(ctx context.Context, b backend.Backend, r backend.BreakRequest) (backend.BreakResult, error) {
				defer close(broke)
				return b.Break(ctx, r)
			},
		}
		r := find(t, "C10/a-break-beside-arrivals").Run(t.Context(), backendtest.Harness{
			Open:    func(backendtest.T) backend.Backend { return mutated{store.Open(), h} },
			TTL:     time.Minute,
			Slack:   time.Minute,
			Holders: holders,
		})
		if lost.Load() == 0 || len(r.Failures) > 0 {
			t.Errorf("%d acquires had no answer: %q", lost.Load(), r.Failures)
		}
	})
}

func TestHarnessMayFail(t *testing.T) {
	t.Parallel()
	var order []string
	r := find(t, "C1/exclusive-excludes").Run(t.Context(), backendtest.Harness{Open: func(t backendtest.T) backend.Backend {
		t.Cleanup(func() { order = append(order, "first") })
		t.Cleanup(func() { order = append(order, "second"); t.Fatalf("a cleanup may fail") })
		t.Cleanup(func() {
			if t.Context().Err() != nil {
				t.Errorf("the context has ended")
			}
		})
		t.Logf("noted")
		t.Fatalf("no server: %d", 7)
		return nil
	}})
	if len(r.Failures) != 2 || !strings.Contains(r.Failures[0], "no server: 7") || !strings.Contains(r.Failures[0], "C1/exclusive-excludes") {
		t.Errorf("failures: %q", r.Failures)
	}
	if strings.Join(order, " ") != "second first" {
		t.Errorf("cleanups ran in the order %q", order)
	}
	if len(r.Log) != 1 || r.Log[0] != "noted" || r.Passed() {
		t.Errorf("result: %+v", r)
	}
}

// lesser is a backend with fewer capabilities, and refuses the rest. Where it has no queue it
// polls.
type lesser struct {
	backend.Backend
	store *memlock.Store
	caps  backend.Capabilities
	mu    sync.Mutex
	sess  []backend.SessionID // that were opened here
}

// Close ends the sessions where they are bound.
func (l *lesser) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.Backend.Close()
	for _, id := range l.sess {
		b := l.store.Open()
		err = errors.Join(err, b.EndSession(context.Background(), id), b.Close())
	}
	l.sess = nil
	return err
}

func (l *lesser) Capabilities() backend.Capabilities { return l.caps }

func (l *lesser) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	if err := r.Validate(l.caps); err != nil {
		return err
	}
	if !l.caps.LossPush {
		r.Lost = nil
	}
	if l.caps.Bound {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sess = append(l.sess, r.ID)
	}
	return l.Backend.OpenSession(ctx, r)
}

func (l *lesser) EndSession(ctx context.Context, id backend.SessionID) error {
	if !l.caps.Sessions {
		return backend.ErrUnsupported
	}
	return l.Backend.EndSession(ctx, id)
}

func (l *lesser) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if err := r.Validate(l.caps); err != nil {
		return backend.RenewResult{}, err
	}
	return l.Backend.Renew(ctx, r)
}

func (l *lesser) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if err := r.Validate(l.caps); err != nil {
		return backend.Grant{}, err
	}
	wait := r.Wait
	r.Wait = wait && l.caps.FIFO
	for {
		g, err := l.Backend.Acquire(ctx, r)
		if !wait || !errors.Is(err, backend.ErrHeld) {
			return g, err
		}
		pause := time.NewTimer(10 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return g, context.Cause(ctx)
		}
	}
}

func (l *lesser) Watch(ctx context.Context, r backend.WatchRequest, deliver func(backend.Event)) error {
	if !l.caps.Watch {
		return backend.ErrUnsupported
	}
	return l.Backend.Watch(ctx, r, deliver)
}

func lesserCaps(change func(*backend.Capabilities)) backend.Capabilities {
	b := memlock.New()
	defer func() { _ = b.Close() }()
	c := b.Capabilities()
	change(&c)
	return c
}

// TestLesserBackends checks that the suite requires of no backend what it does not claim, and
// that it catches one that claims less than it does.
func TestLesserBackends(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		change func(*backend.Capabilities)
	}{
		{"no sessions and no queue", func(c *backend.Capabilities) { c.Sessions, c.LossPush, c.FIFO, c.Push = false, false, false, false }},
		{"no timed leases", func(c *backend.Capabilities) { c.Timed = false }},
		{"sessions of a connection", func(c *backend.Capabilities) { c.Timed, c.Bound = false, true }},
		{"no queue", func(c *backend.Capabilities) { c.FIFO, c.Push = false, false }},
		{"no shared leases", func(c *backend.Capabilities) { c.Shared = false }},
		{"no permits", func(c *backend.Capabilities) { c.Permits = false }},
		{"exclusive only", func(c *backend.Capabilities) { c.Shared, c.Permits = false, false }},
		{"no push and no watch", func(c *backend.Capabilities) { c.LossPush, c.Watch = false, false }},
		{"few renewals in one call", func(c *backend.Capabilities) { c.MaxRenew = 3 }},
		{"coarse", func(c *backend.Capabilities) {
			c.MinTTL, c.MaxTTL, c.ExpiryLag = 10*time.Second, 24*time.Hour, 10*time.Second
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			caps := lesserCaps(x.change)
			honest := func(s *memlock.Store) backend.Backend { return &lesser{Backend: s.Open(), store: s, caps: caps} }
			for _, f := range runAll(t, honest) {
				t.Error(f)
			}
		})
	}
	pretends := lesserCaps(func(c *backend.Capabilities) {
		c.Sessions, c.Shared, c.Permits, c.Watch, c.FIFO, c.LossPush = false, false, false, false, false, false
	})
	failures := strings.Join(runAll(t, func(s *memlock.Store) backend.Backend { return modest{s.Open(), pretends} }), "\n")
	timeless := lesserCaps(func(c *backend.Capabilities) { c.Timed = false })
	failures += strings.Join(runAll(t, func(s *memlock.Store) backend.Backend { return modest{s.Open(), timeless} }), "\n")
	for _, name := range []string{"C11/no-sessions", "C11/no-timed-leases", "C11/no-shared-leases", "C11/no-permits", "C11/no-watch"} {
		if !strings.Contains(failures, name) {
			t.Errorf("%s does not catch a backend that does what it does not claim", name)
		}
	}
}

// modest can do more than it claims.
type modest struct {
	backend.Backend
	caps backend.Capabilities
}

func (m modest) Capabilities() backend.Capabilities { return m.caps }

// runAll returns the failures of all cases, each on a store of its own.
func runAll(t *testing.T, open func(*memlock.Store) backend.Backend) []string {
	t.Helper()
	var failures []string
	for _, c := range backendtest.Cases() {
		if c.Restarts {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore()
			r := c.Run(t.Context(), backendtest.Harness{
				Open:    func(backendtest.T) backend.Backend { return open(store) },
				Slack:   5 * time.Second,
				Holders: holders,
			})
			failures = append(failures, r.Failures...)
		})
	}
	return failures
}
