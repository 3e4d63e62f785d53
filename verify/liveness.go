package verify

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

const (
	// grace is how long a hand-over may take beyond the TTL and the lag of the backend,
	// on a machine that does other things too.
	grace = int64(2 * time.Second)
	// lateLoss is how long after its deadline a holder may be told, while its process runs.
	lateLoss = int64(50 * time.Millisecond)
)

// Waits are how long those waited who were granted the lock at last.
type Waits struct {
	Granted int `json:"granted"`
	// Median, P99 and Max of the time from the call to the grant, in nanoseconds, of
	// exclusive acquires that waited in line.
	Median int64 `json:"median"`
	P99    int64 `json:"p99"`
	Max    int64 `json:"max"`
	// Idle is the longest time that a lock was free, as far as is known, while a worker
	// without a fault waited for it, in nanoseconds.
	Idle int64 `json:"idle"`
	// Fairness is Jain's index over the grants of each worker: 1 when all had the same.
	Fairness float64 `json:"fairness"`
}

// liveness finds waiters that a free lock did not go to.
func (g *game) liveness() (Check, Waits) {
	c := newCheck("liveness", "a free lock goes to who waits for it")
	var w Waits
	var times []int64
	slack := g.h.Header.SessionTTL + g.h.Header.ExpiryLag
	bound := slack + grace
	for _, name := range g.names {
		held := g.heldTimes(name, slack)
		for _, a := range g.locks[name] {
			if a.Verb != history.VerbAcquire {
				continue
			}
			if a.Granted() && !a.Shared {
				times = append(times, a.Return-a.Call())
			}
			idle, at := longest(g.waited(a), slices.Concat(g.others(held, a), g.excuses(a)))
			w.Idle = max(w.Idle, idle)
			if idle > bound {
				c.violated(Finding{
					Lock: name, At: at, Until: at + idle, Acqs: []string{a.Acq},
					Text: fmt.Sprintf("worker %s waited for %q while nobody had it: %.2f s, %s; the bound is %.2f s",
						a.Worker, name, float64(idle)/1e9, g.span(at, at+idle), float64(bound)/1e9),
				})
			}
		}
	}
	slices.Sort(times)
	if n := len(times); n > 0 {
		w.Granted, w.Median, w.P99, w.Max = n, times[n/2], times[min(n-1, n*99/100)], times[n-1]
	}
	w.Fairness = g.fairness()
	c.Summary = fmt.Sprintf("longest wait for a free lock %.0f ms; waits %.1f ms in the middle, %.0f ms at most; fairness %.2f",
		float64(w.Idle)/1e6, float64(w.Median)/1e6, float64(w.Max)/1e6, w.Fairness)
	return c, w
}

// waited is when the worker stood in line and was there to be served.
func (g *game) waited(a *acquisition) interval {
	return interval{a.Call(), min(a.Return, a.proc.gone, g.h.End)}
}

// taken is when a lock may have been with an acquisition.
type taken struct {
	interval
	*acquisition
}

// heldTimes are generous: until its end is known, a lease may be out.
func (g *game) heldTimes(name string, slack int64) []taken {
	var out []taken
	for _, a := range g.locks[name] {
		out = append(out, taken{g.heldTime(a, slack), a})
	}
	return out
}

func (g *game) heldTime(a *acquisition, slack int64) interval {
	if !a.Granted() {
		if a.Verb == history.VerbTry && a.Outcome == history.Held {
			return interval{}
		}
		// It was granted, if it was, when the worker could not be told, or just when it
		// gave up. A worker without faults that was granted the lock and not told has no
		// excuse.
		end := min(a.Return, a.proc.gone)
		if t, faulty := g.trouble(a, a.Call(), end); faulty {
			return interval{a.Call(), t + slack}
		}
		if end == history.Infinity {
			return interval{}
		}
		if a.proc.gone < a.Return { // it died or ended in line: C8
			return interval{end, end + slack}
		}
		return interval{end, end + grace/2}
	}
	from := a.Return
	if _, faulty := g.trouble(a, a.Call(), a.Return); faulty {
		from = a.Call()
	}
	for _, o := range a.ends {
		if o.Outcome == history.OK {
			return interval{from, o.Return}
		}
	}
	over := a.over()
	if over == history.Infinity {
		if a.TTL == 0 {
			return interval{from, history.Infinity} // it holds it still
		}
		over = a.deadline()
	}
	// The last renewal may have left just before, and it may have been on its way for as
	// long as a fault kept it.
	end := max(over, a.deadline())
	t, _ := g.trouble(a, a.Call(), end)
	return interval{from, max(end, t) + max(slack, a.TTL+g.h.Header.ExpiryLag)}
}

// trouble is the end of the last fault of the worker's that touches the time from from to
// until.
func (g *game) trouble(a *acquisition, from, until int64) (int64, bool) {
	span := interval{from, until}
	end, found := until, false
	for _, list := range [][]interval{a.proc.frozen, a.proc.faults, g.all} {
		for _, f := range list {
			if f.meets(span) {
				end, found = max(end, min(f.until, g.h.End)), true
			}
		}
	}
	return end, found
}

// others are the times of all but one.
func (g *game) others(held []taken, a *acquisition) []interval {
	var out []interval
	for _, t := range held {
		if t.acquisition != a {
			out = append(out, t.interval)
		}
	}
	return out
}

// excuses are times in which the worker could not be served, with what it takes to find
// the way back.
func (g *game) excuses(a *acquisition) []interval {
	out := slices.Clone(a.proc.stalls)
	for _, f := range a.proc.frozen {
		out = append(out, interval{f.from, add(f.until, grace)})
	}
	for _, list := range [][]interval{a.proc.faults, g.all} {
		for _, f := range list {
			out = append(out, interval{f.from, add(f.until, grace)})
		}
	}
	return out
}

func add(t, d int64) int64 {
	if t > history.Infinity-d {
		return history.Infinity
	}
	return t + d
}

// longest finds the longest piece of whole that no part covers: its length and where it
// begins.
func longest(whole interval, parts []interval) (int64, int64) {
	slices.SortFunc(parts, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	at, best, where := whole.from, int64(0), whole.from
	look := func(until int64) {
		if d := min(until, whole.until) - at; d > best {
			best, where = d, at
		}
	}
	for _, p := range parts {
		if p.empty() {
			continue
		}
		if p.from > at {
			look(p.from)
		}
		at = max(at, p.until)
		if at >= whole.until {
			return best, where
		}
	}
	look(whole.until)
	return best, where
}

// fairness is Jain's index over the grants of each worker, whichever life it was in.
func (g *game) fairness() float64 {
	grants := make(map[string]float64)
	for i := range g.h.Ops {
		o := &g.h.Ops[i]
		if o.Verb == history.VerbAcquire {
			worker, _, _ := cutLast(o.Worker)
			n := 0.0
			if o.Outcome == history.OK {
				n = 1
			}
			grants[worker] += n
		}
	}
	var sum, squares float64
	for _, n := range grants {
		sum += n
		squares += n * n
	}
	if squares == 0 {
		return 1
	}
	return math.Round(100*sum*sum/(float64(len(grants))*squares)) / 100
}

// cutLast cuts "2.1" into worker and life.
func cutLast(worker string) (string, string, bool) {
	for i := len(worker) - 1; i >= 0; i-- {
		if worker[i] == '.' {
			return worker[:i], worker[i+1:], true
		}
	}
	return worker, "", false
}

// losses finds holders that were told too late that their deadline had passed.
func (g *game) losses() Check {
	c := newCheck("loss", "a holder is told when its lease may be over")
	var n, told int
	var worst int64
	for _, name := range g.names {
		for _, a := range g.locks[name] {
			if a.lost == nil {
				continue
			}
			n++
			if a.lost.Told {
				told++
			}
			late := a.lost.At - a.lost.Deadline
			span := interval{a.lost.Deadline, a.lost.At}
			for _, list := range [][]interval{a.proc.frozen, a.proc.stalls} {
				for _, f := range list {
					if f.meets(span) {
						late -= min(f.until, span.until) - max(f.from, span.from)
						if f.until >= span.until-lateLoss {
							late = 0 // it has only just begun to run again
						}
					}
				}
			}
			worst = max(worst, late)
			if late > lateLoss {
				c.violated(Finding{
					Lock: name, At: a.lost.Deadline, Until: a.lost.At, Acqs: []string{a.Acq},
					Text: fmt.Sprintf("worker %s was told of the loss of %q %.0f ms after its deadline at %s; the bound is 50 ms",
						a.Worker, name, float64(late)/1e6, g.at(a.lost.Deadline)),
				})
			}
		}
	}
	c.Summary = fmt.Sprintf("%d losses, %d told by the backend; at most %.1f ms after the deadline", n, told, float64(worst)/1e6)
	return c
}

// rest finds what was left behind.
func (g *game) rest() Check {
	c := newCheck("rest", "nothing is left behind")
	ended := 0
	for _, e := range g.h.Events {
		switch e.Kind { //nolint:exhaustive // the others leave nothing
		case history.KindLeft:
			c.violated(Finding{Lock: e.Lock, At: e.At, Text: fmt.Sprintf("after all workers had ended and their time was over, %q had: %s", e.Lock, e.Text)})
		case history.KindEnd:
			ended++
			if e.After > e.Before {
				c.violated(Finding{At: e.At, Text: fmt.Sprintf("worker %s began with %d goroutines and ended with %d: %s", e.Worker, e.Before, e.After, e.Text)})
			}
		}
	}
	c.Summary = fmt.Sprintf("%d workers ended in order, %d things left", ended, c.Found)
	return c
}
