package holdfast_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/fence"
)

// The real client, for simulated hours, against the reference backend behind a network that delays,
// drops and swallows. The test checks what users care about: no two holders consider the lock
// theirs at the same time, and tokens grow.

// weather is a network with a fault for about every seventh request, and occasionally a storm in
// which nothing gets through.
type weather struct {
	backend.Backend
	mu    sync.Mutex
	rand  *rand.Rand
	storm time.Time // until when
	pace  int
	late  sync.WaitGroup
}

// lateMost is the maximum delay of a request whose connection broke.
const lateMost = 5 * time.Second

func (w *weather) draw() (int, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rand.IntN(300) == 0 {
		w.storm = time.Now().Add(time.Duration(w.pace*w.rand.IntN(30_000)) * time.Millisecond)
	}
	if time.Now().Before(w.storm) {
		return 1, 0
	}
	fate := w.rand.IntN(30)
	if fate > 5 && w.rand.IntN(4) > 0 {
		return fate, 0 // the machines are neighbours: most requests take no time to speak of
	}
	return fate, time.Duration(w.rand.ExpFloat64() * float64(2*time.Millisecond))
}

// pass carries one request and its answer.
func pass[T any](ctx context.Context, w *weather, call func(context.Context) (T, error)) (T, error) {
	var none T
	fate, delay := w.draw()
	if fate == 0 { // late both ways
		delay += time.Duration(delay.Nanoseconds()%3000) * time.Millisecond
	}
	if !sleep(ctx, delay) {
		return none, context.Cause(ctx)
	}
	switch fate {
	case 1: // the request is lost without an error
		<-ctx.Done()
		return none, unavailable(true)
	case 2: // refused
		return none, unavailable(false)
	case 3: // the answer is lost without an error
		_, _ = call(ctx)
		<-ctx.Done()
		return none, unavailable(true)
	case 4: // the connection breaks after the request went through
		_, _ = call(ctx)
		return none, unavailable(true)
	case 5: // the connection breaks, and the request arrives later than those after it
		w.late.Go(func() {
			ghost, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateMost)
			defer cancel()
			if sleep(ghost, lateMost*time.Duration(1+delay.Nanoseconds()%10)/20) {
				_, _ = call(ghost)
			}
		})
		return none, unavailable(true)
	}
	answer, err := call(ctx)
	if !sleep(ctx, delay) {
		return none, context.Cause(ctx)
	}
	return answer, err
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

type nothing struct{}

func (w *weather) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	_, err := pass(ctx, w, func(ctx context.Context) (nothing, error) { return nothing{}, w.Backend.OpenSession(ctx, r) })
	return err
}

func (w *weather) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	// An attempt is bounded, as a backend over a network bounds its requests.
	bound, cancel := context.WithTimeout(ctx, time.Duration(w.pace)*20*time.Second)
	defer cancel()
	g, err := pass(bound, w, func(ctx context.Context) (backend.Grant, error) { return w.Backend.Acquire(ctx, r) })
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		err = unavailable(true)
	}
	return g, err
}

func (w *weather) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	return pass(ctx, w, func(ctx context.Context) (backend.RenewResult, error) { return w.Backend.Renew(ctx, r) })
}

func (w *weather) Release(ctx context.Context, r backend.ReleaseRequest) error {
	_, err := pass(ctx, w, func(ctx context.Context) (nothing, error) { return nothing{}, w.Backend.Release(ctx, r) })
	return err
}

// referee records which clients consider themselves holders.
type referee struct {
	t       *testing.T
	mu      sync.Mutex
	holders map[string]map[*holdfast.Lock]bool
	last    map[string]fence.Token
	broken  map[holdfast.LeaseID]bool // their holders are told in time, and may consider the lock theirs until then
	grants  int
	calls   atomic.Int64 // of Acquire, Extend, Release and Break, and of the first and last of these for each of several locks
}

func (r *referee) enter(l *holdfast.Lock, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants++
	if r.broken[l.Lease().ID] {
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
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.holders[l.Name()], l)
}

// take makes an operator break a lock. The operator's requests meet no faults, so the broken leases
// are known.
func (r *referee) take(ctx context.Context, c *holdfast.Client, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Add(1)
	result, err := c.Break(ctx, name, "simulated")
	if err != nil && ctx.Err() == nil {
		r.t.Errorf("%s: break: %v", name, err)
	}
	for _, victim := range result.Broken {
		r.broken[victim.Lease] = true
	}
	maps.DeleteFunc(r.holders[name], func(l *holdfast.Lock, _ bool) bool { return r.broken[l.Lease().ID] })
}

// TestSimulation simulates four hours, one with -short. HOLDFAST_SIMULATE is how long to continue, by the wall
// clock, with another seed for each day, beginning with SEED: see make simulate.
func TestSimulation(t *testing.T) {
	t.Parallel()
	hours := uint64(4)
	if testing.Short() {
		hours = 1
	}
	for seed := range hours {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { simulate(t, seed, time.Hour, 1) })
		})
	}
	if long, err := time.ParseDuration(os.Getenv("HOLDFAST_SIMULATE")); err == nil {
		t.Run("long", func(t *testing.T) { simulateFor(t, long) })
	}
}

// simulateFor simulates day after day on all processors, and reports how many.
func simulateFor(t *testing.T, long time.Duration) {
	t.Helper()
	const piece = 24 * time.Hour
	first, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Little memory is alive, and collecting it is cheap: a heap about as large as the processor's
	// cache is a third faster than one that is rarely collected.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(runtime.GOMAXPROCS(0)) * 64 << 20))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	begun := time.Now()
	var next, days, calls, grants atomic.Int64
	var work sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			for time.Since(begun) < long && !t.Failed() {
				seed := first + uint64(next.Add(1)) - 1
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c, g := simulate(t, seed, piece, paceOf(seed))
						calls.Add(c)
						grants.Add(g)
						days.Add(1)
					})
				})
			}
		})
	}
	work.Wait()
	took := time.Since(begun)
	const year = 365.25
	years := float64(days.Load()) / year
	t.Logf("%.2f simulated years in %s on %d processors, seeds from %d: %d lock operations, %d grants, %.0f times as fast as time, %.0f operations a second",
		years, took.Round(time.Second), runtime.GOMAXPROCS(0), first, calls.Load(), grants.Load(),
		float64(days.Load())*float64(piece)/float64(took), float64(calls.Load())/took.Seconds())
}

// paceOf returns how slow a day is. On most days leases have four minutes and are held for one.
// Every twenty-fourth day is as crowded as possible, with leases of 10 s. About half of the
// operations are of each kind.
func paceOf(seed uint64) int {
	const slow = 24
	if seed%slow == 0 {
		return 1
	}
	return slow
}

// simulate returns how many operations of locks there were, and how many of them were grants. All
// times except those of the network are longer by pace.
func simulate(t *testing.T, seed uint64, length time.Duration, pace int) (int64, int64) {
	t.Helper()
	store := memlock.NewStore()
	r := &referee{
		t: t, holders: make(map[string]map[*holdfast.Lock]bool), last: make(map[string]fence.Token), broken: make(map[holdfast.LeaseID]bool),
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var players sync.WaitGroup
	var clients []*holdfast.Client
	var weathers []*weather
	for i := range uint64(4) {
		w := &weather{Backend: openStore(t, store), rand: rand.New(rand.NewPCG(seed, i)), pace: pace}
		c, err := holdfast.New(w, holdfast.Config{TTL: time.Duration(pace) * 10 * time.Second, Timeout: time.Duration(pace) * 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		c.SetAsleep(nil)
		clients, weathers = append(clients, c), append(weathers, w)
		for j := range uint64(3) {
			p := player{Client: c, referee: r, rand: rand.New(rand.NewPCG(seed, 100+10*i+j)), pace: pace}
			players.Go(func() { p.play(ctx) })
		}
	}
	players.Wait()
	for _, c := range clients {
		done, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		_ = c.Close(done)
		cancel()
	}
	for _, w := range weathers { // a client that is not closed continues to renew, and starts others
		w.late.Wait()
	}
	// C13: when all clients are gone and all leases have expired, nothing is left.
	time.Sleep(time.Duration(pace) * time.Minute)
	b := openStore(t, store)
	page, err := b.List(t.Context(), backend.ListRequest{})
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
			p.referee.take(ctx, p.Client, name)
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
	if sleep(lock.Context(), work/2) {
		switch p.rand.IntN(4) {
		case 0, 1:
			p.extend(lock)
		case 2:
			if len(opts) == 0 {
				p.again(lock)
			}
		}
	}
	sleep(lock.Context(), work/2)
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
	sleep(locks.Context(), time.Duration(p.rand.ExpFloat64()*float64(p.ms(1000))))
	p.giveBack(ctx, locks, locks...)
}

func (p *player) refused(ctx context.Context, err error) {
	if errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, holdfast.ErrDeadlock) {
		p.referee.t.Error(err)
	}
	sleep(ctx, p.ms(p.rand.IntN(1000)))
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
