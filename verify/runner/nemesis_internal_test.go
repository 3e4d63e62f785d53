//go:build unix

package runner

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/verify/history"
)

// A fault that loses bytes closes the connection when it is healed. If leases end with their
// connections, a cut near the end of a run would be healed before they have ended, and take
// them from holders.
func TestNoCutIsHealedBeforeItsTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		tied  bool
		fault fault
		left  time.Duration // rest of the run
		told  int
	}{
		{"there is time", true, faultCutReplies, time.Minute, 2},
		{"there is not", true, faultCutReplies, time.Millisecond, 0},
		{"there is not, both ways", true, faultCut, time.Millisecond, 0},
		{"nothing is lost", true, faultHold, time.Millisecond, 2},
		{"leases outlive a connection", false, faultCut, time.Millisecond, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var told bytes.Buffer
			record := history.NewWriter(&told).Write
			r := &run{cfg: Config{Record: record}, relays: make([][]*chaos.Proxy, 1), able: abilities{relay: true, tied: c.tied}}
			ctx, cancel := context.WithTimeout(t.Context(), c.left)
			defer cancel()
			r.injectOnWorker(ctx, &workerHandle{done: make(chan struct{})}, planned{fault: c.fault, lasts: 10 * time.Millisecond})
			if n := strings.Count(told.String(), string(c.fault)); n != c.told {
				t.Errorf("told %d times, want %d: %s", n, c.told, told.String())
			}
		})
	}
}

// What a worker wrote before it was killed is recorded before its death, also when it is read late:
// after the death of a worker the referee judges its locks without it.
func TestAKillIsRecordedLast(t *testing.T) {
	t.Parallel()
	var kinds []history.Kind
	var times []int64
	r := &run{cfg: Config{Record: func(e history.Event) error {
		kinds, times = append(kinds, e.Kind), append(times, e.At)
		return nil
	}}}
	p := newWorkerHandle("1.1")
	p.cmd = exec.CommandContext(t.Context(), "sleep", "60")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // it was killed
		r.record(history.Event{Kind: history.KindReturn, At: now(), Worker: p.id})
		close(p.done)
	}()
	r.kill(p)
	if want := []history.Kind{history.KindReturn, history.KindKill}; !slices.Equal(kinds, want) || times[1] >= times[0] {
		t.Errorf("recorded %v at %v, want %v, and the time before the signal", kinds, times, want)
	}
}
