package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

const (
	// calm is how long a lock must be unused, by the clock of the workers, before its part of
	// the history is judged, beyond the life of a lease.
	calm = 2 * grace
	// every is how often the referee searches for parts that can be judged.
	every = int64(250 * time.Millisecond)
	// waiting is how many parts are queued for the judge; a recorder that is faster has to
	// wait.
	waiting = 256
	// maxEvidence bounds the calls and events that are kept of locks with findings.
	maxEvidence = 400_000
	// maxSample bounds the calls and events that are kept of other locks, the last ones.
	maxSample = 20_000
)

// Referee judges a history while it is recorded, and keeps only a window of it. The part of a
// lock is judged, and then dropped, when the lock has not been used for a while and every lease
// of it has ended. The verdict is that of [Judge] on the whole history.
//
// Each worker has to report in the order of its own events, apart from those of acquisitions
// that have not ended, and often: the window begins where the slowest worker is. See
// [history.KindTick].
//
// Its methods are safe for concurrent use. Report ends the referee, and has to be called.
type Referee struct {
	o     Options
	ctx   context.Context //nolint:containedctx // of the judge, which ends with Report
	parts chan *game
	idle  chan struct{} // closed when the judge has ended

	mu     sync.Mutex
	window window
	closed bool

	tally    *tally // the judge's, and Report's when the judge has ended
	evidence evidence
}

// window is the part of the history that is not judged yet.
type window struct {
	header     history.Header
	begun      bool
	complete   bool
	start, end int64
	field      *field
	locks      map[string]*part
	calls      map[callID]call // calls that have not returned
	acqs       map[string]*part
	heard      map[string]int64  // when each running worker was last heard of
	searched   int64             // until when the search for parts has come
	late       int               // events that came after their part was judged
	tops       map[string]uint64 // the highest token of each lock that was judged
	events     []history.Event   // of processes
}

type callID struct {
	worker string
	op     int64
}

type call struct {
	*part
	n int // in ops
}

// part is what is kept of a lock.
type part struct {
	ops    []history.Op
	events []history.Event
	last   int64
}

// NewReferee returns a referee. found, if not nil, is called for each finding when it is made,
// from one goroutine, and must not block for long. ctx bounds the search of the model, as in
// [Judge].
func NewReferee(ctx context.Context, o Options, found func(check string, f Finding)) *Referee {
	r := &Referee{
		o: o.withDefaults(), ctx: ctx, parts: make(chan *game, waiting), idle: make(chan struct{}), tally: newTally(),
		window: window{
			field: newField(), locks: make(map[string]*part), calls: make(map[callID]call),
			acqs: make(map[string]*part), heard: make(map[string]int64), tops: make(map[string]uint64),
		},
	}
	if found != nil {
		for _, c := range r.tally.checks() {
			c.notify = found
		}
	}
	go r.judge()
	return r
}

// Add adds the next event. It blocks while the judge is behind.
//
// Errors: an error of kind [history.ErrFormat] for an impossible event: no header at the start,
// or a second one, a return without its call or before it, a call number or an acquisition used
// twice.
func (r *Referee) Add(e history.Event) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return errors.New("verify: an event after the report")
	}
	err := r.window.add(e)
	var ready []*game
	if err == nil {
		ready = r.ready()
	}
	r.mu.Unlock()
	for _, g := range ready {
		r.parts <- g
	}
	if err != nil {
		return fmt.Errorf("%w: %w", history.ErrFormat, err)
	}
	return nil
}

func (w *window) add(e history.Event) error {
	if !w.begun {
		if e.Kind != history.KindHeader || e.Header == nil {
			return errors.New("the first event is not a header")
		}
		w.begun, w.header, w.start, w.end = true, *e.Header, e.At, e.At
		return nil
	}
	w.start, w.end = min(w.start, e.At), max(w.end, e.At)
	defer w.hear(&e) // when the field knows the process of the event
	switch e.Kind {  //nolint:exhaustive // the others are about processes
	case history.KindHeader:
		return errors.New("a second header")
	case history.KindFooter:
		w.complete = true
	case history.KindCall:
		return w.call(e)
	case history.KindReturn:
		return w.ret(e)
	case history.KindRead, history.KindWrite:
		w.part(e.Lock).add(e)
	case history.KindHeld, history.KindLost:
		if p := w.acqs[e.Acq]; p != nil {
			p.add(e)
		} else {
			w.late++
		}
	case history.KindTick:
	default:
		w.field.add(&e)
		w.events = append(w.events, e)
	}
	return nil
}

// hear records how far a worker's own report has come.
func (w *window) hear(e *history.Event) {
	switch e.Kind { //nolint:exhaustive // the others come from the worker
	case history.KindKill, history.KindEnd:
		maps.DeleteFunc(w.heard, func(worker string, _ int64) bool { return worker == e.Worker || w.field.inside[worker] == e.Worker })
	case history.KindFreeze, history.KindThaw, history.KindFault, history.KindHeal, history.KindRead, history.KindWrite:
	default:
		if e.Worker != "" && w.field.running(e.Worker) {
			w.heard[e.Worker] = max(w.heard[e.Worker], e.At)
		}
	}
}

func (w *window) part(lock string) *part {
	p := w.locks[lock]
	if p == nil {
		p = &part{}
		w.locks[lock] = p
	}
	return p
}

func (p *part) add(e history.Event) {
	p.events = append(p.events, e)
	p.last = max(p.last, e.At)
}

func (w *window) call(e history.Event) error {
	id := callID{e.Worker, e.Op}
	if _, twice := w.calls[id]; twice {
		return fmt.Errorf("call %d of worker %q is there twice", e.Op, e.Worker)
	}
	p := w.part(e.Lock)
	o := history.Op{Event: e, Return: history.Infinity}
	o.Outcome = history.Unknown
	if o.Acquires() {
		if w.acqs[e.Acq] != nil {
			return fmt.Errorf("acquisition %q is there twice", e.Acq)
		}
		w.acqs[e.Acq] = p
	} else if w.acqs[e.Acq] == nil {
		w.late++
	}
	w.calls[id] = call{p, len(p.ops)}
	p.ops = append(p.ops, o)
	p.last = max(p.last, e.At)
	return nil
}

func (w *window) ret(e history.Event) error {
	id := callID{e.Worker, e.Op}
	c, ok := w.calls[id]
	if !ok {
		return fmt.Errorf("return %d of worker %q without its call", e.Op, e.Worker)
	}
	o := &c.ops[c.n]
	if e.At < o.At {
		return fmt.Errorf("return %d of worker %q is before its call", e.Op, e.Worker)
	}
	delete(w.calls, id)
	o.Return, o.Outcome, o.Token, o.Deadline, o.Text, o.Told = e.At, e.Outcome, e.Token, e.Deadline, e.Text, e.Told
	c.last = max(c.last, e.At)
	return nil
}

// ready takes out the parts that can be judged, at intervals.
func (r *Referee) ready() []*game {
	w := &r.window
	now := w.watermark()
	if now < w.searched+every {
		return nil
	}
	w.searched = now
	life := w.header.SessionTTL + w.header.ExpiryLag
	var out []*game
	for name, p := range w.locks {
		if p.last < now-life-calm && w.settled(p) {
			out = append(out, r.take(name, p))
		}
	}
	return out
}

// watermark returns the time up to which every running worker has reported.
func (w *window) watermark() int64 {
	now := w.end
	for _, at := range w.heard {
		now = min(now, at)
	}
	return now
}

// settled reports whether the lock is free, as far as the workers know: each call has returned,
// and each lease was released or lost, or its worker has ended.
func (w *window) settled(p *part) bool {
	over := make(map[string]bool)
	for i := range p.ops {
		if o := &p.ops[i]; o.Return != history.Infinity && o.Verb == history.VerbRelease {
			over[o.Acq] = true
		}
	}
	for i := range p.events {
		if e := &p.events[i]; e.Kind == history.KindLost {
			over[e.Acq] = true
		}
	}
	for i := range p.ops {
		o := &p.ops[i]
		open := o.Return == history.Infinity || o.Granted() && !over[o.Acq]
		if open && w.field.running(o.Worker) {
			return false
		}
	}
	return true
}

// take makes a game of a part and drops the part, but keeps its highest token.
func (r *Referee) take(name string, p *part) *game {
	w := &r.window
	delete(w.locks, name)
	byCall := func(a, b history.Op) int { return cmp.Compare(a.At, b.At) }
	byTime := func(a, b history.Event) int { return cmp.Compare(a.At, b.At) }
	slices.SortStableFunc(p.ops, byCall)
	slices.SortStableFunc(p.events, byTime)
	h := &history.History{Header: w.header, Complete: true, Ops: p.ops, Events: p.events, Start: w.start, End: w.end}
	from, top := p.last, w.tops[name]
	for i := range p.ops {
		o := &p.ops[i]
		from = min(from, o.At)
		if o.Acquires() {
			delete(w.acqs, o.Acq)
		}
		if o.Return == history.Infinity {
			delete(w.calls, callID{o.Worker, o.Op})
		}
		if o.Granted() {
			top = max(top, o.Token)
		}
	}
	g := w.field.game(h, from)
	g.floor = w.tops[name]
	w.tops[name] = top
	return g
}

// judge judges parts, one after the other.
func (r *Referee) judge() {
	defer close(r.idle)
	for g := range r.parts {
		before := r.tally.found()
		r.tally.judge(r.ctx, g, r.o)
		r.evidence.keep(g.h, r.tally.found() > before)
	}
}

// Report judges the rest and returns the report. It must not be called twice.
func (r *Referee) Report() *Report {
	r.mu.Lock()
	r.closed = true
	w := &r.window
	var rest []*game
	for _, name := range slices.Sorted(maps.Keys(w.locks)) {
		rest = append(rest, r.take(name, w.locks[name]))
	}
	r.mu.Unlock()
	for _, g := range rest {
		r.parts <- g
	}
	close(r.parts)
	<-r.idle
	of := &history.History{Header: w.header, Complete: true, Events: w.events, Start: w.start, End: w.end}
	r.tally.judge(r.ctx, w.field.game(of, w.start), r.o) // the events that belong to no lock
	return r.tally.report(w.header, w.start, w.end, w.complete, w.late, r.o)
}

// Evidence returns a history of the locks with findings or, if there are none, of the locks
// that were judged last, with the events of all processes. It is available after Report.
func (r *Referee) Evidence() *history.History {
	w := &r.window
	h := &history.History{Header: w.header, Complete: w.complete, Start: w.start, End: w.end, Events: slices.Clone(w.events)}
	parts := r.evidence.bad
	if len(parts) == 0 {
		parts = r.evidence.sample
	}
	for _, p := range parts {
		h.Ops = append(h.Ops, p.Ops...)
		h.Events = append(h.Events, p.Events...)
	}
	slices.SortStableFunc(h.Ops, func(a, b history.Op) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(h.Events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	return h
}

// evidence is what is kept of the judged parts.
type evidence struct {
	bad, sample    []*history.History
	heavy, sampled int // how many calls and events they have
}

func (v *evidence) keep(h *history.History, bad bool) {
	n := len(h.Ops) + len(h.Events)
	if bad {
		if v.heavy == 0 || v.heavy+n <= maxEvidence {
			v.bad, v.heavy = append(v.bad, h), v.heavy+n
		}
		return
	}
	v.sample, v.sampled = append(v.sample, h), v.sampled+n
	for v.sampled > maxSample && len(v.sample) > 1 {
		v.sampled -= len(v.sample[0].Ops) + len(v.sample[0].Events)
		v.sample = slices.Delete(v.sample, 0, 1)
	}
}
