//go:build unix

package runner

import (
	"bytes"
	"context"
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
