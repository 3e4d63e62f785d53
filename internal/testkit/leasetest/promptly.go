package leasetest

import (
	"testing"
	"time"
)

// Promptly fails the test unless something takes at most a time. f does it, and returns how long it took. It is
// called again while that is too long, after longer and longer pauses, for a minute at least: a machine that is busy
// for some seconds is not the product's fault.
func Promptly(t *testing.T, most time.Duration, f func() time.Duration) {
	t.Helper()
	const tries, pause = 10, 500 * time.Millisecond
	began := time.Now()
	best := f()
	for n := 1; best > most && (n < tries || time.Since(began) < Patience); n++ {
		<-time.After(time.Duration(n) * pause)
		best = min(best, f())
	}
	if best > most {
		t.Errorf("it took %s at best, and must take at most %s", best, most)
	}
}
