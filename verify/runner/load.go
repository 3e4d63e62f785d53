package runner

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// load is the background load: it makes a run dense, beside the tasks that do a little of everything. It has tasks that
// hold a lock for a moment, many for each lock, and tasks that hold one for about as long as a
// lease lives. The former find a fault of one grant in thousands that lets two clients in at
// the same time, and the latter such a fault about the end of a lease.
type load struct {
	Brief      int     // tasks per worker that hold locks for a moment
	BriefLocks int     // for all workers
	Long       int     // tasks per worker that hold locks for about the TTL
	LongLocks  int     // for all workers
	DyingLocks int     // locks that each dying client takes
	Rate       int     // acquires per second of a worker, at most
	First      float64 // the same, at the start
	// Spared: the worker has no faults. Half of its brief locks are used only by such workers,
	// so that no worker with a fault is in their way: many more calls, and no excuses.
	Spared bool
}

// The names of the load's locks change with the time, in the same way for all workers: the
// referee judges a lock by itself, and drops it when it is not used any more.
const (
	loadNames   = "/crowd/"
	briefPeriod = int64(3 * time.Second)
	longPeriod  = int64(8 * time.Second)
)

// startLoad starts the load of a worker.
func (w *worker) startLoad(ctx context.Context, work *sync.WaitGroup) {
	const streams = uint64(1) << 32 // of random numbers, apart from those of the other tasks
	begin := func(n int, f func(*task, context.Context)) {
		for range n {
			t := &task{worker: w, r: rand.New(rand.NewPCG(w.Seed, w.loadTasks.Add(1)+streams))}
			work.Go(func() {
				for w.pace.wait(ctx) {
					f(t, ctx)
				}
			})
		}
	}
	begin(w.Load.Brief, (*task).holdBriefly)
	begin(w.Load.Long, (*task).holdLong)
	work.Go(func() { w.runDyingClients(ctx) })
}

// briefSlot returns the kind of a lock of the load, and its name: two mutexes whose names
// differ in case only, readers and writers, a semaphore, and so on. The first locks are always
// held and waited for, the last ones are free now and then.
func (t *task) briefSlot() (slot, string) {
	const kinds = 5
	x := t.r.Float64()
	i := int(x * x * float64(t.Load.BriefLocks))
	s := slot{name: "brief"}
	switch i % kinds {
	case 1, 4:
		s.name, s.shared = "rw", true
	case 2:
		s.name, s.shared, s.limit = "permits", true, 3
	case 3:
		s.name = "Brief"
	}
	group := ""
	if t.Load.Spared && t.chance(75) {
		group = "spared-"
	}
	return s, fmt.Sprintf("%s%s%s%s-%d.%d", t.Prefix, loadNames, group, s.name, i/kinds, now()/briefPeriod)
}

// holdBriefly holds a contended lock for a moment.
func (t *task) holdBriefly(ctx context.Context) {
	s, name := t.briefSlot()
	call := history.Event{Kind: history.KindCall, Verb: history.VerbAcquire, Lock: name}
	opts := t.mode(s, &call)
	patience := t.Patience
	switch k := t.r.IntN(100); {
	case k < 15:
		call.Verb = history.VerbTry
	case k < 30:
		patience = t.upTo(4 * time.Millisecond) // gives up
	case k < 60:
		patience = t.upTo(t.TTL) // so that a lock that a fault keeps does not block all tasks
	}
	g := t.contend(ctx, patience, s, call, opts)
	if g == nil {
		return
	}
	if k := t.r.IntN(100); k >= 20 {
		d := t.upTo(2 * time.Millisecond)
		if k >= 80 {
			d *= 4
		}
		retry.Pause(ctx, d)
	}
	g.checkHeld()
	g.endBriefly()
}

// endBriefly releases the lock, and sometimes releases it once more, past the client, which
// must not harm a successor.
func (g *heldLock) endBriefly() {
	t := g.t
	session := t.past.forget(g.lock.Lease().ID)
	if g.lock.Err() != nil {
		g.gone()
		return
	}
	if !g.release(t.TTL) || !t.chance(40) {
		return
	}
	if t.chance(50) {
		retry.Pause(context.Background(), t.upTo(500*time.Microsecond))
	}
	g.staleRelease(session)
}

func (t *task) longName() string {
	return fmt.Sprintf("%s%slong-%d.%d", t.Prefix, loadNames, t.r.IntN(t.Load.LongLocks), now()/longPeriod)
}

// holdLong holds a lock for about the TTL: renewed, or to the end of a lease that nothing renews.
// Other tasks wait for it.
func (t *task) holdLong(ctx context.Context) {
	call := history.Event{Kind: history.KindCall, Verb: history.VerbAcquire, Lock: t.longName()}
	d := t.TTL*6/10 + t.upTo(t.TTL*9/10)
	var opts []holdfast.Option
	if t.caps.Timed && t.chance(50) {
		short := max(t.caps.MinTTL, t.TTL/4)
		call.TTL = int64(short)
		opts = append(opts, holdfast.NoRenew(), holdfast.TTL(short))
	}
	g := t.contend(ctx, t.Patience, slot{name: "long"}, call, opts)
	if g == nil {
		return
	}
	if g.until > 0 && !t.chance(10) {
		d = time.Duration(g.until-now()) + time.Second // to its end
	}
	g.keepFor(ctx, d)
	g.checkHeld()
	g.end()
}

// keepFor holds the lock for a time, or for as long as it is to be kept, unless it is lost.
func (g *heldLock) keepFor(ctx context.Context, d time.Duration) {
	for end := now() + int64(d); ; {
		left := g.t.left(end)
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-g.lock.Context().Done():
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil || g.lock.Err() != nil {
			return
		}
	}
}

// load returns the size of the load of a worker.
func (r *run) load(worker int) load {
	m := r.measure
	if m.brief == 0 {
		return load{}
	}
	rate := cmp.Or(r.cfg.Rate, m.rate)
	spared, share := worker >= m.exposed(), 1
	if spared {
		share = 2 // it is always there
	}
	scale := min(r.scale(), float64(rate)/float64(m.rate))
	part := func(n int) int { return max(1, int(float64(n)*scale)) }
	return load{
		Brief: max(4, part(share*m.brief)), BriefLocks: m.briefLocks, //nolint:mnd // some have to meet
		Long: part(m.long), LongLocks: part(m.long * m.workers * 6 / 10), //nolint:mnd // for most of them there is a waiter
		DyingLocks: part(m.long / 4), //nolint:mnd // two of them live at a time
		Rate:       max(1, rate*share/(m.workers+m.spared)),
		First:      2 / r.took.Seconds() / float64(m.workers), //nolint:mnd // two locks at a time in all
		Spared:     spared,
	}
}
