package verify

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

const (
	// grace is how long a hand-over may take beyond the TTL and the lag of the backend, on a
	// machine that has other work too.
	grace = int64(2 * time.Second)
	// farewell is how long a worker that gives up in the queue, without a fault, may have the
	// lock that it was granted at that moment.
	farewell = int64(200 * time.Millisecond)
	// overtaking is how much later than another a call may be made and still enter the queue
	// before it.
	overtaking = int64(time.Second)
	// lateLoss is how long after its deadline a holder may be told of the loss, while its
	// process runs.
	lateLoss = int64(50 * time.Millisecond)
	// lateLossBusy is lateLoss on a machine that is short of processors at that time.
	lateLossBusy = int64(500 * time.Millisecond)
)

// Waits describes the waits that ended with a grant.
type Waits struct {
	Granted int `json:"granted"`
	// Median, P99 and Max of the time from the call to the grant, in nanoseconds, of exclusive
	// acquires that waited in the queue.
	Median int64 `json:"median"`
	P99    int64 `json:"p99"`
	Max    int64 `json:"max"`
	// Idle is the longest time for which a lock was free, as far as is known, while a worker
	// without a fault waited for it, in nanoseconds.
	Idle int64 `json:"idle"`
	// Fairness is Jain's index over the grants of each worker: 1 when all had the same.
	Fairness float64 `json:"fairness"`
}

// liveness finds waiters that did not get a free lock.
func (g *game) liveness(t *tally, grace time.Duration) {
	slack := g.h.Header.SessionTTL + g.h.Header.ExpiryLag
	bound := slack + int64(grace)
	for _, name := range g.names {
		held := g.heldTimes(name, slack)
		for _, a := range g.locks[name] {
			if a.Verb != history.VerbAcquire {
				continue
			}
			if a.Granted() && !a.Shared {
				t.waits.add(a.Return - a.Call())
			}
			waited := g.waited(a)
			if waited.until-waited.from <= t.idle {
				continue // its wait cannot exceed the bound
			}
			hard, soft := g.others(held, a)
			idle, at := longest(waited, slices.Concat(hard, g.excuses(a)), slices.Concat(soft, a.proc.stalls))
			t.idle = max(t.idle, min(idle, bound)) // each wait beyond the bound is a finding
			t.longest = max(t.longest, idle)
			if most := bound + g.starved(interval{at, at + idle}); idle > most {
				t.liveness.violated(Finding{
					Lock: name, At: at, Until: at + idle, Acqs: []string{a.Acq},
					Text: fmt.Sprintf("worker %s waited for %q while no worker held it: %.2f s, %s; the bound is %.2f s",
						a.Worker, name, float64(idle)/1e9, g.span(at, at+idle), float64(most)/1e9),
				})
			}
		}
	}
}

// waited returns when the worker was in the queue and able to receive a grant.
func (g *game) waited(a *acquisition) interval {
	return interval{a.Call(), min(a.Return, a.proc.gone, g.h.End)}
}

// taken is a time for which an acquisition may have had the lock.
type taken struct {
	interval
	*acquisition
	// soft time is subtracted from a wait, and does not split it in two.
	soft bool
	// maybe: the worker was not told of a grant.
	maybe bool
}

// heldTimes returns when the lock may have been held. It is generous: a lease may be held until
// its end is known.
func (g *game) heldTimes(name string, slack int64) []taken {
	var out []taken
	for _, a := range g.locks[name] {
		if a.Granted() {
			out = append(out, taken{interval: g.heldTime(a, slack), acquisition: a})
		}
		out = append(out, g.maybeHeld(a, slack)...)
	}
	return out
}

// maybeHeld returns when an acquisition may have had the lock without its worker's knowledge:
// granted while the worker could not be told, or when it had just given up. A worker without
// faults that was granted the lock and not told has no excuse.
func (g *game) maybeHeld(a *acquisition, slack int64) []taken {
	if a.Verb == history.VerbTry && a.Outcome == history.Held {
		return nil
	}
	var out []taken
	end := min(a.Return, a.proc.gone)
	for _, f := range g.troubles(a, interval{a.Call(), end}) {
		out = append(out, taken{interval: interval{f.from, add(f.until, slack)}, acquisition: a, maybe: true})
	}
	switch {
	case end == history.Infinity || a.Granted():
	case a.proc.gone < a.Return: // it died or ended in the queue: C8
		out = append(out, taken{interval: interval{end, end + slack}, acquisition: a, maybe: true})
	default:
		out = append(out, taken{interval: interval{end, end + farewell}, acquisition: a, soft: true, maybe: true})
	}
	return out
}

func (g *game) heldTime(a *acquisition, slack int64) interval {
	from := a.Return
	for _, f := range g.troubles(a, interval{a.Call(), a.Return}) {
		if add(f.until, grace) >= a.Return { // otherwise the answer would have arrived by then
			from = min(from, max(f.from, a.Call()))
		}
	}
	for _, o := range a.ends {
		if o.Outcome == history.OK {
			return interval{from, o.Return}
		}
	}
	over := a.over()
	if over == history.Infinity {
		if a.TTL == 0 {
			return interval{from, history.Infinity} // it still holds the lock
		}
		over = a.deadline()
	}
	// The last renewal may have been sent just before, and may have been on its way as long as
	// a fault held it.
	end := max(over, a.deadline())
	for _, o := range a.ops {
		if o.Verb == history.VerbStaleRenew && o.Outcome != history.Lost {
			end = max(end, min(o.Return, g.h.End)+a.TTL)
		}
	}
	end, _ = g.trouble(a, a.Call(), end)
	return interval{from, end + max(slack, a.TTL+g.h.Header.ExpiryLag)}
}

// troubles returns the faults of the worker that touch a time span.
func (g *game) troubles(a *acquisition, span interval) []interval {
	var out []interval
	for _, list := range [][]interval{a.proc.frozen, a.proc.faults, g.all} {
		for _, f := range list {
			if f.meets(span) {
				out = append(out, interval{f.from, min(f.until, g.h.End)})
			}
		}
	}
	return out
}

// trouble returns the end of the last fault of the worker that touches the time from from to
// until, but at least until.
func (g *game) trouble(a *acquisition, from, until int64) (int64, bool) {
	list := g.troubles(a, interval{from, until})
	end := until
	for _, f := range list {
		end = max(end, f.until)
	}
	return end, len(list) > 0
}

// others returns the times of all acquisitions but one. If the backend keeps the queue, an
// unreported grant cannot have gone to a call that came later than that one's.
func (g *game) others(held []taken, a *acquisition) ([]interval, []interval) {
	var hard, soft []interval
	for _, t := range held {
		switch {
		case t.acquisition == a:
		case t.maybe && g.h.Header.FIFO && t.Call() > a.Call()+overtaking:
		case t.soft:
			soft = append(soft, t.interval)
		default:
			hard = append(hard, t.interval)
		}
	}
	return hard, soft
}

// excuses are the times in which the worker could not be served, including the time to recover.
func (g *game) excuses(a *acquisition) []interval {
	var out []interval
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

// longest finds the longest piece of whole that no hard part covers, less the time in it that
// soft parts cover. It returns its length and its start.
func longest(whole interval, hard, soft []interval) (int64, int64) {
	soft = union(soft)
	best, where := int64(0), whole.from
	at := whole.from
	look := func(until int64) {
		piece := interval{at, min(until, whole.until)}
		d := piece.until - piece.from
		for _, s := range soft {
			d -= max(0, min(s.until, piece.until)-max(s.from, piece.from))
		}
		if d > best {
			best, where = d, at
		}
	}
	for _, p := range union(hard) {
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

// union returns the same times as intervals that do not touch, in order.
func union(parts []interval) []interval {
	slices.SortFunc(parts, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	var out []interval
	for _, p := range parts {
		switch n := len(out); {
		case p.empty():
		case n > 0 && p.from <= out[n-1].until:
			out[n-1].until = max(out[n-1].until, p.until)
		default:
			out = append(out, p)
		}
	}
	return out
}

// shares counts the grants of each worker, over all its lives.
func (g *game) shares(grants map[string]float64) {
	for i := range g.h.Ops {
		o := &g.h.Ops[i]
		if o.Verb == history.VerbAcquire {
			worker, _, _ := strings.Cut(o.Worker, ".")
			n := 0.0
			if o.Outcome == history.OK {
				n = 1
			}
			grants[worker] += n
		}
	}
}

// fairness is Jain's index over the grants of each worker.
func fairness(grants map[string]float64) float64 {
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

// losses finds holders that were told too late that their deadline had passed.
func (g *game) losses(t *tally) {
	for _, name := range g.names {
		for _, a := range g.locks[name] {
			if a.lost == nil {
				continue
			}
			t.lost++
			if a.lost.Told {
				t.told++
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
			t.latest = max(t.latest, late)
			if bound := g.lateBound(span); late > bound {
				t.loss.violated(Finding{
					Lock: name, At: a.lost.Deadline, Until: a.lost.At, Acqs: []string{a.Acq},
					Text: fmt.Sprintf("worker %s was notified of the loss of %q %.0f ms after its deadline at %s; the bound is %d ms",
						a.Worker, name, float64(late)/1e6, g.at(a.lost.Deadline), bound/1e6),
				})
			}
		}
	}
}

// lateBound returns how late a loss may be reported. The bound is larger when some worker had
// to wait for a processor about then.
func (g *game) lateBound(span interval) int64 {
	if d := g.starved(interval{span.from - grace/4, span.until + grace/4}); d > 0 {
		return lateLossBusy + d
	}
	return lateLoss
}

// starved returns how much longer work may take about a span: the time in which some worker did
// not run for want of a processor, and as much again for the work that had piled up.
func (g *game) starved(span interval) int64 {
	if g.stalls == nil {
		var all []interval
		for _, p := range g.procs {
			all = append(all, p.stalls...)
		}
		g.stalls = append(union(all), interval{})
	}
	about := interval{span.from - grace, span.until + grace}
	d := int64(0)
	for _, s := range g.stalls {
		d += max(0, min(s.until, about.until)-max(s.from, about.from))
	}
	return 2 * d
}

// rest finds what was left behind.
func (g *game) rest(t *tally) {
	c := &t.rest
	for _, e := range g.h.Events {
		switch e.Kind { //nolint:exhaustive // the others leave nothing behind
		case history.KindLeft:
			c.violated(Finding{Lock: e.Lock, At: e.At, Text: fmt.Sprintf("after all workers and their leases had ended, %q had: %s", e.Lock, e.Text)})
		case history.KindEnd:
			t.ended++
			if e.After > e.Before {
				c.violated(Finding{At: e.At, Text: fmt.Sprintf("worker %s began with %d goroutines and ended with %d: %s", e.Worker, e.Before, e.After, e.Text)})
			}
		}
	}
}
