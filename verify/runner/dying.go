package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// A process is killed a few times in a minute. So that many leases lose their holder, each
// worker has clients that die too: from one moment to the next, nothing that they send arrives
// any more, and nothing that is sent to them.

// dyingMark separates the name of a worker from the number of its client.
const dyingMark = ".m"

// clientDied is the text of a kill event for a client in a worker, as opposed to a process.
const clientDied = "a client in the process"

// runDyingClients starts one such client after the other, until ctx ends.
func (w *worker) runDyingClients(ctx context.Context) {
	if w.caps.Bound || w.caps.Tied || w.Load.DyingLocks == 0 {
		return // they share the connection of the worker, which would keep their sessions alive
	}
	var lives sync.WaitGroup
	defer lives.Wait()
	for n := 1; w.pace.wait(ctx); n++ {
		lives.Go(func() { w.runDyingClient(ctx, n) })
		if !retry.Pause(ctx, w.TTL/2) {
			return
		}
	}
}

// runDyingClient acquires locks, and dies with them.
func (w *worker) runDyingClient(ctx context.Context, n int) {
	l := newLink(w.past.Backend)
	id := fmt.Sprintf("%s%s%d", w.Worker, dyingMark, n)
	locks, err := holdfast.New(l, holdfast.Config{TTL: w.TTL, Owner: "verify " + id, Timeout: w.TTL})
	if err != nil {
		return // the run has made such a client before, so this succeeds
	}
	j := w.job
	j.Worker = id
	own := newWorker(j, &recorder{direct: func(e history.Event) {
		if !l.deadAt(e.At) {
			w.record(e)
		}
	}})
	own.locks, own.past, own.caps = locks, newSessionTracker(l), w.caps
	own.tell(history.Event{Kind: history.KindStart, In: w.Worker})
	life, end := context.WithTimeout(ctx, w.TTL/2)
	defer end()
	var work sync.WaitGroup
	for i := range w.Load.DyingLocks {
		t := &task{worker: own, r: rand.New(rand.NewPCG(w.Seed+uint64(n)<<1, uint64(i)))} //nolint:gosec // both are small
		work.Go(func() {
			call := history.Event{Kind: history.KindCall, Verb: history.VerbAcquire, Lock: t.longName()}
			if g := t.contend(life, t.TTL, slot{name: "long"}, call, nil); g != nil {
				<-life.Done()
			}
		})
	}
	<-life.Done()
	l.kill()
	w.record(history.Event{Kind: history.KindKill, At: l.died, Worker: id, Text: clientDied})
	work.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.TTL)
	defer cancel()
	_ = locks.Close(ctx) // none of its calls arrive; the sessions end with their TTL
}
