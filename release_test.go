package holdfast_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Release keeps its promise whatever the network does.
func TestReleaseUnderFaults(t *testing.T) {
	t.Parallel()
	t.Run("lost reply", func(t *testing.T) {
		t.Parallel()
		f, _ := newFaults(t)
		c := newClient(t, f, holdfast.Config{})
		lock := mustAcquire(t, c, "n")
		var once sync.Once
		drop := func(_ context.Context, call func() error) error {
			err := call()
			once.Do(func() { err = unavailable(true) })
			return err
		}
		f.release.Store(&drop)
		if err := lock.Release(t.Context()); err != nil {
			t.Fatalf("released, but the first reply was lost: %v", err)
		}
	})
	t.Run("dead context", func(t *testing.T) { // B4
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			lock := mustAcquire(t, c, "n")
			cut := func(ctx context.Context, call func() error) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return call()
			}
			f.release.Store(&cut)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var op *holdfast.OpError
			if err := lock.Release(ctx); err != nil && (!errors.As(err, &op) || !op.MayHold) {
				t.Fatalf("release: %v", err)
			}
			synctest.Wait()
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("a dead context kept the lock")
			}
		})
	})
	t.Run("swallowed", func(t *testing.T) { // found by the simulation: the session kept the lease for ever
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{Timeout: 6 * time.Second})
			lock := mustAcquire(t, c, "n")
			var once atomic.Bool
			swallow := func(ctx context.Context, call func() error) error {
				if once.CompareAndSwap(false, true) {
					<-ctx.Done()
					return ctx.Err()
				}
				return call()
			}
			f.release.Store(&swallow)
			begun := time.Now()
			if err := lock.Release(context.WithoutCancel(t.Context())); err != nil || time.Since(begun) > 3*time.Second {
				t.Fatalf("after %s: %v", time.Since(begun), err)
			}
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("still held")
			}
		})
	})
	t.Run("backend away", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{})
			lock := mustAcquire(t, c, "n")
			away := func(context.Context, func() error) error { return unavailable(false) }
			f.release.Store(&away)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			err := lock.Release(ctx)
			if took := time.Since(begun); took > 1010*time.Millisecond || !errors.Is(err, holdfast.ErrUnavailable) {
				t.Fatalf("after %s: %v", took, err)
			}
			f.release.Store(nil)
			time.Sleep(3 * time.Second)
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("not released in the background")
			}
		})
	})
	t.Run("backend away for long, but not for renewals", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f, store := newFaults(t)
			c := newClient(t, f, holdfast.Config{TTL: 5 * time.Second})
			lock := mustAcquire(t, c, "n")
			other := mustAcquire(t, c, "other") // of the same session
			away := func(context.Context, func() error) error { return unavailable(false) }
			f.release.Store(&away)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := lock.Release(ctx); !errors.Is(err, holdfast.ErrUnavailable) {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if err := other.Err(); err != nil {
				t.Fatalf("the session ended: %v", err)
			}
			f.release.Store(nil)
			time.Sleep(3 * time.Second)
			if info, _ := openStore(t, store).Inspect(t.Context(), "n"); len(info.Holders) != 0 {
				t.Fatal("it is held by nobody, for as long as the process lives")
			}
		})
	})
}

// Background work continues for as long as the lease lasts.
func TestReleaseGoesOn(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		opts   []holdfast.AcquireOption
		extend time.Duration // 0: not
		away   time.Duration
		until  time.Duration // from the grant on
	}{
		"a long lease that is not renewed": {[]holdfast.AcquireOption{holdfast.TTL(day), holdfast.NoRenew()}, 0, time.Hour, 0},
		"one that was made long":           {[]holdfast.AcquireOption{holdfast.TTL(time.Minute), holdfast.NoRenew()}, day, time.Hour, 0},
		"a dead context and AtLeast":       {[]holdfast.AcquireOption{holdfast.TTL(day), holdfast.AtLeast(time.Minute)}, 0, 0, time.Minute},
		"away for longer than AtLeast":     {[]holdfast.AcquireOption{holdfast.TTL(day), holdfast.AtLeast(time.Minute)}, 0, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, store := newFaults(t)
				c := newClient(t, f, holdfast.Config{TTL: 10 * time.Second})
				other := openStore(t, store)
				lock := mustAcquire(t, c, "n", tc.opts...)
				begun := time.Now()
				if tc.extend > 0 {
					if err := lock.Extend(t.Context(), tc.extend); err != nil {
						t.Fatal(err)
					}
				}
				if tc.away > 0 {
					away := func(context.Context, func() error) error { return unavailable(false) }
					f.release.Store(&away)
					f.hangRenew()
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				mayHold(t, lock.Release(ctx))
				time.Sleep(tc.away)
				f.release.Store(nil)
				f.renew.Store(nil)
				if tc.until > 0 {
					time.Sleep(tc.until - time.Since(begun) - time.Second)
					if info, err := other.Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 1 {
						t.Errorf("gone before its time: %+v, %v", info, err)
					}
				}
				time.Sleep(10 * time.Second)
				if info, err := other.Inspect(t.Context(), "n"); err != nil || len(info.Holders) != 0 {
					t.Errorf("still there: %+v, %v", info.Holders, err)
				}
			})
		})
	}
}
