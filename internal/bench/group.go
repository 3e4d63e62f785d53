package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// group is a number of goroutines that acquire and release locks until the time is up.
type group struct {
	goroutines int
	one        bool          // all want the same lock
	work       time.Duration // how long each keeps it
	cycles     int           // the minimum number of grants for each goroutine
	stretch    int           // how many times the budget it runs; 0: one
	sessions   int           // the number of sessions of one client, shared evenly; 0: one
}

// scene is the state that the goroutines of a group share.
type scene struct {
	group
	prefix  string
	begin   time.Time
	stopped atomic.Bool
	grants  atomic.Int64
	spots   []*spot
}

// spot is one lock.
type spot struct {
	Referee
	name     string
	released atomic.Int64 // when the release was called, since begin; 0: already used
}

// worker is one goroutine of a group.
type worker struct {
	*scene
	locker    Locker
	spot      *spot
	timer     *time.Timer
	waits     []time.Duration
	pairs     []time.Duration
	handOvers []time.Duration
}

// run opens the clients, runs the group, and closes the clients.
func (c group) run(ctx context.Context, t *Trial) (Figures, error) {
	s := &scene{group: c, prefix: t.Prefix}
	locker, closeLocker, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	lockers := []Locker{locker}
	if c.sessions > 0 {
		lockers, err = join(locker, c.sessions)
	}
	var f Figures
	if err == nil {
		f, err = s.measure(ctx, t, s.workers(lockers))
	}
	if c.sessions > 0 {
		for _, l := range lockers {
			err = errors.Join(err, closing(ctx, l)())
		}
	}
	return f, errors.Join(err, closeLocker())
}

// join returns n clients on the connections of one.
func join(l Locker, n int) ([]Locker, error) {
	from, ok := l.(SessionLocker)
	if !ok {
		return nil, errors.New("a contender that can join is no SessionLocker")
	}
	var all []Locker
	for range n {
		s, err := from.Session()
		if err != nil {
			return all, fmt.Errorf("a session: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// measure warms the clients up, and runs the group.
func (s *scene) measure(ctx context.Context, t *Trial, workers []*worker) (Figures, error) {
	if err := s.warm(ctx, workers); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	runtime.GC()
	if !t.Metered {
		return s.timed(ctx, t, workers)
	}
	stop, err := t.Engine.Meter(ctx)
	if err != nil {
		return nil, fmt.Errorf("meter: %w", err)
	}
	_, err = s.stampede(ctx, workers, t.Budget)
	requests, meterErr := stop()
	if err := errors.Join(err, meterErr); err != nil {
		return nil, err
	}
	return Figures{RequestsPerPair: float64(requests) / float64(max(1, s.grants.Load()))}, nil
}

// timed runs the group, and measures times and the CPU time of both sides.
func (s *scene) timed(ctx context.Context, t *Trial, workers []*worker) (Figures, error) {
	spent, served := cpuTime(), t.Engine.cpu()
	elapsed, err := s.stampede(ctx, workers, t.Budget*time.Duration(max(1, s.stretch)))
	f := s.figures(workers, elapsed)
	grants := float64(max(1, s.grants.Load()))
	if spent >= 0 {
		f[ClientCPUPerPair] = (cpuTime() - spent).Seconds() / grants
	}
	if t.Engine.CPU != nil {
		f[ServerCPUPerPair] = (t.Engine.cpu() - served).Seconds() / grants
	}
	return f, err
}

func (s *scene) workers(lockers []Locker) []*worker {
	workers := make([]*worker, s.goroutines)
	for i := range workers {
		if i == 0 || !s.one {
			s.spots = append(s.spots, &spot{name: s.prefix + "lock/" + strconv.Itoa(i)})
		}
		w := &worker{scene: s, locker: lockers[i%len(lockers)], spot: s.spots[len(s.spots)-1]}
		w.timer = time.NewTimer(time.Hour)
		w.timer.Stop()
		workers[i] = w
	}
	return workers
}

// warm opens what a contender opens lazily: each goroutine acquires a lock of its own once.
func (s *scene) warm(ctx context.Context, workers []*worker) error {
	return s.each(ctx, workers, func(ctx context.Context, i int, w *worker) error {
		return pairOnce(ctx, w.locker, s.prefix+"warm/"+strconv.Itoa(i))
	}, func(context.Context) {})
}

// stampede runs all workers until the time is up, and returns the elapsed time.
func (s *scene) stampede(ctx context.Context, workers []*worker, budget time.Duration) (time.Duration, error) {
	var elapsed time.Duration
	s.begin = time.Now()
	err := s.each(ctx, workers, func(ctx context.Context, _ int, w *worker) error { return w.loop(ctx) }, func(failed context.Context) {
		s.pass(failed, budget)
		s.stopped.Store(true)
		elapsed = time.Since(s.begin)
	})
	return elapsed, err
}

// pass waits until the time is up, and some time longer until every goroutine can have had a turn.
func (s *scene) pass(ctx context.Context, budget time.Duration) {
	const patience = 8
	wanted := int64(s.cycles * s.goroutines)
	tick := time.NewTicker(max(budget/100, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		spent, grants := time.Since(s.begin), s.grants.Load()
		over := spent >= max(budget, patience*budget/time.Duration(max(1, s.stretch))) || spent >= budget && grants >= wanted
		if over && (grants > 0 || spent >= stopTimeout) { // without a grant there is nothing to report, however busy the machine is
			return
		}
	}
}

// each runs f for all workers concurrently. The context of f ends with the first error, and after
// wait if wait stopped the scene.
func (s *scene) each(ctx context.Context, workers []*worker, f func(ctx context.Context, i int, w *worker) error, wait func(failed context.Context)) error {
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	waiting, stop := context.WithCancel(failed)
	defer stop()
	var all sync.WaitGroup
	for i, w := range workers {
		all.Go(func() {
			if err := f(waiting, i, w); err != nil {
				fail(err)
			}
		})
	}
	wait(failed)
	if s.stopped.Load() {
		stop()
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	late := time.NewTimer(stopTimeout)
	defer late.Stop()
	select {
	case <-done:
		if failed.Err() != nil {
			return context.Cause(failed)
		}
		return nil
	case <-late.C:
		return fmt.Errorf("not all of %d calls returned within %s of their end", len(workers), stopTimeout)
	}
}

func (w *worker) loop(ctx context.Context) error {
	for !w.stopped.Load() {
		if err := w.pair(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pair acquires and releases the lock once.
func (w *worker) pair(ctx context.Context) error {
	asked := time.Now()
	held, err := w.locker.Lock(ctx, w.spot.name)
	got := time.Now()
	if err != nil {
		if w.stopped.Load() && ctx.Err() != nil {
			w.waits = append(w.waits, got.Sub(asked)) // a lower bound: it would have waited longer
			return nil                                //nolint:nilerr // the time is up
		}
		return err
	}
	w.spot.Enter(held.Token)
	over := time.Duration(-1)
	if w.one {
		if released := w.spot.released.Swap(0); released != 0 {
			over = got.Sub(w.begin) - time.Duration(released)
		}
	}
	w.toil(ctx)
	w.spot.Leave()
	gave := time.Now()
	if w.one {
		w.spot.released.Store(int64(gave.Sub(w.begin)))
	}
	// The lock is released even if the time is up.
	if err := held.Unlock(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	w.grants.Add(1)
	if w.stopped.Load() {
		return nil
	}
	wait := got.Sub(asked)
	w.waits = append(w.waits, wait)
	w.pairs = append(w.pairs, wait+time.Since(gave))
	if over >= 0 {
		w.handOvers = append(w.handOvers, over)
	}
	return nil
}

// toil is the work under the lock.
func (w *worker) toil(ctx context.Context) {
	if w.work == 0 {
		return
	}
	w.timer.Reset(w.work)
	select {
	case <-w.timer.C:
	case <-ctx.Done():
		w.timer.Stop()
	}
}

// figures summarises the samples of the workers.
func (s *scene) figures(workers []*worker, elapsed time.Duration) Figures {
	var waits, pairs, handOvers []time.Duration
	shares := make([]float64, len(workers))
	each := make([][]time.Duration, len(workers))
	for i, w := range workers {
		waits, pairs, handOvers = append(waits, w.waits...), append(pairs, w.pairs...), append(handOvers, w.handOvers...)
		shares[i], each[i] = float64(len(w.pairs)), w.waits
	}
	f := Figures{PairsPerSecond: float64(len(pairs)) / elapsed.Seconds(), Grants: float64(s.grants.Load())}
	for _, spot := range s.spots {
		f[DoubleHolds] += float64(spot.Doubles())
		f[TokenFaults] += float64(spot.TokenFaults())
	}
	f.times(pairs, PairP50, PairP99)
	f.times(waits, WaitP50, WaitP99)
	if len(waits) > 0 {
		f[WaitMax] = slices.Max(waits).Seconds()
	}
	if !s.one {
		return f
	}
	f[WaitP50], f[WaitP99] = EvenPercentile(each, 0.5).Seconds(), EvenPercentile(each, 0.99).Seconds()
	f[Fairness] = Jain(shares)
	f.times(handOvers, HandOverP50, HandOverP99)
	if len(pairs) > 0 {
		f[WaitP99Share] = f[WaitP99] / (elapsed.Seconds() / float64(len(pairs)) * float64(s.goroutines))
	}
	return f
}

// times records the percentiles of the samples.
func (f Figures) times(samples []time.Duration, p50, p99 Metric) {
	if len(samples) == 0 {
		return
	}
	f[p50] = Percentile(samples, 0.5).Seconds()
	f[p99] = Percentile(samples, 0.99).Seconds()
}
