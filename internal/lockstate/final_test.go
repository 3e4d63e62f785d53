package lockstate_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

func TestLeases(t *testing.T) {
	t.Parallel()
	var f lockstate.Losses
	f.Add(backend.Loss{Session: "a", Lease: "1"}, backend.Loss{Session: "b", Lease: "2"}, backend.Loss{Session: "b", Lease: "3"})
	if !f.Has("a", "1") || !f.Has("b", "2") || !f.Has("b", "3") {
		t.Error("a loss is not known")
	}
	if f.Has("a", "2") || f.Has("b", "1") || f.Has("", "1") {
		t.Error("a lease of another session counts as lost")
	}
	f.Drop("b")
	if f.Has("b", "2") || !f.Has("a", "1") {
		t.Error("Drop forgets its session, and no other")
	}
	f.Add(backend.Loss{Session: "a"})
	if f.Has("a", "1") {
		t.Error("a session that was lost is remembered")
	}
}

// A session that lives for a year and loses a lease every second is not a leak, and a loss is remembered for
// longer than any client asks about it.
func TestLossesAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f lockstate.Losses
		lose := func(id string) { f.Add(backend.Loss{Session: "s", Lease: backend.LeaseID(id)}) }
		const hours = 5
		for i := range hours * 60 {
			lose(strconv.Itoa(i))
			time.Sleep(time.Minute)
		}
		kept := 0
		for i := range hours * 60 {
			has := f.Has("s", backend.LeaseID(strconv.Itoa(i)))
			if age := hours*60 - i; age <= 60 && !has {
				t.Errorf("a loss is forgotten after %d minutes", age)
			}
			if has {
				kept++
			}
		}
		if kept > 120 {
			t.Errorf("%d losses of two hours are remembered", kept)
		}
		time.Sleep(10 * time.Hour)
		lose("new")
		if f.Has("s", backend.LeaseID(strconv.Itoa(hours*60-1))) || !f.Has("s", "new") {
			t.Error("a loss is remembered for ten hours, or forgotten immediately")
		}
	})
}

// A Set keeps a key for its time from when it was last added, and not for ever.
func TestSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const minutes = 67 // in the middle of a generation
		s := lockstate.NewEnded[int](10 * time.Minute)
		if s.Has(0) {
			t.Error("an empty set has a key")
		}
		for i := range minutes {
			s.Add(i)
			s.Add(-1)
			time.Sleep(time.Minute)
		}
		kept := 0
		for i := range minutes {
			if s.Has(i) {
				kept++
			} else if minutes-i <= 10 {
				t.Errorf("a key is forgotten after %d minutes", minutes-i)
			}
		}
		if kept > 20 || !s.Has(-1) {
			t.Errorf("%d keys of twenty minutes are remembered; one that is added again and again: %t", kept, s.Has(-1))
		}
		s.Drop(-1)
		if s.Has(-1) || !s.Has(minutes-1) {
			t.Error("Drop forgets its key, wherever it is, and no other")
		}
		time.Sleep(time.Hour)
		s.Add(minutes)
		if s.Has(minutes-1) || !s.Has(minutes) {
			t.Error("a key is remembered for an hour, or forgotten immediately")
		}
	})
}
