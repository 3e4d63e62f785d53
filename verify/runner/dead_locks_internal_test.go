package runner

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/verify/history"
)

// The locks that a client held when it died are requested by a client without faults, and no
// others are.
func TestHeir(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	var want map[string]bool
	var asked map[string]int
	for lasts := 3 * time.Second; len(want) < 10; lasts *= 2 { // few die in time on a busy machine
		var died int
		died, want, asked = inherited(t, lasts)
		t.Logf("in %s %d clients died with %d locks", lasts, died, len(want))
		if lasts > 12*time.Second && len(want) < 10 {
			t.Fatal("too few died")
		}
	}
	for lock := range asked {
		if !want[lock] {
			t.Errorf("%q is requested, and no worker died with it", lock)
		}
	}
	var left []string
	for lock := range want {
		if asked[lock] == 0 {
			left = append(left, lock)
		}
	}
	slices.Sort(left)
	if len(left) > len(want)/2 { // a grant may be reported after its client died, and requests beyond probeSlots are dropped
		t.Errorf("%d of %d locks of the dead are not asked for: %.300q", len(left), len(want), left)
	}
}

// inherited returns how many clients died, what they held, and how often each lock was requested after that.
func inherited(t *testing.T, lasts time.Duration) (int, map[string]bool, map[string]int) {
	t.Helper()
	var mu sync.Mutex
	locks := make(map[string][]string) // of grants, by client
	under := make(map[callID]string)
	var died []string
	asked := make(map[string]int)
	err := Run(t.Context(), Config{
		URL: "memory://", For: lasts, Seed: 1, Profile: Torture, TTL: time.Second, Rate: 1500,
		Record: func(e history.Event) error {
			mu.Lock()
			defer mu.Unlock()
			id := callID{e.Worker, e.Op}
			switch {
			case e.Kind == history.KindKill && e.Text == clientDied:
				died = append(died, e.Worker)
			case e.Kind == history.KindCall && e.Worker == probeName && e.Verb == history.VerbAcquire:
				asked[e.Lock]++
			case e.Kind == history.KindCall && (e.Verb == history.VerbAcquire || e.Verb == history.VerbTry):
				under[id] = e.Lock
			case e.Kind == history.KindReturn && e.Outcome == history.OK && under[id] != "" && strings.Contains(e.Worker, dyingMark):
				locks[e.Worker] = append(locks[e.Worker], under[id])
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]bool)
	for _, client := range died {
		for _, lock := range locks[client] {
			want[lock] = true
		}
	}
	return len(died), want, asked
}
