// Package simulate runs the real client for simulated hours against a store in memory, behind a network that delays,
// drops and swallows, in virtual time. It checks what users care about: no two holders consider the lock theirs at the
// same time, tokens grow, and nothing is left behind. The store is the reference, or an engine on tables or keys in memory.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/fence"
)

// referee records which clients consider themselves holders.
type referee struct {
	t        *testing.T
	turn     chan struct{} // in it while a goroutine uses what follows: in a bubble time passes for one that waits for it
	holders  map[string]map[*holdfast.Lock]bool
	last     map[string]fence.Token
	operator *holdfast.Client
	broken   map[holdfast.LeaseID]bool // their holders are told in time, and may consider the lock theirs until then
	grants   int
	calls    atomic.Int64 // of Acquire, Extend, Release and Break, and of the first and last of these for each of several locks
}

func (r *referee) enter(l *holdfast.Lock, limit int) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.grants++
	if r.broken[l.Lease().ID] || l.Err() != nil { // or it was lost while this waited for its turn
		return
	}
	if r.holders[l.Name()] == nil {
		r.holders[l.Name()] = make(map[*holdfast.Lock]bool)
	}
	for other := range r.holders[l.Name()] {
		if other.Err() == nil && (!other.IsShared() || !l.IsShared()) {
			r.t.Errorf("%s: token %d is held while token %d is", l.Name(), l.Token(), other.Token())
		}
	}
	r.holders[l.Name()][l] = true
	if n := len(r.holders[l.Name()]); l.IsShared() && limit > 0 && n > limit {
		r.t.Errorf("%s: %d hold it, the limit is %d", l.Name(), n, limit)
	}
	if !l.IsShared() {
		if l.Token() <= r.last[l.Name()] {
			r.t.Errorf("%s: token %d after %d", l.Name(), l.Token(), r.last[l.Name()])
		}
		r.last[l.Name()] = l.Token()
	}
}

func (r *referee) leave(l *holdfast.Lock) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	delete(r.holders[l.Name()], l)
}

// take makes the operator break a lock. Its requests meet no faults, so the broken leases are known.
func (r *referee) take(ctx context.Context, name string) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.calls.Add(1)
	result, err := r.operator.Break(ctx, name, "simulated")
	if err != nil && ctx.Err() == nil {
		r.t.Errorf("%s: break: %v", name, err)
	}
	for _, victim := range result.Broken {
		r.broken[victim.Lease] = true
	}
	maps.DeleteFunc(r.holders[name], func(l *holdfast.Lock, _ bool) bool { return r.broken[l.Lease().ID] })
}

// Suite runs every case of the conformance suite in a bubble of its own, where nothing is late. fresh returns what opens
// values of a new store.
func Suite(t *testing.T, ttl, slack time.Duration, fresh func() func() backend.Backend) {
	t.Helper()
	for _, c := range backendtest.Cases() {
		if c.Restarts {
			continue
		}
		t.Run(c.ID+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				open := fresh()
				r := c.Run(t.Context(), backendtest.Harness{Open: func(backendtest.T) backend.Backend { return open() }, TTL: ttl, Slack: slack})
				for _, s := range r.Failures {
					t.Error(s)
				}
			})
		})
	}
}

// Hours simulates four hours, one with -short, each with a seed and a store of its own.
func Hours(t *testing.T, fresh func(seed uint64) func() backend.Backend) {
	t.Helper()
	hours := uint64(4)
	if testing.Short() {
		hours = 1
	}
	for seed := range hours {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { Run(t, seed, time.Hour, 1, fresh(seed)) })
		})
	}
}

// Run simulates for that long, in a bubble of testing/synctest, and returns how many operations of locks there were,
// and how many of them were grants. open returns another value
// of one store; the first is that of the operator, who meets no faults. All times except those of the network
// are longer by pace. The same seed is similar, not the same: goroutines are not deterministic.
func Run(t *testing.T, seed uint64, length time.Duration, pace int, open func() backend.Backend) (int64, int64) {
	t.Helper()
	r := &referee{
		t: t, turn: make(chan struct{}, 1), holders: make(map[string]map[*holdfast.Lock]bool), last: make(map[string]fence.Token), broken: make(map[holdfast.LeaseID]bool),
	}
	opened := func() backend.Backend {
		b := open()
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	quiet := opened()
	var err error
	// Time enough for a row that is locked by a late commit.
	if r.operator, err = holdfast.New(quiet, holdfast.Config{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var players sync.WaitGroup
	var clients []*holdfast.Client
	var weathers []*weather
	for i := range uint64(4) {
		w := &weather{Backend: opened(), rand: rand.New(rand.NewPCG(seed, i)), pace: pace}
		c, err := holdfast.New(w, holdfast.Config{TTL: time.Duration(pace) * 10 * time.Second, Timeout: time.Duration(pace) * 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		clients, weathers = append(clients, c), append(weathers, w)
		for j := range uint64(3) {
			p := player{Client: c, referee: r, rand: rand.New(rand.NewPCG(seed, 100+10*i+j)), pace: pace}
			players.Go(func() { p.play(ctx) })
		}
	}
	players.Wait()
	for _, c := range append(clients, r.operator) {
		done, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		_ = c.Close(done)
		cancel()
	}
	for _, w := range weathers { // a client that is not closed continues to renew, and starts others
		w.late.Wait()
	}
	// C13: when all clients are gone and all leases have expired, nothing is left.
	Sleep(t.Context(), time.Duration(pace)*time.Minute)
	page, err := quiet.List(t.Context(), backend.ListRequest{})
	if err != nil || len(page.Locks) != 0 {
		t.Errorf("left behind: %+v, %v", page.Locks, err)
	}
	if r.grants < 1000/pace {
		t.Errorf("only %d grants: the simulation did not get anywhere", r.grants)
	}
	t.Logf("%s simulated, %d operations, %d grants", length, r.calls.Load(), r.grants)
	return r.calls.Load(), int64(r.grants)
}

// player is one client of the simulation: it acquires and releases locks in every possible way.
type player struct {
	*holdfast.Client
	referee *referee
	rand    *rand.Rand
	pace    int
}

// ms returns n milliseconds, or longer on a slow day.
func (p *player) ms(n int) time.Duration { return time.Duration(p.pace*n) * time.Millisecond }

// upTo returns a random time up to n milliseconds, on any day.
func (p *player) upTo(n int) time.Duration { return time.Duration(p.rand.IntN(n)) * time.Millisecond }

func (p *player) lock() string { return fmt.Sprintf("lock-%d", p.rand.IntN(3)) }

// play runs until ctx ends.
func (p *player) play(ctx context.Context) {
	for ctx.Err() == nil {
		switch p.rand.IntN(24) {
		case 0:
			name := p.lock()
			if p.rand.IntN(4) == 0 {
				name = "semaphore"
			}
			p.referee.take(ctx, name)
		case 1, 2:
			p.several(ctx)
		default:
			p.one(ctx)
		}
	}
}

// one acquires one lock, perhaps for longer or more than once, and releases it.
func (p *player) one(ctx context.Context) {
	name, limit := p.lock(), 0
	take := p.Acquire
	var opts []holdfast.Option
	switch p.rand.IntN(12) {
	case 0:
		opts = append(opts, holdfast.Shared())
	case 1:
		name, limit = "semaphore", 2
		opts = append(opts, holdfast.Limit(limit))
	case 2:
		opts = append(opts, holdfast.TTL(p.ms(5000)))
	case 3:
		opts = append(opts, holdfast.Wait(p.ms(p.rand.IntN(3000))))
	case 4:
		opts = append(opts, holdfast.NoRenew(), holdfast.TTL(p.ms(4000)))
	case 5:
		opts = append(opts, holdfast.AtLeast(p.ms(500)))
	case 6, 7:
		take = p.TryAcquire
	}
	patience, cancel := context.WithTimeout(ctx, p.ms(1000*(1+p.rand.IntN(30))))
	defer cancel()
	p.referee.calls.Add(1)
	lock, err := take(patience, name, opts...)
	if err != nil {
		p.refused(ctx, err)
		return
	}
	p.referee.enter(lock, limit)
	work := time.Duration(p.rand.ExpFloat64() * float64(p.ms(2000)))
	if Sleep(lock.Context(), work/2) {
		switch p.rand.IntN(4) {
		case 0, 1:
			p.extend(lock)
		case 2:
			if len(opts) == 0 {
				p.again(lock)
			}
		}
	}
	Sleep(lock.Context(), work/2)
	p.giveBack(ctx, lock, lock)
}

// several acquires locks of which other players acquire some, in whatever order they are named.
func (p *player) several(ctx context.Context) {
	names := []string{p.lock(), p.lock(), p.lock()}
	patience, cancel := context.WithTimeout(ctx, p.ms(1000*(1+p.rand.IntN(30))))
	defer cancel()
	p.referee.calls.Add(1)
	locks, err := p.AcquireAll(patience, names)
	if err != nil {
		p.refused(ctx, err)
		return
	}
	p.referee.calls.Add(int64(len(locks) - 1))
	for _, l := range locks {
		p.referee.enter(l, 0)
	}
	Sleep(locks.Context(), time.Duration(p.rand.ExpFloat64()*float64(p.ms(1000))))
	p.giveBack(ctx, locks, locks...)
}

func (p *player) refused(ctx context.Context, err error) {
	if errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, holdfast.ErrDeadlock) {
		p.referee.t.Error(err)
	}
	Sleep(ctx, p.ms(p.rand.IntN(1000)))
}

// extend makes the lease longer or shorter than before. After a failure it is as before, or lost.
func (p *player) extend(lock *holdfast.Lock) {
	ttl := p.ms(2000 + p.rand.IntN(20_000))
	extending, cancel := context.WithTimeout(lock.Context(), p.upTo(3000))
	defer cancel()
	p.referee.calls.Add(1)
	_ = lock.Extend(extending, ttl)
}

// again acquires a lock that the player holds, which needs no other client.
func (p *player) again(lock *holdfast.Lock) {
	p.referee.calls.Add(1)
	inner, err := p.Acquire(lock.Context(), lock.Name(), holdfast.Reentrant())
	if err != nil {
		if lock.Err() == nil {
			p.referee.t.Errorf("%s: token %d is held, and re-entry failed: %v", lock.Name(), lock.Token(), err)
		}
		return
	}
	if inner.Token() != lock.Token() {
		p.referee.t.Errorf("%s: token %d, and re-entry returned %d", lock.Name(), lock.Token(), inner.Token())
	}
	p.referee.calls.Add(1)
	if err := inner.Release(lock.Context()); err != nil && lock.Err() == nil {
		p.referee.t.Errorf("%s: token %d is held, and the release of a re-entry failed: %v", lock.Name(), lock.Token(), err)
	}
}

// giveBack stops considering the lock held before it releases, or when it was told of the loss.
func (p *player) giveBack(ctx context.Context, had interface{ Release(context.Context) error }, locks ...*holdfast.Lock) {
	for _, l := range locks {
		p.referee.calls.Add(1)
		p.referee.leave(l)
	}
	if p.rand.IntN(10) == 0 {
		_ = had.Release(ctx)
		return
	}
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.upTo(2000))
	defer cancel()
	_ = had.Release(done)
}
