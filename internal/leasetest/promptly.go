package leasetest

import (
	"testing"
	"time"
)

// Promptly fails the test unless something takes at most a time. f does it, and returns how long it took. It is
// called again while that is too long: a machine that is busy at one moment is not the product's fault.
func Promptly(t *testing.T, most time.Duration, f func() time.Duration) {
	t.Helper()
	const tries = 10
	best := f()
	for n := 1; n < tries && best > most; n++ {
		best = min(best, f())
	}
	if best > most {
		t.Errorf("it took %s at best, and must take at most %s", best, most)
	}
}
