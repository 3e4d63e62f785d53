package verify

import (
	"cmp"
	"slices"

	"github.com/holdfast-io/holdfast/verify/history"
)

// game is a history, ordered by who did what to which lock.
type game struct {
	h     *history.History
	acqs  map[string]*acquisition
	locks map[string][]*acquisition // in the order of their calls
	procs map[string]*process
	all   []interval // faults of the network that were for all workers
	names []string   // of the locks, in order
}

// acquisition is one acquire with all that was done with its lease.
type acquisition struct {
	*history.Op
	proc *process
	// held are the moments at which the worker knew that it held the lock, each with the
	// deadline that it knew of then.
	held []moment
	// ends are the calls that give the lease back, in order.
	ends []*history.Op
	lost *history.Event
	ops  []*history.Op // on the lease, by the client and past it; the acquire is not among them
}

type moment struct{ at, deadline int64 }

// interval is half open: until is not part of it.
type interval struct{ from, until int64 }

func (i interval) empty() bool { return i.until <= i.from }

func (i interval) meets(j interval) bool {
	return i.from < j.until && j.from < i.until
}

// process is one life of a worker.
type process struct {
	frozen []interval
	stalls []interval
	faults []interval // of the network, for this worker
	gone   int64      // killed, or ended in order; Infinity while it lives
	killed bool
}

func newGame(h *history.History) *game {
	g := &game{
		h: h, acqs: make(map[string]*acquisition), locks: make(map[string][]*acquisition),
		procs: make(map[string]*process),
	}
	g.processes()
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Acquires() {
			a := &acquisition{Op: o, proc: g.process(o.Worker)}
			if o.Granted() {
				a.held = append(a.held, moment{o.Return, o.Deadline})
			}
			g.acqs[o.Acq] = a
			g.locks[o.Lock] = append(g.locks[o.Lock], a)
		}
	}
	for i := range h.Ops {
		g.follow(&h.Ops[i])
	}
	for i := range h.Events {
		g.learn(&h.Events[i])
	}
	for _, a := range g.acqs {
		slices.SortFunc(a.held, func(x, y moment) int { return cmp.Compare(x.at, y.at) })
	}
	for name := range g.locks {
		g.names = append(g.names, name)
	}
	slices.Sort(g.names)
	return g
}

func (g *game) process(worker string) *process {
	p, ok := g.procs[worker]
	if !ok {
		p = &process{gone: history.Infinity}
		g.procs[worker] = p
	}
	return p
}

// processes reads when each worker ran, and which faults it had.
func (g *game) processes() {
	type key struct{ worker, text string }
	faults := make(map[key]int64)
	frozen := make(map[string]int64)
	ended := func(k key, until int64) {
		from, ok := faults[k]
		if !ok {
			return
		}
		delete(faults, k)
		if k.worker == "" {
			g.all = append(g.all, interval{from, until})
			return
		}
		p := g.process(k.worker)
		p.faults = append(p.faults, interval{from, until})
	}
	for _, e := range g.h.Events {
		k := key{e.Worker, e.Text}
		switch e.Kind { //nolint:exhaustive // the others say nothing of processes
		case history.KindFault:
			ended(k, e.At)
			faults[k] = e.At
		case history.KindHeal:
			ended(k, e.At)
		case history.KindFreeze:
			frozen[e.Worker] = e.At
		case history.KindThaw:
			if from, ok := frozen[e.Worker]; ok {
				p := g.process(e.Worker)
				p.frozen = append(p.frozen, interval{from, e.At})
				delete(frozen, e.Worker)
			}
		case history.KindStall:
			p := g.process(e.Worker)
			p.stalls = append(p.stalls, interval{e.At - e.Took, e.At})
		case history.KindKill, history.KindEnd:
			p := g.process(e.Worker)
			p.gone = min(p.gone, e.At)
			p.killed = p.killed || e.Kind == history.KindKill
		}
	}
	for k := range faults {
		ended(k, g.h.End)
	}
	for worker, from := range frozen {
		p := g.process(worker)
		p.frozen = append(p.frozen, interval{from, history.Infinity})
	}
}

// follow adds a call to the acquisition that it is about.
func (g *game) follow(o *history.Op) {
	a, ok := g.acqs[o.Acq]
	if !ok || o.Acquires() {
		return
	}
	a.ops = append(a.ops, o)
	switch o.Verb { //nolint:exhaustive // acquires are no matter here
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
	switch e.Kind { //nolint:exhaustive // only these are about what a worker believes
	case history.KindHeld:
		a.held = append(a.held, moment{e.At, e.Deadline})
	case history.KindLost:
		if a.lost == nil {
			a.lost = e
		}
	}
}

// over is when the worker ceased to believe, apart from deadlines: it gave the lock
// back, was told of its loss, or came to its end.
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

// deadline is the latest one that the worker was told of.
func (a *acquisition) deadline() int64 {
	var d int64
	for _, m := range a.held {
		d = max(d, m.deadline)
	}
	return d
}

// beliefs are when the worker surely believed that it held the lock. They may touch.
func (a *acquisition) beliefs() []interval {
	over := a.over()
	var out []interval
	for _, m := range a.held {
		b := interval{m.at, min(m.deadline, over)}
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
