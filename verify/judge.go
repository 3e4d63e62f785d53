package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// Options configure Judge. The zero value uses the defaults.
type Options struct {
	// MinGrants is how many grants there must be for a pass to mean something. Default: 20. A
	// value below 0 means no minimum. Optional.
	MinGrants int
	// Grace is how long a free lock may take to reach a waiter, beyond the TTL and the lag of
	// the backend. Default: 2 s, which suits a machine that has other work too, but not one on
	// which every process waits for a processor. Optional.
	Grace time.Duration
}

// Report is the result of Judge.
type Report struct {
	Verdict Verdict        `json:"verdict"`
	Header  history.Header `json:"run"`
	Checks  []Check        `json:"checks"`
	Counts  Counts         `json:"counts"`
	Waits   Waits          `json:"waits"`
	// Registers has, for each kind of register, the writes and their results.
	Registers map[string]Writes `json:"registers"`
	// Seconds from the first event to the last.
	Seconds float64 `json:"seconds"`
}

// Counts are the numbers of calls and events of each kind.
type Counts struct {
	Workers  int `json:"workers"`
	Locks    int `json:"locks"`
	Calls    int `json:"calls"`
	Grants   int `json:"grants"`
	Unknown  int `json:"unknown"` // calls without a known outcome
	Kills    int `json:"kills"`
	Freezes  int `json:"freezes"`
	Network  int `json:"network_faults"`
	Losses   int `json:"losses"`
	Releases int `json:"releases"`
}

func (o Options) withDefaults() Options {
	if o.Grace == 0 {
		o.Grace = time.Duration(grace)
	}
	if o.MinGrants == 0 {
		o.MinGrants = 20
	}
	return o
}

// Judge runs every check on a history that is in memory; for one that is being recorded see
// [Referee]. When ctx ends, the search of the model ends, and that check is then inconclusive.
func Judge(ctx context.Context, h *history.History, o Options) *Report {
	o = o.withDefaults()
	t := newTally()
	t.judge(ctx, newGame(h), o)
	return t.report(h.Header, h.Start, h.End, h.Complete, 0, o)
}

// enough checks that enough happened for a pass to mean something.
func enough(n Counts, end int64, complete bool, late, grants int) Check {
	c := newCheck("traffic", "enough happened for the answer to mean something")
	if n.Grants < grants {
		c.open(Finding{At: end, Text: fmt.Sprintf("%d grants; less than %d say nothing", n.Grants, grants)})
	}
	if late > 0 {
		c.open(Finding{At: end, Text: fmt.Sprintf("%d events came after their part of the history was judged", late)})
	}
	if !complete {
		c.open(Finding{At: end, Text: "the recording was cut short"})
	}
	c.Summary = fmt.Sprintf("%d calls, %d grants, %d of unknown outcome; %d kills, %d freezes, %d network faults",
		n.Calls, n.Grants, n.Unknown, n.Kills, n.Freezes, n.Network)
	return c
}

// count counts the calls and events of a game.
func (g *game) count(t *tally) {
	n := &t.counts
	n.Calls += len(g.h.Ops)
	for i := range g.h.Ops {
		o := &g.h.Ops[i]
		t.workers[o.Worker] = true
		if o.Granted() {
			n.Grants++
		}
		if o.Outcome == history.Unknown {
			n.Unknown++
		}
		if o.Verb == history.VerbRelease && o.Outcome == history.OK {
			n.Releases++
		}
	}
	for _, e := range g.h.Events {
		switch e.Kind { //nolint:exhaustive // the others are not counted
		case history.KindKill:
			if e.Text == "" { // of a process
				n.Kills++
			}
		case history.KindFreeze:
			n.Freezes++
		case history.KindFault:
			n.Network++
		case history.KindLost:
			n.Losses++
		}
	}
}
