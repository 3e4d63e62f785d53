package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-io/holdfast/verify/history"
)

// tally has what the checks have found in the games judged so far. A game is judged once. Each
// lock is checked by itself, so the order of the games does not matter.
type tally struct {
	overlap, tokens, register, model, liveness, loss, rest Check

	locks   map[string]bool
	workers map[string]bool
	grants  map[string]float64 // of waiting acquires, by worker
	counts  Counts
	beliefs int
	ordered int // calls in the searches of the model
	ended   int // workers that ended in order

	registers map[string]*registerState // by register and lock
	writes    map[string]Writes

	waits   samples
	idle    int64 // waits that are not longer need no closer check
	longest int64 // for a free lock

	lost, told int
	latest     int64 // report of a loss, after its deadline
}

func newTally() *tally {
	return &tally{
		overlap:  newCheck("overlap", "no two workers held conflicting locks at the same time"),
		tokens:   newCheck("tokens", "tokens are unique and increase"),
		register: newCheck("register", "a resource that checks tokens loses no update"),
		model:    newCheck("model", "there is an order of all calls in which a lock would have given the same answers"),
		liveness: newCheck("liveness", "a free lock is granted to its waiters in time"),
		loss:     newCheck("loss", "a holder is notified when its lease may have ended"),
		rest:     newCheck("rest", "nothing is left behind"),
		locks:    make(map[string]bool), workers: make(map[string]bool), grants: make(map[string]float64),
		registers: make(map[string]*registerState),
		writes:    map[string]Writes{history.Bare: {}, history.Guarded: {}},
	}
}

// checks returns the checks that may find a violation.
func (t *tally) checks() []*Check {
	return []*Check{&t.overlap, &t.tokens, &t.register, &t.model, &t.liveness, &t.loss, &t.rest}
}

// found returns the number of findings so far.
func (t *tally) found() int {
	n := 0
	for _, c := range t.checks() {
		n += c.Found
	}
	return n
}

// judge checks a game. ctx bounds the search of the model.
func (t *tally) judge(ctx context.Context, g *game, o Options) {
	for _, name := range g.names {
		t.locks[name] = true
	}
	g.count(t)
	g.shares(t.grants)
	g.overlap(t)
	g.tokens(t)
	g.registers(t)
	g.model(ctx, t)
	g.liveness(t, o.Grace)
	g.losses(t)
	g.rest(t)
}

// report returns the report. complete is false for a recording that was cut short. late is the
// number of events that could not be judged.
func (t *tally) report(h history.Header, start, end int64, complete bool, late int, o Options) *Report {
	n := t.counts
	n.Locks, n.Workers = len(t.locks), len(t.workers)
	bare, guarded := t.writes[history.Bare], t.writes[history.Guarded]
	t.overlap.Summary = fmt.Sprintf("%d beliefs on %d locks, %d overlaps", t.beliefs, n.Locks, t.overlap.Found)
	t.tokens.Summary = fmt.Sprintf("%d grants, %d faults", n.Grants, t.tokens.Found)
	t.register.Summary = fmt.Sprintf("guarded: %d writes, %d stale, %d stopped, %d updates lost; without the token: %d writes, %d stale, %d updates lost",
		guarded.Sent, guarded.Stale, guarded.Stopped, guarded.LostUpdates, bare.Sent, bare.Stale, bare.LostUpdates)
	t.model.Summary = fmt.Sprintf("%d calls on %d locks, each lock by itself; %d without an order or without an answer", t.ordered, n.Locks, t.model.Found)
	w := t.waits.sum()
	w.Idle, w.Fairness = t.longest, fairness(t.grants)
	t.liveness.Summary = fmt.Sprintf("longest wait for a free lock %.0f ms; median wait %.1f ms, longest wait %.0f ms; fairness %.2f",
		float64(w.Idle)/1e6, float64(w.Median)/1e6, float64(w.Max)/1e6, w.Fairness)
	t.loss.Summary = fmt.Sprintf("%d losses, %d told by the backend; at most %.1f ms after the deadline", t.lost, t.told, float64(t.latest)/1e6)
	t.rest.Summary = fmt.Sprintf("%d workers ended in order, %d things left", t.ended, t.rest.Found)
	r := &Report{Verdict: Pass, Header: h, Counts: n, Waits: w, Registers: t.writes, Seconds: float64(end-start) / 1e9}
	for _, c := range t.checks() {
		r.Checks = append(r.Checks, *c)
	}
	r.Checks = append(r.Checks, enough(n, end, complete, late, o.MinGrants))
	for _, c := range r.Checks {
		r.Verdict = r.Verdict.and(c.Verdict)
	}
	return r
}

// maxSamples bounds the samples that are kept of the waits.
const maxSamples = 1 << 18

// samples are times whose median is wanted. When there are too many, every second one is
// dropped, and from then on only the same share of the new ones is kept.
type samples struct {
	kept    []int64
	all     int
	step    int // one of this many is kept
	longest int64
}

func (s *samples) add(d int64) {
	s.step = max(1, s.step)
	s.longest = max(s.longest, d)
	if s.all++; s.all%s.step != 0 {
		return
	}
	if s.kept = append(s.kept, d); len(s.kept) < maxSamples {
		return
	}
	half := s.kept[:0]
	for i := 0; i < len(s.kept); i += 2 {
		half = append(half, s.kept[i])
	}
	s.kept, s.step = half, 2*s.step
}

func (s *samples) sum() Waits {
	w := Waits{Granted: s.all, Max: s.longest}
	slices.Sort(s.kept)
	if n := len(s.kept); n > 0 {
		w.Median, w.P99 = s.kept[n/2], s.kept[min(n-1, n*99/100)]
	}
	return w
}
