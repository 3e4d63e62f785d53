package holdfasttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/holdfasttest"
)

// charge is the code under test.
func charge(ctx context.Context, locks *holdfast.Client, pay func(context.Context) error) error {
	return locks.Do(ctx, "order:7", func(ctx context.Context, _ *holdfast.Lock) error { return pay(ctx) }, holdfast.Wait(0))
}

func TestCharge(t *testing.T) {
	t.Parallel()
	store := holdfasttest.NewStore(t)
	here, there := store.Process(holdfast.Config{}), store.Process(holdfast.Config{})
	lock, err := there.Acquire(t.Context(), "order:7")
	if err != nil {
		t.Fatal(err)
	}
	paid := 0
	pay := func(context.Context) error { paid++; return nil }
	if err := charge(t.Context(), here.Client, pay); !errors.Is(err, holdfast.ErrHeld) || paid != 0 {
		t.Errorf("%v, %d paid, while another process holds the order", err, paid)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := charge(t.Context(), here.Client, pay); err != nil || paid != 1 {
		t.Errorf("%v, %d paid", err, paid)
	}
	if err := charge(t.Context(), holdfasttest.Client(t), pay); err != nil {
		t.Errorf("on a store of its own: %v", err)
	}
}

// The process loses the network: it stops before another can hold the lock.
func TestCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := holdfasttest.NewStore(t)
		here, there := store.Process(holdfast.Config{}), store.Process(holdfast.Config{})
		const ttl = 30 * time.Second
		begun := time.Now()
		var stopped time.Duration
		err := charge(t.Context(), here.Client, func(ctx context.Context) error {
			here.Cut()
			<-ctx.Done()
			stopped = time.Since(begun)
			return ctx.Err()
		})
		if !errors.Is(err, holdfast.ErrLost) || stopped > ttl {
			t.Errorf("%v, %s after it was cut off", err, stopped)
		}
		if _, err := there.Acquire(t.Context(), "order:7"); err != nil || time.Since(begun) < stopped {
			t.Errorf("the next: %v", err)
		}
		if _, err := here.TryAcquire(t.Context(), "other"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("it is still cut off: %v", err)
		}
		here.Heal()
		if _, err := here.Acquire(t.Context(), "other"); err != nil {
			t.Errorf("it is back: %v", err)
		}
	})
}

// A break is not told to a process that is cut off.
func TestBreakDuringACut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := holdfasttest.NewStore(t)
		here, there := store.Process(holdfast.Config{}), store.Process(holdfast.Config{})
		lock, err := here.Acquire(t.Context(), "order:7")
		if err != nil {
			t.Fatal(err)
		}
		here.Cut()
		if _, err := there.Break(t.Context(), "order:7", "a test"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := lock.Err(); err != nil {
			t.Errorf("told through a network that is cut: %v", err)
		}
		here.Heal()
		<-lock.Context().Done()
		if !errors.Is(lock.Err(), holdfast.ErrLost) {
			t.Error(lock.Err())
		}
	})
}
