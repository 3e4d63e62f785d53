package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// diary records what hooks were called with.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

type callKey struct{}

// Each hook has the values of the context of its call. Hooks run in the order of the events. A hook
// that blocks delays no call, no renewal and no loss.
func TestHooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		var d diary
		resume := make(chan struct{})
		c := newClient(t, f, holdfast.Config{TTL: 9 * time.Second, Hooks: &holdfast.Hooks{
			Acquired: func(ctx context.Context, e holdfast.AcquiredEvent) {
				<-resume
				d.note("acquired %s by %v, %v", e.Lock.Name, ctx.Value(callKey{}), ctx.Err())
			},
			Failed: func(ctx context.Context, e holdfast.FailedEvent) {
				d.note("failed %s by %v: %s after %s", e.Name, ctx.Value(callKey{}), e.Result, e.Waited)
			},
			Waiting:  func(_ context.Context, delta int) { d.note("waiting %+d", delta) },
			Released: func(_ context.Context, e holdfast.ReleasedEvent) { d.note("released %s after %s", e.Lock.Name, e.Held) },
			Lost: func(ctx context.Context, e holdfast.LostEvent) {
				d.note("lost %s of %v: %s", e.Lock.Name, ctx.Value(callKey{}), e.Cause)
			},
		}})
		by := func(who string) context.Context { return context.WithValue(t.Context(), callKey{}, who) }
		a, err := c.Acquire(by("ann"), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := a.Err(); err != nil {
			t.Errorf("while a hook blocked, the lock was lost: %v", err)
		}
		if _, err := c.Acquire(by("bob"), "a", holdfast.Wait(time.Second)); !errors.Is(err, holdfast.ErrHeld) {
			t.Error(err)
		}
		if err := a.Release(t.Context()); err != nil {
			t.Error(err)
		}
		b, err := c.Acquire(by("cid"), "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(t, store).Break(t.Context(), backend.BreakRequest{Name: "b", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		<-b.Context().Done()
		if got := d.all(); !slices.Equal(got, []string{"waiting +1"}) {
			t.Errorf("hooks overtook one that blocks: %q", got)
		}
		close(resume)
		synctest.Wait()
		want := []string{
			"waiting +1", "acquired a by ann, <nil>", "waiting -1",
			"waiting +1", "waiting -1", "failed a by bob: held after 1s", "released a after 1m1s",
			"waiting +1", "acquired b by cid, <nil>", "waiting -1", "lost b of cid: broken",
		}
		if got := d.all(); !slices.Equal(got, want) {
			t.Errorf("the hooks were called with\n%q, want\n%q", got, want)
		}
	})
}

// Close waits for the hooks, and ends their contexts when its own has ended.
func TestCloseWaitsForHooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		var d diary
		c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{Acquired: func(ctx context.Context, _ holdfast.AcquiredEvent) {
			<-ctx.Done()
			d.note("%v", ctx.Err())
		}}})
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := c.Acquire(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		cancel() // ends the call, not the hook
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Minute {
			t.Errorf("Close gave %v after %s", err, time.Since(begun))
		}
		synctest.Wait()
		if got := d.all(); !slices.Equal(got, []string{"context canceled"}) {
			t.Errorf("the context of the hook ended with %q", got)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("a second Close gave %v", err)
		}
	})
}

// Hooks for which there is no room are dropped and counted. The sum of Waiting is right in the end.
func TestDroppedHooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		resume := make(chan struct{})
		called, waiting := 0, 0
		c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{
			Waiting: func(_ context.Context, delta int) {
				<-resume
				called, waiting = called+1, waiting+delta
			},
		}})
		const calls = 2500
		for range calls {
			if err := mustAcquire(t, c, "a").Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		lock := mustAcquire(t, c, "a")
		dropped := c.Stats().DroppedHooks
		close(resume)
		synctest.Wait()
		if called+int(dropped) != 2*(calls+1) || dropped == 0 {
			t.Errorf("%d called and %d dropped of %d", called, dropped, 2*(calls+1))
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, c, "b")
		synctest.Wait()
		if waiting != 0 {
			t.Errorf("in the end %d wait", waiting)
		}
	})
}
