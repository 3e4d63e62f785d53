package verify

import (
	"cmp"
	"slices"

	"github.com/holdfast-io/holdfast/verify/history"
)

// game is a history, ordered by lock and acquisition.
type game struct {
	h      *history.History
	acqs   map[string]*acquisition
	locks  map[string][]*acquisition // in the order of their calls
	procs  map[string]*process
	all    []interval // faults of the network for all workers
	stalls []interval // of all processes, with an empty one at the end; nil: not computed yet
	names  []string   // of the locks, in order
	floor  uint64     // the highest token that was judged before for the lock
}

// acquisition is one acquire with all calls and events on its lease.
type acquisition struct {
	*history.Op
	proc *process
	// held are the moments at which the worker knew that it held the lock, each with the
	// deadline that it knew at that moment.
	held []moment
	// ends are the calls that release the lease, in order.
	ends []*history.Op
	lost *history.Event
	ops  []*history.Op // on the lease, by the client and past it; without the acquire
}

type moment struct{ at, deadline int64 }

// interval is half open: it does not contain until.
type interval struct{ from, until int64 }

func (i interval) empty() bool { return i.until <= i.from }

func (i interval) meets(j interval) bool {
	return i.from < j.until && j.from < i.until
}

// newGame makes a game of a whole history.
func newGame(h *history.History) *game {
	f := newField()
	for i := range h.Events {
		f.add(&h.Events[i])
	}
	return f.game(h, h.Start)
}

// order assigns the calls and events to locks and acquisitions.
func (g *game) order(process func(worker string) *process) {
	for i := range g.h.Ops {
		o := &g.h.Ops[i]
		if o.Acquires() {
			a := &acquisition{Op: o, proc: process(o.Worker)}
			if o.Granted() {
				a.held = append(a.held, moment{o.Return, o.Deadline})
			}
			g.acqs[o.Acq] = a
			g.locks[o.Lock] = append(g.locks[o.Lock], a)
		}
	}
	for i := range g.h.Ops {
		g.follow(&g.h.Ops[i])
	}
	for i := range g.h.Events {
		g.learn(&g.h.Events[i])
	}
	for _, a := range g.acqs {
		slices.SortFunc(a.held, func(x, y moment) int { return cmp.Compare(x.at, y.at) })
	}
	for name := range g.locks {
		g.names = append(g.names, name)
	}
	slices.Sort(g.names)
}

// follow adds a call to its acquisition.
func (g *game) follow(o *history.Op) {
	a, ok := g.acqs[o.Acq]
	if !ok || o.Acquires() {
		return
	}
	a.ops = append(a.ops, o)
	switch o.Verb { //nolint:exhaustive // acquires do not matter here
	case history.VerbRelease:
		a.ends = append(a.ends, o)
	case history.VerbRenew:
		if o.Outcome == history.OK {
			a.held = append(a.held, moment{o.Return, o.Deadline})
		}
	}
}

func (g *game) learn(e *history.Event) {
	a, ok := g.acqs[e.Acq]
	if !ok {
		return
	}
	switch e.Kind { //nolint:exhaustive // only these change what a worker believes
	case history.KindHeld:
		a.held = append(a.held, moment{e.At, e.Deadline})
	case history.KindLost:
		if a.lost == nil {
			a.lost = e
		}
	}
}

// over returns when the worker ceased to believe, apart from deadlines: it released the lock,
// was told of its loss, or ended.
func (a *acquisition) over() int64 {
	t := a.proc.gone
	if len(a.ends) > 0 {
		t = min(t, a.ends[0].Call())
	}
	if a.lost != nil {
		t = min(t, a.lost.At)
	}
	return t
}

// deadline returns the latest deadline that the worker was told.
func (a *acquisition) deadline() int64 {
	var d int64
	for _, m := range a.held {
		d = max(d, m.deadline)
	}
	return d
}

// beliefs returns the times when the worker surely believed that it held the lock. They may
// touch. A lock that is held at one moment and at a later one was held in between: a lost lease
// never comes back.
func (a *acquisition) beliefs() []interval {
	over := a.over()
	var out []interval
	for i, m := range a.held {
		b := interval{m.at, min(m.deadline, over)}
		if i+1 < len(a.held) {
			b.until = min(over, max(b.until, a.held[i+1].at))
		}
		for _, f := range a.proc.frozen {
			if f.from <= m.at && m.at < f.until {
				b.until = b.from // it ran a little after it was told to stop
			} else if m.at < f.from {
				b.until = min(b.until, f.from)
			}
		}
		if n := len(out); n > 0 && b.from <= out[n-1].until {
			out[n-1].until = max(out[n-1].until, b.until)
		} else if !b.empty() {
			out = append(out, b)
		}
	}
	return out
}
