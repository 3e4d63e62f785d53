package connlease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connlease"
)

// holders is who believes that they hold each lock.
type holders struct {
	mu  sync.Mutex
	all map[string]map[backend.LeaseID]backend.Mode
}

// enter adds a holder, and reports whether the others admit it.
func (h *holders) enter(req backend.AcquireRequest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ok := true
	for _, mode := range h.all[req.Name] {
		ok = ok && mode == backend.Shared && req.Mode == backend.Shared
	}
	if h.all[req.Name] == nil {
		h.all[req.Name] = make(map[backend.LeaseID]backend.Mode)
	}
	h.all[req.Name][req.Lease] = req.Mode
	return ok
}

func (h *holders) exit(req backend.AcquireRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all[req.Name], req.Lease)
}

// process is a client with a session, of which many callers use the same few locks.
type process struct {
	t      *testing.T
	b      *connlease.Leases
	id     backend.SessionID
	inside *holders
	exact  bool // no connection ends, so no client holds what another one has lost
}

// openProcess opens a client of the server, whose waiters poll after the pause.
func openProcess(t *testing.T, s *server, poll time.Duration, inside *holders, exact bool) *process {
	t.Helper()
	p := &process{t: t, id: backend.NewSessionID(), inside: inside, exact: exact, b: newLeases(t, s, poll)}
	if err := p.b.OpenSession(t.Context(), backend.SessionRequest{ID: p.id, TTL: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	return p
}

// acquire acquires a lock, now and then with two calls for the same lease, of which one waits in the queue and the other does
// not. It succeeds if one of them does.
func (p *process) acquire(ctx context.Context, req backend.AcquireRequest) error {
	call := func(req backend.AcquireRequest) error {
		_, err := p.b.Acquire(ctx, req)
		if req.Wait && errors.Is(err, backend.ErrHeld) {
			p.t.Error("a request that waits was refused")
		}
		return err
	}
	twice := make(chan error, 1)
	if rand.IntN(4) == 0 {
		again := req
		again.Wait = !req.Wait
		go func() {
			pause()
			twice <- call(again)
		}()
	} else {
		twice <- backend.ErrHeld
	}
	err := call(req)
	if <-twice == nil {
		return nil
	}
	return err
}

// turn acquires a lock somehow, and releases it. It reports whether the session still lives.
func (p *process) turn(locks int) bool {
	req := backend.AcquireRequest{
		Name: strconv.Itoa(rand.IntN(locks)), Lease: backend.NewLeaseID(), Session: p.id, Wait: rand.IntN(4) > 0, Mode: backend.Exclusive,
	}
	if rand.IntN(3) == 0 {
		req.Mode = backend.Shared
	}
	ctx := p.t.Context()
	if rand.IntN(4) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(20_000))*time.Microsecond)
		defer cancel()
	}
	err := p.acquire(ctx, req)
	give := backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: p.id, Abandon: err != nil}
	switch {
	case err == nil:
		admitted := p.inside.enter(req)
		pause()
		p.inside.exit(req)
		if !admitted && p.exact {
			p.t.Errorf("%s is held twice", req.Name)
		}
	case errors.Is(err, backend.ErrHeld), ctx.Err() != nil:
	case !errors.Is(err, backend.ErrSessionLost):
		p.t.Errorf("Acquire: %v", err)
	}
	if err := p.b.Release(p.t.Context(), give); err != nil && !p.isLost() {
		p.t.Errorf("Release: %v", err)
	}
	return !p.isLost()
}

func (p *process) isLost() bool {
	res, err := p.b.Renew(p.t.Context(), backend.RenewRequest{Session: p.id})
	if err != nil {
		p.t.Errorf("Renew: %v", err)
	}
	return res.SessionLost
}

// C1, C7, C8: callers of several processes acquire, try, give up and release the same few locks. No lock is
// held twice, nothing is left, and no caller is woken by the timer alone, which is set to an hour.
func TestRandomCallers(t *testing.T) {
	t.Parallel()
	const rounds, fewest, most = 60, 2, 6
	for round := range rounds {
		callers := fewest + round%(most-fewest) // few leave a lock free now and then
		synctest.Test(t, func(t *testing.T) {
			const processes, turns, locks = 3, 20, 2
			s, inside := newServer(), &holders{all: make(map[string]map[backend.LeaseID]backend.Mode)}
			begun := time.Now()
			var all sync.WaitGroup
			for range processes {
				p := openProcess(t, s, time.Hour, inside, true)
				for range callers {
					all.Go(func() {
						for range turns {
							p.turn(locks)
							pause()
						}
					})
				}
			}
			all.Wait()
			if took := time.Since(begun); took > time.Hour {
				t.Errorf("%s: a wake-up was lost", took)
			}
			for _, c := range s.conns {
				if len(c.locks) > 0 {
					t.Errorf("a connection still has %d locks", len(c.locks))
				}
			}
			if len(s.rows)+len(s.queue)+len(s.wrong) > 0 {
				t.Errorf("left: %d rows, %d places in the queue; wrong: %q", len(s.rows), len(s.queue), s.wrong)
			}
		})
	}
}

// C8, C10, C12: the same while connections end and locks are broken. Every call ends.
func TestRandomLosses(t *testing.T) {
	t.Parallel()
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			const processes, callers, losses, locks = 3, 4, 20, 2
			s, inside := newServer(), &holders{all: make(map[string]map[backend.LeaseID]backend.Mode)}
			stop := make(chan struct{})
			var all sync.WaitGroup
			for range processes {
				all.Go(func() {
					for !isOver(stop) {
						p := openProcess(t, s, time.Second, inside, false)
						var callersOf sync.WaitGroup
						for range callers {
							callersOf.Go(func() {
								for !isOver(stop) && p.turn(locks) {
									continue
								}
							})
						}
						callersOf.Wait()
						p.b.Close()
					}
				})
			}
			for range losses {
				time.Sleep(100 * time.Millisecond)
				s.killOne()
			}
			close(stop)
			all.Wait()
			if len(s.queue)+len(s.wrong)+len(s.conns) > 0 {
				t.Errorf("left: %d places in the queue, %d connections; wrong: %q", len(s.queue), len(s.conns), s.wrong)
			}
		})
	}
}

func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
