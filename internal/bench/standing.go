package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// renewing is one client that holds n locks and does nothing else: it measures the cost of keeping
// them.
func renewing(n int) Scenario {
	return Scenario{
		ID: fmt.Sprintf("renew/%d", n), Title: fmt.Sprintf("%d locks that one client holds and renews", n),
		Needs: CanRenew, Counts: true,
		Run: func(ctx context.Context, t *Trial) (Figures, error) { return t.hold(ctx, n) },
	}
}

// idle is n goroutines that wait for a lock that is not released: it measures the cost of waiting.
func idle(n int) Scenario {
	return Scenario{
		ID: fmt.Sprintf("idle/%d", n), Title: fmt.Sprintf("%d goroutines that wait for one lock, which is not given back", n),
		Needs: CanWait | CanRenew, Counts: true,
		Run: func(ctx context.Context, t *Trial) (Figures, error) { return t.wait(ctx, n) },
	}
}

const (
	// takers is the number of goroutines that acquire the locks to hold.
	takers = 64
	// takeTimeout bounds the time for that.
	takeTimeout = 90 * time.Second
	// joining is when all waiters are in the queue: 1,000 take 1.6 s on ZooKeeper.
	joining = 4 * time.Second
)

// standingTTL is such that about three renewals happen while it is measured.
func (t *Trial) standingTTL() time.Duration { return max(6*t.Budget, time.Second) }

func (t *Trial) hold(ctx context.Context, n int) (Figures, error) {
	t.TTL = t.standingTTL()
	locker, closeLocker, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	f, err := t.holding(ctx, locker, n)
	return f, errors.Join(err, closeLocker())
}

func (t *Trial) holding(ctx context.Context, locker Locker, n int) (Figures, error) {
	locks := make([]Held, n)
	// With some contenders a lock ends with the context that it was acquired with.
	taking, giveUp := context.WithCancel(ctx)
	defer giveUp()
	err := inParallel(ctx, n, func(within context.Context, i int) error {
		defer context.AfterFunc(within, giveUp)()
		held, err := locker.Lock(taking, t.Prefix+strconv.Itoa(i))
		locks[i] = held
		return err
	})
	if err != nil {
		return nil, err
	}
	f, err := t.count(ctx)
	if err != nil {
		return nil, err
	}
	f[Grants] = float64(n)
	return f, inParallel(ctx, n, func(ctx context.Context, i int) error {
		if err := locks[i].Unlock(ctx); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		return nil
	})
}

// pairOnce acquires and releases a lock.
func pairOnce(ctx context.Context, locker Locker, name string) error {
	held, err := locker.Lock(ctx, name)
	if err != nil {
		return err
	}
	if err := held.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

func (t *Trial) wait(ctx context.Context, n int) (Figures, error) {
	t.TTL = t.standingTTL()
	locker, closeLocker, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	name := t.Prefix + "one"
	held, err := locker.Lock(ctx, name)
	if err != nil {
		return nil, errors.Join(err, closeLocker())
	}
	f, err := t.waiting(ctx, locker, name, n)
	if unlockErr := held.Unlock(ctx); unlockErr != nil {
		err = errors.Join(err, fmt.Errorf("unlock: %w", unlockErr))
	}
	return f, errors.Join(err, closeLocker())
}

func (t *Trial) waiting(ctx context.Context, locker Locker, name string, n int) (Figures, error) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var granted atomic.Int64
	failed := make(chan error, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			held, err := locker.Lock(waiting, name)
			switch {
			case err == nil:
				granted.Add(1)
				failed <- held.Unlock(context.WithoutCancel(ctx))
			case waiting.Err() == nil:
				failed <- err
			}
		})
	}
	err := pause(ctx, max(2*t.Budget, joining))
	var f Figures
	if err == nil {
		f, err = t.count(ctx)
	}
	stop()
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
		break // one of a thousand is enough
	}
	if err != nil {
		return nil, err
	}
	f[Grants] = 1
	f[DoubleHolds] = float64(granted.Load())
	return f, nil
}

// count counts the requests of one TTL.
func (t *Trial) count(ctx context.Context) (Figures, error) {
	stop, err := t.Engine.Meter(ctx)
	if err != nil {
		return nil, fmt.Errorf("meter: %w", err)
	}
	begin := time.Now()
	err = pause(ctx, t.TTL)
	elapsed := time.Since(begin)
	requests, meterErr := stop()
	return Figures{RequestsPerSecond: float64(requests) / elapsed.Seconds()}, errors.Join(err, meterErr)
}

// inParallel calls f for 0 to n - 1 from a few goroutines, until one fails.
func inParallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, takeTimeout, fmt.Errorf("this took more than %s for %d locks", takeTimeout, n))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(takers, n) {
		all.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(ctx, i); err != nil {
					fail(err)
				}
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
