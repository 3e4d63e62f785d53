package verify

import (
	"slices"

	"github.com/holdfast-io/holdfast/verify/history"
)

// process is one life of a worker.
type process struct {
	frozen []interval
	stalls []interval
	faults []interval // of the network, for this worker, and times without an answer
	gone   int64      // when it was killed, or ended in order; Infinity while it lives
	killed bool
}

// field has what is known of the workers and of the faults, for all locks. Its lists only grow,
// in the order of the ends of the intervals, so that games may share them.
type field struct {
	procs  map[string]*process
	all    []interval // faults for all workers: of the network, of the servers, and of a busy machine
	faults map[faultID]int64
	frozen map[string]int64
	inside map[string]string // the process of a worker that is not a process itself
}

// faultID identifies a fault that has begun. worker is empty for a fault of all workers.
type faultID struct{ worker, text string }

func newField() *field {
	return &field{procs: make(map[string]*process), faults: make(map[faultID]int64), frozen: make(map[string]int64), inside: make(map[string]string)}
}

func (f *field) process(worker string) *process {
	p, ok := f.procs[worker]
	if !ok {
		p = &process{gone: history.Infinity}
		f.procs[worker] = p
	}
	return p
}

// add adds an event. Events about locks change nothing.
func (f *field) add(e *history.Event) {
	id := faultID{e.Worker, e.Text}
	switch e.Kind { //nolint:exhaustive // the others are not about processes
	case history.KindFault:
		f.heal(id, e.At)
		f.faults[id] = e.At
	case history.KindHeal:
		f.heal(id, e.At)
	case history.KindStart:
		if e.In != "" {
			f.inside[e.Worker] = e.In
		}
	case history.KindFreeze:
		f.frozen[e.Worker] = e.At
	case history.KindThaw:
		if from, ok := f.frozen[e.Worker]; ok {
			p := f.process(e.Worker)
			p.frozen = append(p.frozen, interval{from, e.At})
			delete(f.frozen, e.Worker)
		}
	case history.KindStall:
		p := f.process(e.Worker)
		p.stalls = append(p.stalls, interval{e.At - e.Took, e.At})
	case history.KindSilence:
		f.silence(e.Worker, interval{e.At - e.Took, e.At})
	case history.KindKill, history.KindEnd:
		p := f.process(e.Worker)
		p.gone = min(p.gone, e.At)
		p.killed = p.killed || e.Kind == history.KindKill
	}
}

// silence adds a time in which the backend did not answer a worker. One that had no fault of its own
// shows that the backend was slow for all.
func (f *field) silence(worker string, span interval) {
	list := &f.all
	for _, name := range []string{worker, f.inside[worker]} {
		if p := f.procs[name]; name != "" && p != nil && f.faulty(name, p, span) {
			list = &f.process(worker).faults
		}
	}
	*list = append(*list, span)
}

// faulty reports whether a worker had a fault at that time, or shortly before, or has ended.
func (f *field) faulty(worker string, p *process, span interval) bool {
	if _, frozen := f.frozen[worker]; frozen || p.gone != history.Infinity {
		return true
	}
	for id := range f.faults {
		if id.worker == worker {
			return true
		}
	}
	for _, list := range [][]interval{p.frozen, p.faults} {
		if n := len(list); n > 0 && add(list[n-1].until, grace) > span.from {
			return true
		}
	}
	return false
}

func (f *field) heal(id faultID, until int64) {
	from, ok := f.faults[id]
	if !ok {
		return
	}
	delete(f.faults, id)
	if id.worker == "" {
		f.all = append(f.all, interval{from, until})
		return
	}
	p := f.process(id.worker)
	p.faults = append(p.faults, interval{from, until})
}

// game makes a game of a history in which nothing is earlier than from. A fault that has not
// ended lasts until the end of the history. A worker that was not seen to run again is stopped
// for ever.
func (f *field) game(h *history.History, from int64) *game {
	g := &game{
		h: h, acqs: make(map[string]*acquisition), locks: make(map[string][]*acquisition),
		procs: make(map[string]*process, len(f.procs)), all: since(f.all, from),
	}
	for id, begun := range f.faults {
		if id.worker == "" {
			g.all = append(g.all, interval{begun, h.End})
		}
	}
	process := func(worker string) *process {
		p, ok := g.procs[worker]
		if !ok {
			p = f.view(worker, from, h.End)
			g.procs[worker] = p
		}
		return p
	}
	for worker, p := range f.procs {
		if p.gone >= from-2*grace && f.inside[worker] == "" { // the others are added when they have a call
			process(worker)
		}
	}
	g.order(process)
	return g
}

// view returns the part of a worker's faults that matters from a time on.
func (f *field) view(worker string, from, end int64) *process {
	v := &process{gone: history.Infinity}
	for _, name := range []string{worker, f.inside[worker]} {
		p := f.procs[name]
		if name == "" || p == nil {
			continue
		}
		v.frozen = slices.Concat(v.frozen, since(p.frozen, from))
		v.stalls = slices.Concat(v.stalls, since(p.stalls, from))
		v.faults = slices.Concat(v.faults, since(p.faults, from))
		if p.gone < v.gone {
			v.gone, v.killed = p.gone, p.killed
		}
		if begun, ok := f.frozen[name]; ok {
			v.frozen = append(v.frozen, interval{begun, history.Infinity})
		}
		for id, begun := range f.faults {
			if id.worker == name {
				v.faults = append(v.faults, interval{begun, end})
			}
		}
	}
	return v
}

// since returns the end of a list: the intervals that reach beyond a time, with a margin for
// their aftermath. Appending to it does not change the list.
func since(list []interval, from int64) []interval {
	n, _ := slices.BinarySearchFunc(list, from-2*grace, func(i interval, t int64) int {
		if i.until < t {
			return -1
		}
		return 1
	})
	return slices.Clip(list[n:])
}

// running reports whether a worker may still report events.
func (f *field) running(worker string) bool {
	for _, name := range []string{worker, f.inside[worker]} {
		if p := f.procs[name]; p != nil && p.gone != history.Infinity {
			return false
		}
	}
	return true
}
