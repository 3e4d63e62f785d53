package backendtest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/fence"
)

// server makes a memlock store that can be restarted: calls in progress are cut, and the values
// connect again.
type server struct {
	durable bool
	// next returns the store after a restart.
	next func(old *memlock.Store) *memlock.Store

	// undoes: the last hand-over happens once more after a restart.
	undoes bool

	mu    sync.Mutex
	store *memlock.Store
	conns []*conn
	told  map[string]fence.Token // of the last hand-over of each lock
	again map[string]fence.Token // of those that the restart has undone
}

// hand records a grant as it is reported.
func (s *server) hand(name string, g backend.Grant) backend.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.undoes || !g.Waited {
		return g
	}
	if undone, ok := s.again[name]; ok {
		delete(s.again, name)
		g.Token = undone
	}
	s.told[name] = g.Token
	return g
}

func (s *server) open(backendtest.T) backend.Backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &conn{Backend: s.store.Open(), s: s}
	s.conns = append(s.conns, c)
	return c
}

func (s *server) restart(backendtest.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = s.next(s.store)
	s.again = maps.Clone(s.told)
	for _, c := range s.conns {
		c.mu.Lock()
		_ = c.Backend.Close()
		if !c.closed {
			c.Backend = s.store.Open()
		}
		c.mu.Unlock()
	}
}

// conn is a backend value that outlives the restart of its store.
type conn struct {
	backend.Backend
	s      *server
	mu     sync.Mutex
	closed bool
}

func (c *conn) now() backend.Backend {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Backend
}

func (c *conn) Capabilities() backend.Capabilities {
	caps := c.now().Capabilities()
	caps.Durable = c.s.durable
	return caps
}

// away returns the error of a call that a restart has cut.
func (c *conn) away(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, backend.ErrClosed) && !c.closed {
		return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: true}
	}
	return err
}

func (c *conn) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	return c.away(c.now().OpenSession(ctx, r))
}

func (c *conn) EndSession(ctx context.Context, id backend.SessionID) error {
	return c.away(c.now().EndSession(ctx, id))
}

func (c *conn) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	g, err := c.now().Acquire(ctx, r)
	if err == nil {
		g = c.s.hand(r.Name, g)
	}
	return g, c.away(err)
}

func (c *conn) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	res, err := c.now().Renew(ctx, r)
	return res, c.away(err)
}

// Release takes a moment. With a store that answers immediately, one worker may acquire and release
// free locks for as long as it runs, and nothing is handed over.
func (c *conn) Release(ctx context.Context, r backend.ReleaseRequest) error {
	time.Sleep(time.Millisecond)
	return c.away(c.now().Release(ctx, r))
}

func (c *conn) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	info, err := c.now().Inspect(ctx, name)
	return info, c.away(err)
}

func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.Backend.Close()
}

// TestRestart checks the restart cases: on a store that keeps its data, and on stores that
// claim to and do not.
func TestRestart(t *testing.T) {
	t.Parallel()
	keeps := func(s *memlock.Store) *memlock.Store { return s }
	loses := func(*memlock.Store) *memlock.Store { return memlock.NewStore() }
	for _, x := range []struct {
		name    string
		durable bool
		next    func(*memlock.Store) *memlock.Store
		undoes  bool
		caught  []string
	}{
		{"keeps its data", true, keeps, false, nil},
		{"keeps its data and does not claim it", false, keeps, false, nil},
		{"loses its data and claims to keep it", true, loses, false, []string{"C1", "C2", "C4", "C5"}},
		{"loses its counter", false, loses, false, []string{"C2"}},
		{"reports what a crash undoes", true, keeps, true, []string{"C2"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var caught []string
			for _, c := range backendtest.Cases() {
				if !c.Restarts {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					s := &server{durable: x.durable, next: x.next, undoes: x.undoes, store: memlock.NewStore(), told: make(map[string]fence.Token)}
					r := c.Run(t.Context(), backendtest.Harness{Open: s.open, Restart: s.restart, Kills: 20, TTL: time.Minute, Slack: time.Millisecond})
					for _, f := range r.Failures {
						t.Log(f)
					}
					if len(r.Failures) > 0 {
						caught = append(caught, c.ID)
					}
				})
			}
			slices.Sort(caught)
			if len(x.caught) == 0 && len(caught) > 0 {
				t.Errorf("cases of %v failed", caught)
			}
			for _, id := range x.caught {
				if !slices.Contains(caught, id) {
					t.Errorf("not caught by a case of %s", id)
				}
			}
		})
	}
}
