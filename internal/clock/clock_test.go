package clock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/clock"
)

// The kernel is asked how long the machine was suspended when the wall clock and the monotonic one
// have moved apart, and at intervals.
func TestKernelIsAskedWhenClocksMoveApart(t *testing.T) {
	t.Parallel()
	asked := 0
	var slept time.Duration
	look := clock.SleepWatch(func() time.Duration { asked++; return slept })
	const apart = 1000 * time.Hour // of the wall clock's zero from the monotonic one's
	for _, step := range []struct {
		what      string
		at, apart time.Duration
		asked     int
	}{
		{"first", 0, apart, 1},
		{"a moment later", time.Millisecond, apart, 1},
		{"the wall clock is adjusted", 2 * time.Millisecond, apart + time.Microsecond, 1},
		{"suspended", 3 * time.Millisecond, apart + time.Minute, 2},
		{"a moment later", 4 * time.Millisecond, apart + time.Minute, 2},
		{"the wall clock is set back", 5 * time.Millisecond, apart - time.Hour, 3},
		{"suspended for two milliseconds", 6 * time.Millisecond, apart - time.Hour + 2*time.Millisecond, 4},
		{"a tenth of a second later", 107 * time.Millisecond, apart - time.Hour + 2*time.Millisecond, 5},
	} {
		slept = time.Duration(step.asked) * time.Second
		if got := look(step.at, step.apart); got != slept || asked != step.asked {
			t.Errorf("%s: %s, asked %d times; want %s, %d", step.what, got, asked, slept, step.asked)
		}
	}
}
