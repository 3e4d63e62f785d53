package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

// Options of Judge. The zero value is good.
type Options struct {
	// ModelTime bounds the search of the model check for each lock. Default: 10 s.
	// Optional.
	ModelTime time.Duration
	// MinGrants is how many grants there must be for a pass to mean something. Default:
	// 20. Below 0: none. Optional.
	MinGrants int
}

// Report is what Judge says.
type Report struct {
	Verdict Verdict        `json:"verdict"`
	Header  history.Header `json:"run"`
	Checks  []Check        `json:"checks"`
	Counts  Counts         `json:"counts"`
	Waits   Waits          `json:"waits"`
	// Registers by their kind: what writes came, and what became of them.
	Registers map[string]Writes `json:"registers"`
	// Seconds from the first event to the last.
	Seconds float64 `json:"seconds"`
}

// Counts is how much happened.
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

// Judge looks at a history with every checker. ctx ends the model check, which is
// inconclusive then; the others are quick.
func Judge(ctx context.Context, h *history.History, o Options) *Report {
	if o.ModelTime == 0 {
		o.ModelTime = 10 * time.Second
	}
	if o.MinGrants == 0 {
		o.MinGrants = 20
	}
	g := newGame(h)
	r := &Report{Verdict: Pass, Header: h.Header, Counts: g.counts(), Seconds: float64(h.End-h.Start) / 1e9}
	register, writes := g.registers()
	liveness, waits := g.liveness()
	r.Registers, r.Waits = writes, waits
	r.Checks = []Check{g.overlap(), g.tokens(), register, g.model(ctx, o.ModelTime), liveness, g.losses(), g.rest(), g.enough(o.MinGrants)}
	for _, c := range r.Checks {
		r.Verdict = r.Verdict.and(c.Verdict)
	}
	return r
}

// enough asks whether a pass would mean anything.
func (g *game) enough(grants int) Check {
	c := newCheck("traffic", "enough happened for the answer to mean something")
	n := g.counts()
	if n.Grants < grants {
		c.open(Finding{At: g.h.End, Text: fmt.Sprintf("%d grants; less than %d say nothing", n.Grants, grants)})
	}
	if !g.h.Complete {
		c.open(Finding{At: g.h.End, Text: "the recording was cut short"})
	}
	c.Summary = fmt.Sprintf("%d calls, %d grants, %d of unknown outcome; %d kills, %d freezes, %d network faults",
		n.Calls, n.Grants, n.Unknown, n.Kills, n.Freezes, n.Network)
	return c
}

func (g *game) counts() Counts {
	n := Counts{Locks: len(g.names), Calls: len(g.h.Ops)}
	workers := make(map[string]bool)
	for i := range g.h.Ops {
		o := &g.h.Ops[i]
		workers[o.Worker] = true
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
	n.Workers = len(workers)
	for _, e := range g.h.Events {
		switch e.Kind { //nolint:exhaustive // the others are not counted
		case history.KindKill:
			n.Kills++
		case history.KindFreeze:
			n.Freezes++
		case history.KindFault:
			n.Network++
		case history.KindLost:
			n.Losses++
		}
	}
	return n
}
