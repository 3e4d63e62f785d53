package runner

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/verify/history"
)

// A call is made only when its record has left the process, which may be killed then. The
// record of a return need not have.
func TestACallIsOutBeforeItIsMade(t *testing.T) {
	t.Parallel()
	out, in := io.Pipe()
	r := newRecorder(in)
	called := make(chan struct{})
	go func() {
		r.now(history.Event{Kind: history.KindCall, Worker: "1.1", Op: 1, Verb: history.VerbTry, Lock: "a", Acq: "x"})
		close(called)
	}()
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil { // it is being written
		t.Fatal(err)
	}
	second := make(chan struct{})
	go func() {
		r.now(history.Event{Kind: history.KindCall, Worker: "1.1", Op: 2, Verb: history.VerbTry, Lock: "a", Acq: "y"})
		close(second)
	}()
	for waits := false; !waits; {
		r.mu.Lock()
		waits = r.added == 2
		r.mu.Unlock()
	}
	r.later(history.Event{Kind: history.KindReturn, Worker: "1.1", Op: 1, Outcome: history.OK}) // does not wait
	select {
	case <-called:
		t.Error("the first call was made before its record was out")
	case <-second:
		t.Error("the second call was made before its record was out")
	default:
	}
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(io.Discard, out) })
	<-called
	<-second
	_ = in.Close()
	read.Wait()
}

// On a machine that is short of processors the load is slower, and otherwise faster.
func TestPace(t *testing.T) {
	t.Parallel()
	p := newPacer(10, 1000, time.Second)
	for range 100 {
		p.adjust()
	}
	if p.rate != 1000 {
		t.Errorf("the pace is %.0f, want all", p.rate)
	}
	for range 100 {
		p.stalled(200 * time.Millisecond)
		p.adjust()
	}
	if p.rate != leastRate {
		t.Errorf("the pace is %.0f where nothing runs", p.rate)
	}
	p.begins(1)
	p.ends(1)
	if p.adjust(); p.rate <= leastRate {
		t.Error("a call that was quick made it slower")
	}
	for range 100 {
		p.adjust()
	}
	p.begins(2)
	p.calls[2] = p.calls[2].Add(-time.Second)
	if p.adjust(); p.rate >= 1000 {
		t.Error("a call that has no answer yet made it no slower")
	}
}

// Some workers have no fault, so that there is traffic.
func TestNotAllAreHurt(t *testing.T) {
	t.Parallel()
	r := &run{workers: make([]*workerHandle, 4), busy: make([]bool, 4), measure: measure{workers: 4, maxFaulty: 2}}
	for n := range 2 {
		if _, whom, free := r.reserveTarget(0); !free || whom != n {
			t.Errorf("fault %d: worker %d, %v", n, whom, free)
		}
	}
	if _, _, free := r.reserveTarget(3); free {
		t.Error("a third worker has a fault")
	}
	r.releaseTarget(0)
	if _, whom, free := r.reserveTarget(0); !free || whom != 0 {
		t.Errorf("after one was healed: worker %d, %v", whom, free)
	}
}

// A wait that its context ended may have been granted, also if the error names a holder.
func TestOutcomeOfAWait(t *testing.T) {
	t.Parallel()
	held := fmt.Errorf("%w (%w)", context.DeadlineExceeded, &holdfast.HeldError{Name: "a"})
	for mayHold, want := range map[bool]history.Outcome{false: history.Held, true: history.Unknown} {
		if got := outcome(&holdfast.OpError{Op: "acquire", Name: "a", MayHold: mayHold, Err: held}); got != want {
			t.Errorf("may hold %v: %v, want %v", mayHold, got, want)
		}
	}
}
