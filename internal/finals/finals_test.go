package finals_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/finals"
)

func TestLeases(t *testing.T) {
	t.Parallel()
	var f finals.Leases
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
// longer than anybody asks about it.
func TestLossesAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f finals.Leases
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
			t.Error("a loss is remembered for ten hours, or forgotten at once")
		}
	})
}
