package runner

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// A fault of one grant in thousands shows only if another client arrives at that moment. Most
// locks of the background load are free, or held for long, when they are requested, so chance alone
// brings few clients together. Contenders add to them.

// contend acquires a lock. Mostly a contender tries to acquire it a moment later. The contender hits
// the gap between a backend's read and its write, and arrives while there is a holder. contend
// returns when the contender has its answer too, so the lock is held until then.
func (t *task) contend(ctx context.Context, patience time.Duration, s slot, call history.Event, opts []holdfast.Option) *heldLock {
	contenders := t.chance(contended) && t.pace.wait(ctx) // two acquires, two turns
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if !contenders {
		return t.acquire(wait, s, call, opts)
	}
	answered, done := make(chan struct{}), make(chan struct{})
	contender := &task{worker: t.worker, r: rand.New(rand.NewPCG(t.r.Uint64(), t.r.Uint64()))}
	go func() {
		defer close(done)
		contender.try(ctx, s, call, answered)
	}()
	g := t.acquire(wait, s, call, opts)
	close(answered)
	<-done
	return g
}

const (
	// contended is how many of a hundred acquires have a contender.
	contended = 70
	// soon is the longest delay of the contender: many backends answer within it.
	soon = 1500 * time.Microsecond
	// least is how long a contender that was granted the lock keeps it after the other has its answer.
	least = 500 * time.Microsecond
	// most is how long it keeps the lock if the other waits for it.
	most = 5 * time.Millisecond
)

// try tries to acquire the lock of a call. A contender that is granted the lock keeps it until the
// other has its answer, so that both hold it if both were granted it.
func (t *task) try(ctx context.Context, s slot, other history.Event, answered <-chan struct{}) {
	retry.Pause(ctx, t.upTo(soon))
	call := history.Event{Kind: history.KindCall, Verb: history.VerbTry, Lock: other.Lock}
	wait, cancel := context.WithTimeout(ctx, t.TTL)
	g := t.acquire(wait, s, call, t.mode(s, &call))
	cancel()
	if g == nil {
		return
	}
	limit := time.NewTimer(most)
	select {
	case <-answered:
		retry.Pause(ctx, least)
	case <-limit.C:
	}
	limit.Stop()
	g.checkHeld()
	g.endBriefly()
}
