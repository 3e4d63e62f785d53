package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func opened(t *testing.T, b backend.Backend, err error) backend.Backend {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func client(t *testing.T, b backend.Backend, cfg holdfast.Config) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx) // a cut client cannot release anything
	})
	return c
}

func awaitWaiters(t *testing.T, c *holdfast.Client, name string, n int) {
	t.Helper()
	leasetest.Eventually(t, fmt.Sprintf("%d wait for %q", n, name), func() bool {
		info, err := c.Inspect(t.Context(), name)
		return err == nil && len(info.Waiters) == n
	})
}

// outlived cuts a holder off, or the store, and mends that when the holder was told. The holder is told at its deadline. A
// waiter is not granted the lock before that, and then with a greater token. outlived returns the lock of the holder.
func outlived(t *testing.T, holder, next *holdfast.Client, cut, mend func()) *holdfast.Lock {
	t.Helper()
	lock, err := holder.Acquire(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	got := waitFor(t, next, t.Name())
	renewed(t, lock) // at least one renewal has moved the deadline
	lag := lateness(t)
	cut()
	ended := told(t, lock, lag)
	if deadline := lock.Deadline(); ended.Before(deadline.Add(-time.Millisecond)) {
		t.Errorf("the context ended %s before the deadline", deadline.Sub(ended))
	}
	mend()
	r := <-got
	follows(t, r, lock, ended)
	if err := r.lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
	return lock
}

// follows checks that the next was granted the lock with a greater token, and not before the holder knew of its loss.
func follows(t *testing.T, r had, lock *holdfast.Lock, ended time.Time) {
	t.Helper()
	if r.err != nil {
		t.Fatal(r.err)
	}
	if knew := knewBy(lock, ended); r.at.Before(knew) || r.lock.Token() <= lock.Token() {
		t.Errorf("granted at %s with token %d; the holder knew at %s, and had %d", r.at, r.lock.Token(), knew, lock.Token())
	}
}

// renewed waits until the lock was renewed.
func renewed(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	select {
	case <-lock.Renewed():
	case <-lock.Context().Done():
		t.Fatalf("lost before it was renewed: %v", context.Cause(lock.Context()))
	}
}

// told waits for the end of the holder's context, which ends at its deadline, and returns when it ended.
func told(t *testing.T, lock *holdfast.Lock, lag func() time.Duration) time.Time {
	t.Helper()
	select {
	case <-lock.Context().Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the holder is not told")
	}
	ended := time.Now()
	inTime(t, lock, ended, lag)
	if err := lock.Err(); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the holder has %v", err)
	}
	return ended
}

// inTime checks that the context of a lost lock ended at its deadline, as far as timers were in time.
func inTime(t *testing.T, lock *holdfast.Lock, ended time.Time, lag func() time.Duration) {
	t.Helper()
	if late, machine := ended.Sub(lock.Deadline()), lag(); late > 500*time.Millisecond+machine {
		t.Errorf("the context ended %s after the deadline, and timers were late by %s at most", late, machine)
	}
}

// lateness measures how late timers are, and returns the most that it saw.
func lateness(t *testing.T) func() time.Duration {
	t.Helper()
	stop, most := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		const every = 5 * time.Millisecond
		worst := time.Duration(0)
		for {
			asked := time.Now()
			select {
			case <-time.After(every):
				worst = max(worst, time.Since(asked)-every)
			case <-stop:
				most <- max(worst, time.Since(asked)-every) // the timer may be late at this moment
				return
			}
		}
	}()
	return sync.OnceValue(func() time.Duration { close(stop); return <-most })
}

// knewBy returns when the holder knew that its lease was over. ended was read after that by a goroutine, which may have
// come to it late.
func knewBy(lock *holdfast.Lock, ended time.Time) time.Time {
	if deadline := lock.Deadline(); deadline.Before(ended) {
		return deadline
	}
	return ended
}

type had struct {
	lock *holdfast.Lock
	at   time.Time
	err  error
}

// waitFor waits for a lock as long as it takes.
func waitFor(t *testing.T, c *holdfast.Client, name string) <-chan had {
	t.Helper()
	got := make(chan had, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		l, err := c.Acquire(ctx, name, holdfast.Wait(2*time.Minute)) // also where the store has never answered this client
		got <- had{l, time.Now(), err}
	}()
	return got
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}
