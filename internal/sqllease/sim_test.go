package sqllease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// The engine on tables in memory, in virtual time: the suite, and the simulation with a network between the engine and
// its tables that loses, delays and repeats.

// value is a backend on tables.
type value struct {
	*sqllease.Leases

	hears bool
	via   *server
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
	s := &server{tables: d, addr: addr, net: simulate.NewNetwork(faults), commits: make(chan simulate.Fate, 1), late: make(chan time.Duration, 1)}
	b := sqllease.New(sqllease.Config{
		Store: s, Caps: capabilities(hears), Addr: addr, Quick: 8,
		Rest: retry.Rest{Least: 50 * time.Millisecond, Longest: time.Second}, Conns: 4,
	})
	if hears {
		d.values[addr] = b
		b.Hearing(true)
	}
	return value{b, hears, s}
}

var errLockTimeout = errors.New("another client has the row")

// server is the way of one value to the tables. It implements sqllease.Store.
type server struct {
	*tables

	addr    string
	net     *simulate.Network
	commits chan simulate.Fate // of the next commits; otherwise as the network has it
	late    chan time.Duration // of the next transactions, before the rows are locked
	asked   atomic.Int64       // how many requests it has sent
	durable atomic.Int64       // how many of them make certain that what was read before survives a crash
}

// ask carries a request to the tables, and its answer.
func ask[T any](ctx context.Context, s *server, writes bool, do func(context.Context) (T, error)) (T, error) {
	s.asked.Add(1)
	return simulate.Ask(ctx, s.net, writes, do)
}

// deaf keeps notifications from a value, or has them arrive again.
func (d *tables) deaf(v value, deaf bool) {
	d.mu.Lock()
	if d.values[v.via.addr] = v.Leases; deaf {
		delete(d.values, v.via.addr)
	}
	d.mu.Unlock()
	v.Hearing(!deaf)
}

func (s *server) Begin(ctx context.Context, scope *sqllease.Scope) (sqllease.Tx, *sqllease.View, error) {
	t := &transaction{server: s, scope: scope}
	s.sleep()
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
	t.server.asked.Add(1)
	t.server.durable.Add(1)
	rows := t.held
	t.held.rows = nil
	f := t.server.net.Draw()
	select {
	case f = <-t.server.commits:
	default:
	}
	going, err := f.Pass(ctx, func(context.Context) error {
		sent := t.server.commit(t, c)
		rows.unlock()
		t.server.notify(sent)
		return nil
	})
	if err != nil && !going {
		rows.unlock()
	}
	return errors.Is(err, simulate.ErrRefused) || errors.Is(err, simulate.ErrUnsent), err
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
		if s.net.Draw().Err == nil {
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

// sleep keeps a transaction from beginning.
func (s *server) sleep() {
	select {
	case late := <-s.late:
		time.Sleep(late)
	default:
	}
}

func (s *server) Quick(ctx context.Context, q *sqllease.Quick) error {
	s.sleep()
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
	s.durable.Add(1)
	_, err := ask(ctx, s, true, func(context.Context) (bool, error) { return true, nil })
	return err
}

func (*server) Reset() {}

func (*server) Fault(err error) sqllease.Fault {
	return sqllease.Fault{
		Answered: errors.Is(err, simulate.ErrRefused) || errors.Is(err, errLockTimeout), Unsent: errors.Is(err, simulate.ErrUnsent), Ended: errors.Is(err, simulate.ErrEnds),
		Transient: errors.Is(err, simulate.ErrRefused), Locked: errors.Is(err, errLockTimeout), Broken: errors.Is(err, simulate.ErrCut) || errors.Is(err, simulate.ErrEnds),
	}
}

func (*server) Unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: "tables", Op: op, MayHold: mayHold, Err: err}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	simulate.Suite(t, 20*time.Second, time.Second, func() func() backend.Backend {
		d := newTables()
		return func() backend.Backend { return d.open(nil, true) }
	})
}

// TestSimulation simulates hours with the client, with faults on both sides of the engine.
func TestSimulation(t *testing.T) {
	t.Parallel()
	simulate.Hours(t, func(seed uint64) func() backend.Backend {
		d, opened := newTables(), uint64(0)
		d.early = seed%2 == 1
		return func() backend.Backend {
			opened++
			if opened == 1 {
				return d.open(nil, true)
			}
			return d.open(rand.New(rand.NewPCG(seed, opened)), opened%3 > 0)
		}
	})
}
