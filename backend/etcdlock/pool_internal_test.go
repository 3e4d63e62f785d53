package etcdlock

import (
	"testing"
	"time"
	"unsafe"
)

// apart returns a reading of the clocks whose wall clock is d ahead, in whole seconds: as after a
// suspension, in which the monotonic clock stood still.
func apart(t *testing.T, now time.Time, d time.Duration) time.Time {
	t.Helper()
	later := now
	*(*uint64)(unsafe.Pointer(&later)) += uint64(d/time.Second) << 30 // the seconds, in its layout
	if later.Sub(now) != 0 || later.Round(0).Sub(now.Round(0)) != d {
		t.Fatalf("the layout of time.Time is another: %v after %v", later, now)
	}
	return later
}

// A lease of etcd that was made before the machine was suspended has less time left than the
// monotonic clock shows.
func TestPooledBeforeSuspension(t *testing.T) {
	t.Parallel()
	const ttl, asleep = 10 * time.Second, 3 * time.Second
	pl := &pooled{asked: time.Now(), life: poolLife(ttl)}
	soon := pl.asked.Add(poolStep / 2)
	if !pl.covers(soon, ttl) {
		t.Error("it is used for a second")
	}
	woken := apart(t, soon, asleep)
	if pl.covers(woken, ttl) {
		t.Error("it is used for what outlasts it")
	}
	if late, want := pl.late(woken, ttl), asleep-poolStep/2; late != want {
		t.Errorf("late by %s; want %s", late, want)
	}
	if pl.covers(apart(t, soon.Add(poolStep), -asleep), ttl) {
		t.Error("a wall clock that was set back made it last longer")
	}
}
