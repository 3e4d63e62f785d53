package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/verify/history"
)

// Worker is the main function of a worker process. It reads its job and its orders from in, and
// writes what it observes to out. It ends when it is told to, or when in ends.
func Worker(ctx context.Context, in io.Reader, out io.Writer) error {
	before := runtime.NumGoroutine()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	var j job
	if !lines.Scan() {
		return fmt.Errorf("verify: a worker was given no job: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(lines.Bytes(), &j); err != nil {
		return fmt.Errorf("verify: the job of a worker: %w", err)
	}
	w := newWorker(j, newRecorder(out))
	b, err := openPatiently(ctx, j)
	if err != nil {
		return err
	}
	closing, err := w.run(ctx, b, lines)
	err = errors.Join(err, b.Close())
	end := history.Event{Kind: history.KindEnd, At: closing, Worker: j.Worker, Before: before, After: settled(before)}
	if end.After > before {
		end.Text = stacks()
	}
	w.record(end)
	return errors.Join(err, w.rec.failed())
}

// openPatiently opens the backend. A worker that starts while the servers are down waits for
// them, as it would if they failed later: until its own faults and those of the servers, which
// come one after the other, leave enough time.
func openPatiently(ctx context.Context, j job) (backend.Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, patientStart)
	defer cancel()
	try := func() (backend.Backend, error) {
		ctx, cancel := context.WithTimeout(ctx, j.Patience)
		defer cancel()
		return open.URL(ctx, j.URL, open.Options{})
	}
	for {
		b, err := try()
		if err == nil || !errors.Is(err, backend.ErrUnavailable) || !retry.Pause(ctx, 50*time.Millisecond) {
			return b, err
		}
	}
}

// settled waits for goroutines to end, and returns how many there are.
func settled(want int) int {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 250 {
		if runtime.NumGoroutine() <= want {
			break
		}
		<-tick.C
	}
	return runtime.NumGoroutine()
}

// stacks returns the stacks of the remaining goroutines, for people.
func stacks() string {
	buf := make([]byte, 16<<10)
	return string(buf[:runtime.Stack(buf, true)])
}

// worker is one client with its tasks.
type worker struct {
	job
	rec   *recorder
	pace  *pacer
	locks *holdfast.Client
	past  *sessionTracker // the backend, past the client
	caps  backend.Capabilities
	ops   atomic.Int64
	// loadTasks counts the tasks of the load.
	loadTasks atomic.Uint64
	keep      atomic.Int64 // until when locks are kept
	silence   atomic.Int64 // when the last silence was reported
	mu        sync.Mutex
	gens      []int
	asked     map[int64]chan order // reads and writes in progress
	closed    bool
}

func newWorker(j job, rec *recorder) *worker {
	return &worker{job: j, rec: rec, pace: newPacer(j.Load.First, j.Load.Rate, j.TTL), gens: j.Gens, asked: make(map[int64]chan order)}
}

// record writes an event as it is.
func (w *worker) record(e history.Event) { w.rec.record(e) }

// tell records an event at the current time. The event has left the process when tell returns,
// except for a return: the call of a worker that is killed in between has an unknown outcome.
func (w *worker) tell(e history.Event) {
	e.Worker = w.Worker
	if e.Kind == history.KindReturn {
		w.rec.later(e)
		return
	}
	w.rec.now(e)
}

// run runs the tasks until it is told to stop. It returns when it began to close the client:
// from then on the leases may end.
func (w *worker) run(ctx context.Context, b backend.Backend, orders *bufio.Scanner) (int64, error) {
	w.past, w.caps = newSessionTracker(b), b.Capabilities()
	locks, err := holdfast.New(w.past, holdfast.Config{TTL: w.TTL, Owner: "verify " + w.Worker, Timeout: w.TTL})
	if err != nil {
		return now(), err
	}
	w.locks = locks
	w.tell(history.Event{Kind: history.KindStart})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	listening := make(chan struct{})
	go func() { defer close(listening); w.listen(orders); stop() }()
	var work sync.WaitGroup
	work.Go(func() { w.watchStalls(ctx) })
	for n := range w.Tasks {
		r := rand.New(rand.NewPCG(w.Seed, uint64(n)))
		work.Go(func() { (&task{worker: w, r: r}).repeat(ctx) })
	}
	w.startLoad(ctx, &work)
	work.Wait()
	closing := now()
	err = closeIn(ctx, locks, 2*w.TTL)
	<-listening
	return closing, err
}

// closeIn closes a client. It is no failure when the backend does not answer in time: the leases
// end with their TTL.
func closeIn(ctx context.Context, locks *holdfast.Client, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := locks.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// listen reads orders until the one to stop, or the end.
func (w *worker) listen(orders *bufio.Scanner) {
	defer w.hangUp()
	for orders.Scan() {
		var o order
		if json.Unmarshal(orders.Bytes(), &o) != nil || o.Stop {
			return
		}
		w.mu.Lock()
		if o.Gens != nil {
			w.gens = o.Gens
		}
		if o.Keep > 0 {
			w.keep.Store(now() + int64(o.Keep))
		}
		if ch, ok := w.asked[o.Op]; ok {
			ch <- o
			delete(w.asked, o.Op)
		}
		w.mu.Unlock()
	}
}

// hangUp ends all reads and writes: no answer will arrive.
func (w *worker) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for op, ch := range w.asked {
		close(ch)
		delete(w.asked, op)
	}
}

// resource sends a read or write to the resource. It reports false when there was no answer.
func (w *worker) resource(e history.Event) (order, bool) {
	e.Op, e.Outcome = w.ops.Add(1), history.OK // the resource decides the outcome
	ch := make(chan order, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return order{}, false
	}
	w.asked[e.Op] = ch
	w.mu.Unlock()
	w.tell(e)
	o, ok := <-ch
	return o, ok
}

// unhindered follows a call that no other client can delay. The returned function must be called
// when it has ended.
func (w *worker) unhindered(op int64) func() {
	begun := now()
	w.pace.begins(op)
	return func() {
		w.pace.ends(op)
		w.tellSilence(begun)
	}
}

// tellSilence reports that the backend took long to answer a call that does not wait for a lock,
// or did not answer it. There may be no fault: a machine can be too busy. The client continues
// such a call in the background, so the lock may be held meanwhile.
func (w *worker) tellSilence(begun int64) {
	const atMost = int64(50 * time.Millisecond) // one event each; a silence is longer
	t := now()
	last := w.silence.Load()
	if took := t - begun; took >= leastSilence(w.TTL) && t >= last+atMost && w.silence.CompareAndSwap(last, t) {
		w.tell(history.Event{Kind: history.KindSilence, Took: took})
	}
}

// leastSilence returns how long a silence must be to be reported: a client with this TTL may then
// fail to renew its leases.
func leastSilence(ttl time.Duration) int64 { return int64(ttl) / 4 } //nolint:mnd // a renewal has a third

func (w *worker) name(slot int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%s/%s.%d", w.Prefix, slots()[slot].name, w.gens[slot])
}

// watchStalls reports when the process did not run, which slows the load, and often that
// everything was reported.
func (w *worker) watchStalls(ctx context.Context) {
	const every = int64(10 * time.Millisecond)
	tick := time.NewTicker(time.Duration(every))
	defer tick.Stop()
	for last, n := now(), 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		t := now()
		if late := t - last - every; late > 2*every {
			w.tell(history.Event{Kind: history.KindStall, Took: late})
			w.pace.stalled(time.Duration(late))
		}
		if n%10 == 0 {
			w.tell(history.Event{Kind: history.KindTick})
			w.pace.adjust()
		}
		last = t
	}
}
