//go:build unix

package play

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/verify/history"
)

// sweeper is the worker that comes last. It plays in this process and has no faults.
const sweeper = "last.1"

// sweep takes every lock once more, which must be possible now, and then looks for what
// is left.
func (r *run) sweep(ctx context.Context) {
	if err := r.takeAll(ctx); err != nil {
		r.fail(fmt.Errorf("verify: the last round: %w", err))
		return
	}
	r.look(ctx)
}

func (r *run) takeAll(ctx context.Context) error {
	locks, err := holdfast.New(r.direct, holdfast.Config{TTL: r.ttl, Owner: "verify " + sweeper, Timeout: r.ttl})
	if err != nil {
		return err
	}
	r.mu.Lock()
	names := slices.Sorted(maps.Keys(r.counts))
	r.mu.Unlock()
	tasks := make(chan string)
	var work sync.WaitGroup
	var ops int64
	var mu sync.Mutex
	next := func() int64 {
		mu.Lock()
		defer mu.Unlock()
		ops++
		return ops
	}
	ctx, cancel := context.WithTimeout(ctx, 2*r.slack()+6*time.Second)
	defer cancel()
	for range 16 {
		work.Go(func() {
			for name := range tasks {
				r.takeOnce(ctx, locks, name, next)
			}
		})
	}
	for _, name := range names {
		tasks <- name
	}
	close(tasks)
	work.Wait()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), r.slack())
	defer cancel()
	closing := now()
	err = locks.Close(ctx)
	r.record(history.Event{Kind: history.KindEnd, At: closing, Worker: sweeper})
	return err
}

func (r *run) takeOnce(ctx context.Context, locks *holdfast.Client, name string, next func() int64) {
	op := next()
	acq := sweeper + "-" + strconv.FormatInt(op, 10)
	call := history.Event{Kind: history.KindCall, Worker: sweeper, Op: op, Verb: history.VerbAcquire, Lock: name, Acq: acq}
	r.tell(call)
	lock, err := locks.Acquire(ctx, name)
	ret := history.Event{Kind: history.KindReturn, Worker: sweeper, Op: op, Outcome: outcome(err)}
	if err != nil {
		ret.Text = err.Error()
		r.tell(ret)
		return
	}
	ret.Token, ret.Deadline = uint64(lock.Token()), clockTime(lock.Deadline())
	r.tell(ret)
	op = next()
	r.tell(history.Event{Kind: history.KindCall, Worker: sweeper, Op: op, Verb: history.VerbRelease, Lock: name, Acq: acq})
	err = lock.Release(ctx)
	r.tell(history.Event{Kind: history.KindReturn, Worker: sweeper, Op: op, Outcome: outcome(err)})
}

// look waits until the backend has nothing under the prefix, and tells what it has after
// that should be over.
func (r *run) look(ctx context.Context) {
	end := time.Now().Add(r.slack() + 5*time.Second)
	for {
		left, err := r.list(ctx)
		switch {
		case errors.Is(err, backend.ErrUnsupported):
			r.tell(history.Event{Kind: history.KindNote, Text: "the backend cannot list its locks: what is left was not looked for"})
			return
		case err != nil && time.Now().After(end):
			r.fail(fmt.Errorf("verify: look for what is left: %w", err))
			return
		case err == nil && len(left) == 0:
			return
		case err == nil && time.Now().After(end):
			for _, l := range left {
				r.tell(history.Event{Kind: history.KindLeft, Lock: l.Name, Text: fmt.Sprintf("%d holders, %d waiters", len(l.Holders), len(l.Waiters))})
			}
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func (r *run) list(ctx context.Context) ([]backend.LockInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	page, err := r.direct.List(ctx, backend.ListRequest{Prefix: r.prefix + "/"})
	return page.Locks, err
}
