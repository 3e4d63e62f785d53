package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// docs/coming-from/two-deployments.md has copies of the functions from here to keep: TestDocs of
// internal/testkit/e2e compares them.

// oldLock acquires the lock of the library that you leave. The context that it returns ends when
// that lock is lost. The function that it returns releases the lock.
type oldLock func(ctx context.Context) (context.Context, context.CancelFunc, error)

var errOldLost = errors.New("the old lock was lost")

// withBoth runs f while it holds the old lock and the lock of Holdfast. The context passed to f
// ends when either of them is lost.
func withBoth(ctx context.Context, old oldLock, locks *holdfast.Client, name string,
	f func(context.Context, *holdfast.Lock) error, opts ...holdfast.Option,
) error {
	held, release, err := old(ctx) // the old lock is always the first
	if err != nil {
		return err
	}
	defer release()
	err = locks.Do(held, name, f, opts...)
	if held.Err() != nil && ctx.Err() == nil {
		return errors.Join(fmt.Errorf("%w: %w", errOldLost, context.Cause(held)), err)
	}
	return err
}

// fromRueidislock needs no help: rueidislock renews its locks and ends their contexts.
func fromRueidislock(locker rueidislock.Locker, name string) oldLock {
	return func(ctx context.Context) (context.Context, context.CancelFunc, error) {
		return locker.WithContext(ctx, name)
	}
}

func fromRedsync(rs *redsync.Redsync, name string, options ...redsync.Option) oldLock {
	return func(ctx context.Context) (context.Context, context.CancelFunc, error) {
		mutex := rs.NewMutex(name, options...)
		if err := mutex.LockContext(ctx); err != nil {
			return nil, nil, err
		}
		extend := func(ctx context.Context) (time.Time, error) {
			_, err := mutex.ExtendContext(ctx)
			return mutex.Until(), err
		}
		unlock := func(ctx context.Context) { _, _ = mutex.UnlockContext(ctx) }
		held, release := keep(ctx, mutex.Until(), extend, unlock)
		return held, release, nil
	}
}

func fromBSM(client *redislock.Client, key string, ttl time.Duration, retry redislock.RetryStrategy) oldLock {
	return func(ctx context.Context) (context.Context, context.CancelFunc, error) {
		lock, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retry}) // nil: one attempt
		if err != nil {
			return nil, nil, err
		}
		refresh := func(ctx context.Context) (time.Time, error) {
			until := time.Now().Add(ttl)
			return until, lock.Refresh(ctx, ttl, nil)
		}
		unlock := func(ctx context.Context) { _ = lock.Release(ctx) }
		until, err := refresh(ctx) // Obtain does not report when it sent the request that succeeded
		if err != nil {
			unlock(context.WithoutCancel(ctx))
			return nil, nil, err
		}
		held, release := keep(ctx, until, refresh, unlock)
		return held, release, nil
	}
}

// keep extends a lock that ends at until. The context that it returns ends when an extension fails,
// and at until if the extension is still in progress then. The function that it returns ends the
// context too, and unlocks.
func keep(ctx context.Context, until time.Time, extend func(context.Context) (time.Time, error),
	unlock func(context.Context),
) (context.Context, context.CancelFunc) {
	held, lose := context.WithCancelCause(ctx)
	expiry := time.AfterFunc(time.Until(until), func() { lose(context.DeadlineExceeded) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-held.Done():
				return
			case <-time.After(time.Until(until) / 2):
			}
			next, err := extend(held)
			if err != nil {
				lose(err)
				return
			}
			until = next
			expiry.Reset(time.Until(until))
		}
	}()
	return held, func() {
		lose(nil)
		<-done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		unlock(ctx) // if this fails, the lock ends by itself
	}
}

// deployment is one process of a service: with its own connections, and its own clients of both
// lock libraries.
type deployment struct {
	old oldLock
	new *holdfast.Client
}

const movedLock = "order:123"

// oldLibraries returns the lock of each library that the page is about, on a connection of its own.
func oldLibraries() map[string]func(t *testing.T, addr string, ttl time.Duration) oldLock {
	return map[string]func(t *testing.T, addr string, ttl time.Duration) oldLock{
		"redsync": func(t *testing.T, addr string, ttl time.Duration) oldLock {
			t.Helper()
			client, err := goRedis("redis://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			return fromRedsync(redsync.New(pool.NewPool(client)), movedLock,
				redsync.WithExpiry(ttl), redsync.WithTries(10_000), redsync.WithRetryDelay(3*time.Millisecond))
		},
		"redislock": func(t *testing.T, addr string, ttl time.Duration) oldLock {
			t.Helper()
			client, err := goRedis("redis://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			return fromBSM(redislock.New(client), movedLock, ttl, redislock.LinearBackoff(3*time.Millisecond))
		},
		"rueidislock": func(t *testing.T, addr string, ttl time.Duration) oldLock {
			t.Helper()
			locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
				// Without the cache waiters poll. With it WithContext, at v1.0.79, now and then waits
				// until its context ends although the lock is free, without Holdfast too.
				ClientOption: rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true},
				KeyMajority:  1, KeyValidity: ttl, TryNextAfter: 100 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(locker.Close)
			return fromRueidislock(locker, movedLock)
		},
	}
}

func newDeployment(t *testing.T, addr string, old func(*testing.T, string, time.Duration) oldLock, ttl time.Duration) deployment {
	t.Helper()
	store, err := open.URL(t.Context(), "redis://"+addr+"?quarantine=off", open.Options{})
	if err != nil {
		t.Fatal(err)
	}
	locks, err := holdfast.New(store, holdfast.Config{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = locks.Close(context.WithoutCancel(t.Context()))
		_ = store.Close()
	})
	return deployment{old: old(t, addr, ttl), new: locks}
}

// A section of the program under one of three locks.
func (d deployment) underOld(ctx context.Context, f func(context.Context, *holdfast.Lock) error) error {
	held, release, err := d.old(ctx)
	if err != nil {
		return err
	}
	defer release()
	return f(held, nil)
}

func (d deployment) underBoth(ctx context.Context, f func(context.Context, *holdfast.Lock) error) error {
	return withBoth(ctx, d.old, d.new, movedLock, f)
}

func (d deployment) underNew(ctx context.Context, f func(context.Context, *holdfast.Lock) error) error {
	return d.new.Do(ctx, movedLock, f)
}

type section func(d deployment, ctx context.Context, f func(context.Context, *holdfast.Lock) error) error

// In neither of the two deployments do two sections overlap. The old lock directly beside the new
// one excludes nothing, so the test would see an overlap.
func TestTwoDeployments(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const sections = 150 // of each process
	for library, old := range oldLibraries() {
		for stage, c := range map[string]struct {
			one, other section
			overlaps   bool
		}{
			"first deployment":    {deployment.underOld, deployment.underBoth, false},
			"second deployment":   {deployment.underBoth, deployment.underNew, false},
			"old directly to new": {deployment.underOld, deployment.underNew, true},
		} {
			t.Run(library+"/"+stage, func(t *testing.T) {
				t.Parallel()
				addr := testserver.Redis(t, "--appendonly", "no").Addr()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // a waiter that hangs is a failure
				defer cancel()
				var inside, overlaps, entered atomic.Int64
				var wg sync.WaitGroup
				for i := range 4 {
					run, d := c.one, newDeployment(t, addr, old, 10*time.Second)
					if i >= 2 {
						run = c.other
					}
					wg.Go(func() {
						for range sections {
							err := run(d, ctx, func(context.Context, *holdfast.Lock) error {
								if inside.Add(1) > 1 {
									overlaps.Add(1)
								}
								time.Sleep(time.Millisecond)
								inside.Add(-1)
								entered.Add(1)
								return nil
							})
							if err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				t.Logf("%d overlaps in %d sections", overlaps.Load(), entered.Load())
				if (overlaps.Load() > 0) != c.overlaps {
					t.Errorf("%d overlaps in %d sections", overlaps.Load(), entered.Load())
				}
			})
		}
	}
}

// When the old lock is lost, what runs under both learns it, and the new lock is free again. A lock
// that is not lost is extended beyond its TTL.
func TestOldLockLost(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for library, old := range oldLibraries() {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			const ttl = 10 * time.Second // a busy machine may delay an extension by six
			server := testserver.Redis(t, "--appendonly", "no")
			d := newDeployment(t, server.Addr(), old, ttl)
			err := d.underBoth(t.Context(), func(ctx context.Context, lock *holdfast.Lock) error {
				select {
				case <-ctx.Done():
					return fmt.Errorf("it ended while both were held: %w", context.Cause(ctx))
				case <-time.After(ttl + ttl/4):
				}
				server.Do("DEL", movedLock, "rueidislock:0:"+movedLock)
				select {
				case <-ctx.Done():
				case <-time.After(5 * ttl):
					return errors.New("it did not learn of the loss")
				}
				return lock.Err() // ours is still held
			})
			if !errors.Is(err, errOldLost) || !strings.HasPrefix(err.Error(), errOldLost.Error()+": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, not %v and why", err, errOldLost)
			}
			if _, err := d.new.TryAcquire(t.Context(), movedLock); err != nil {
				t.Error(err)
			}
		})
	}
}
