// Package retry has the pauses between attempts.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Delay returns how long to wait after n+1 failures: first, doubled n times, but at most most. A
// random part of up to half of that is left out, so that clients that failed together do not retry
// together.
func Delay(n int, first, most time.Duration) time.Duration {
	const doublings = 20
	d := min(first<<min(n, doublings), most)
	return d/2 + rand.N(max(d/2, 1))
}

// About returns a random time from half of d to one and a half of it, so that clients that began together do not act
// together. A d below 100 µs counts as 100 µs in the random part: it may be 0.
func About(d time.Duration) time.Duration {
	const least = 100 * time.Microsecond
	return d/2 + rand.N(max(d, least))
}

// Rest is how often a value polls while it waits for what nothing notifies it of: after an eighth of the time in which
// nothing changed, at least Least and at most Longest. So polling prolongs a wait, however long, by about an eighth, and
// long waits poll rarely.
type Rest struct {
	Least, Longest time.Duration
}

const restPart = 8

// After returns the rest when nothing changed for that long.
func (r Rest) After(quiet time.Duration) time.Duration {
	return min(max(quiet/restPart, r.Least), r.Longest)
}

// About returns After, give or take an eighth.
func (r Rest) About(quiet time.Duration) time.Duration {
	d := r.After(quiet)
	return d - d/restPart + rand.N(d/restPart*2) //nolint:mnd // on both sides
}

// Pause waits for d. It reports false when ctx has ended.
func Pause(ctx context.Context, d time.Duration) bool { return Until(d, ctx.Done(), nil) }

// Until waits for d. It reports false when one of the channels is closed or has something. A channel may be nil.
func Until(d time.Duration, over, also <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
		return false
	case <-also:
		return false
	}
	select {
	case <-over:
		return false
	case <-also:
		return false
	default:
		return true
	}
}
