// A race of this test was mended, and the detector has not been run on all of it since.

//go:build !race

package sqllease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// The engine on tables in memory, in virtual time: the suite, and the simulation with a network between the engine and
// its tables that loses, delays and repeats.

// value is a backend on tables.
type value struct {
	*sqllease.Leases

	hears bool
}

// capabilities are those of the tables, which keep no events.
func capabilities(hears bool) backend.Capabilities {
	caps := sqllease.Capabilities("tables", hears)
	caps.Watch = false
	return caps
}

func (v value) Capabilities() backend.Capabilities { return capabilities(v.hears) }

func (v value) Close() error {
	v.Leases.Close()
	return nil
}

// open returns a value on the tables, which hears of grants and losses if hears is set. Faults come from rand; nil: there
// are none.
func (d *tables) open(faults *rand.Rand, hears bool) value {
	d.mu.Lock()
	defer d.mu.Unlock()
	addr := ""
	if hears {
		addr = fmt.Sprintf("value-%d", len(d.values))
	}
	b := sqllease.New(sqllease.Config{
		Store: &server{tables: d, rand: faults}, Caps: capabilities(hears), Addr: addr, Quick: 8,
		Rest: sqllease.Rest{Least: 50 * time.Millisecond, Longest: time.Second}, Conns: 4,
	})
	if hears {
		d.values[addr] = b
		b.Hearing(true)
	}
	return value{b, hears}
}

var (
	errRefused     = errors.New("the server refused")
	errUnsent      = errors.New("the request did not leave")
	errEnds        = errors.New("the server ends the connection")
	errCut         = errors.New("the connection was cut")
	errLockTimeout = errors.New("another client has the row")
)

// server is the way of one value to the tables. It implements sqllease.Store.
type server struct {
	*tables

	dice    sync.Mutex // guards rand
	rand    *rand.Rand // nil: the way has no faults
	commits chan fate  // of the next commits; nil: as rand has it
}

// fate is what happens to a request.
type fate struct {
	delay time.Duration
	err   error // nil: it is answered
	done  bool  // it is executed before err is returned
	late  bool  // it is executed afterwards
}

func (s *server) draw() fate {
	if s.rand == nil {
		return fate{}
	}
	s.dice.Lock()
	defer s.dice.Unlock()
	f := fate{delay: time.Duration(s.rand.ExpFloat64() * float64(time.Millisecond))}
	switch s.rand.IntN(60) {
	case 0:
		f.delay += time.Duration(s.rand.IntN(3000)) * time.Millisecond
	case 1:
		f.err = errUnsent
	case 2:
		f.err = errRefused
	case 3:
		f.err, f.done = errCut, true
	case 4:
		f.err, f.late = errCut, true
	case 5:
		f.err, f.done = errEnds, s.rand.IntN(2) == 0
	}
	return f
}

// pass carries a request and its answer. It reports whether the request was executed, or will be.
func (s *server) pass(ctx context.Context, f fate, do func(context.Context) error) (bool, error) {
	if !sleep(ctx, f.delay) {
		return false, errCut
	}
	switch {
	case f.late:
		go func() {
			late := context.WithoutCancel(ctx)
			sleep(late, min(1000*f.delay, time.Second))
			_ = do(late)
		}()
	case f.err == nil, f.done:
		if err := do(ctx); err != nil {
			return true, err
		}
		if !sleep(ctx, f.delay) {
			return true, errCut
		}
	}
	return f.late || f.done, f.err
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// ask carries a request and its answer. The answer to a request that is late goes nowhere; only one that writes is late.
func ask[T any](ctx context.Context, s *server, writes bool, do func(context.Context) (T, error)) (T, error) {
	answer := make(chan T, 1)
	f := s.draw()
	f.late = f.late && writes
	if _, err := s.pass(ctx, f, func(ctx context.Context) error {
		x, err := do(ctx)
		answer <- x
		return err
	}); err != nil {
		var none T
		return none, err
	}
	return <-answer, nil
}

func (s *server) Begin(ctx context.Context, scope *sqllease.Scope) (sqllease.Tx, *sqllease.View, error) {
	t := &transaction{server: s, scope: scope}
	v, err := ask(ctx, s, false, func(ctx context.Context) (*sqllease.View, error) { return s.begin(ctx, t) })
	if err != nil {
		t.held.unlock()
		return nil, nil, err
	}
	return t, v, nil
}

func (t *transaction) Again(ctx context.Context, sessions []backend.SessionID, leases []sqllease.Key) (*sqllease.View, error) {
	return t.server.again(ctx, t, sessions, leases)
}

// Commit keeps the rows from others until a commit that is late has arrived.
func (t *transaction) Commit(ctx context.Context, c *sqllease.Changes) (bool, error) {
	rows := t.held
	t.held.rows = nil
	f := t.server.draw()
	select {
	case f = <-t.server.commits:
	default:
	}
	going, err := t.server.pass(ctx, f, func(context.Context) error {
		sent := t.server.commit(t, c)
		rows.unlock()
		t.server.notify(sent)
		return nil
	})
	if err != nil && !going {
		rows.unlock()
	}
	return errors.Is(err, errRefused) || errors.Is(err, errUnsent), err
}

func (t *transaction) End(context.Context) { t.held.unlock() }

// notify delivers the notifications of a commit. Where one is lost, its receiver finds that its connection has ended.
func (s *server) notify(sent []sqllease.Notification) {
	for _, n := range sent {
		s.mu.Lock()
		b := s.values[n.Addr]
		s.mu.Unlock()
		if b == nil {
			continue
		}
		if s.draw().err == nil {
			b.Read(n.Payload)
			continue
		}
		b.Hearing(false)
		time.AfterFunc(time.Second, func() { b.Hearing(true) })
	}
}

func (*server) Migrate(context.Context) error { return nil }

func (s *server) Read(ctx context.Context, scope *sqllease.Scope) (*sqllease.View, error) {
	return ask(ctx, s, false, func(context.Context) (*sqllease.View, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.read(scope), nil
	})
}

func (s *server) Quick(ctx context.Context, q *sqllease.Quick) error {
	sent := *q // a late request outlives the call
	x, err := ask(ctx, s, true, func(ctx context.Context) (sqllease.Quick, error) {
		x := sent
		err := s.quick(ctx, &x)
		return x, err
	})
	if err == nil {
		*q = x
	}
	return err
}

func (s *server) OpenSession(ctx context.Context, id backend.SessionID, ttl time.Duration, addr string) (bool, error) {
	return ask(ctx, s, true, func(ctx context.Context) (bool, error) { return s.openSession(ctx, id, ttl, addr) })
}

func (s *server) Renew(ctx context.Context, r *sqllease.Renewals) error {
	sent := *r // as above
	x, err := ask(ctx, s, true, func(ctx context.Context) (sqllease.Renewals, error) {
		x := sent
		x.Renewed = make(map[sqllease.Key]sqllease.Renewed)
		err := s.renew(ctx, &x)
		return x, err
	})
	if err == nil {
		*r = x
	}
	return err
}

func (s *server) LocksOf(ctx context.Context, id backend.SessionID) ([]string, error) {
	return ask(ctx, s, false, func(context.Context) ([]string, error) { return s.locksOf(id), nil })
}

func (s *server) Names(ctx context.Context, req backend.ListRequest) ([]string, error) {
	return ask(ctx, s, false, func(context.Context) ([]string, error) { return s.names(req), nil })
}

func (s *server) Dead(ctx context.Context, age time.Duration) ([]string, error) {
	return ask(ctx, s, false, func(context.Context) ([]string, error) { return s.dead(age), nil })
}

func (s *server) Sweep(ctx context.Context, _ string, age time.Duration) (*sqllease.Swept, error) {
	return ask(ctx, s, true, func(context.Context) (*sqllease.Swept, error) { return s.sweep(age), nil })
}

func (s *server) Sync(ctx context.Context) error {
	_, err := ask(ctx, s, true, func(context.Context) (bool, error) { return true, nil })
	return err
}

func (*server) Reset() {}

func (*server) Fault(err error) sqllease.Fault {
	return sqllease.Fault{
		Answered: errors.Is(err, errRefused) || errors.Is(err, errLockTimeout), Unsent: errors.Is(err, errUnsent), Ended: errors.Is(err, errEnds),
		Transient: errors.Is(err, errRefused), Locked: errors.Is(err, errLockTimeout), Broken: errors.Is(err, errCut) || errors.Is(err, errEnds),
	}
}

func (*server) Unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: "tables", Op: op, MayHold: mayHold, Err: err}
}

// TestConformance runs every case of the suite in a bubble of its own.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, c := range backendtest.Cases() {
		if c.Restarts {
			continue
		}
		t.Run(c.ID+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTables()
				r := c.Run(t.Context(), backendtest.Harness{
					Open: func(backendtest.T) backend.Backend { return d.open(nil, true) },
					TTL:  20 * time.Second, Slack: time.Second,
				})
				for _, s := range r.Failures {
					t.Error(s)
				}
			})
		})
	}
}

// TestSimulation simulates hours with the client, with faults on both sides of the engine.
func TestSimulation(t *testing.T) {
	t.Parallel()
	hours := uint64(4)
	if testing.Short() {
		hours = 1
	}
	for seed := range hours {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d, opened := newTables(), uint64(0)
				d.early = seed%2 == 1
				simulate.Run(t, seed, time.Hour, 1, func() backend.Backend {
					opened++
					if opened == 1 {
						return d.open(nil, true)
					}
					return d.open(rand.New(rand.NewPCG(seed, opened)), opened%3 > 0)
				})
			})
		})
	}
}
