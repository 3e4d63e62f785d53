package retry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/internal/retry"
)

func TestDelay(t *testing.T) {
	t.Parallel()
	const first, most = 10 * time.Millisecond, time.Second
	for n, whole := range map[int]time.Duration{0: first, 1: 2 * first, 6: 64 * first, 7: most, 1000: most} {
		for range 1000 {
			if d := retry.Delay(n, first, most); d < whole/2 || d >= whole {
				t.Fatalf("after %d failures it waits for %s, not %s to %s", n+1, d, whole/2, whole)
			}
		}
	}
	if d := retry.Delay(0, 1, 1); d != 0 {
		t.Errorf("a nanosecond became %s", d)
	}
}

func TestAbout(t *testing.T) {
	t.Parallel()
	for d, bound := range map[time.Duration]time.Duration{
		time.Second: 3 * time.Second / 2, time.Millisecond: 3 * time.Millisecond / 2, time.Microsecond: 100*time.Microsecond + time.Microsecond/2, 0: 100 * time.Microsecond,
	} {
		for range 1000 {
			if got := retry.About(d); got < d/2 || got >= bound {
				t.Fatalf("about %s is %s, not %s to %s", d, got, d/2, bound)
			}
		}
	}
}

func TestRest(t *testing.T) {
	t.Parallel()
	r := retry.Rest{Least: 8 * time.Millisecond, Longest: time.Second}
	for quiet, want := range map[time.Duration]time.Duration{0: r.Least, 800 * time.Millisecond: 100 * time.Millisecond, time.Hour: r.Longest} {
		if got := r.After(quiet); got != want {
			t.Errorf("nothing changed for %s: it rests for %s, not %s", quiet, got, want)
		}
		for range 1000 {
			if got := r.About(quiet); got < want-want/8 || got >= want+want/8 {
				t.Fatalf("nothing changed for %s: it rests for %s, not about %s", quiet, got, want)
			}
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if !retry.Pause(t.Context(), time.Hour) || time.Since(begun) != time.Hour {
			t.Errorf("it paused for %s", time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun = time.Now()
		if retry.Pause(ctx, time.Hour) || time.Since(begun) != time.Minute {
			t.Errorf("it paused for %s, its context for a minute", time.Since(begun))
		}
		if retry.Pause(ctx, 0) {
			t.Error("a pause in a context that has ended")
		}
		over := make(chan struct{})
		close(over)
		if retry.Until(0, over, nil) || retry.Until(time.Hour, nil, over) || !retry.Until(0, nil, nil) {
			t.Error("Until does not report what was closed")
		}
		some := make(chan struct{}, 1)
		some <- struct{}{}
		if retry.Until(time.Hour, nil, some) || !retry.Until(0, nil, some) {
			t.Error("Until does not report, once, what a channel has")
		}
	})
}
