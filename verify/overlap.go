package verify

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-io/holdfast/verify/history"
)

// belief is an interval and the acquisition that it belongs to.
type belief struct {
	interval
	*acquisition
}

// overlap finds beliefs that conflict and overlap in time.
func (g *game) overlap(t *tally) {
	for _, name := range g.names {
		var all []belief
		for _, a := range g.locks[name] {
			for _, i := range a.beliefs() {
				all = append(all, belief{i, a})
			}
		}
		t.beliefs += len(all)
		slices.SortFunc(all, func(x, y belief) int { return cmp.Compare(x.from, y.from) })
		g.sweep(&t.overlap, name, all)
	}
}

// sweep visits the beliefs in the order of their beginnings and compares each with those that
// it overlaps.
func (g *game) sweep(c *Check, name string, all []belief) {
	var now []belief
	for _, b := range all {
		now = slices.DeleteFunc(now, func(o belief) bool { return o.until <= b.from })
		taken := max(1, b.Permits)
		for _, o := range now {
			if o.acquisition == b.acquisition {
				continue
			}
			taken += max(1, o.Permits)
			limited := b.Limit > 0 || o.Limit > 0
			switch {
			case !b.Shared || !o.Shared:
			case limited && taken > max(b.Limit, o.Limit):
			default:
				continue
			}
			until := min(b.until, o.until)
			c.violated(Finding{
				Lock: name, At: b.from, Until: until, Acqs: []string{o.Acq, b.Acq},
				Text: fmt.Sprintf("%s: worker %s (%s, token %d) and worker %s (%s, token %d) both held %q for %.1f ms, %s",
					clash(o, b), o.Worker, mode(o.acquisition), o.Token, b.Worker, mode(b.acquisition), b.Token,
					name, float64(until-b.from)/1e6, g.span(b.from, until)),
			})
		}
		now = append(now, b)
	}
}

func clash(o, b belief) string {
	if o.Shared && b.Shared {
		return "more than the limit"
	}
	return "granted twice"
}

func mode(a *acquisition) string {
	switch {
	case !a.Shared:
		return "exclusive"
	case a.Limit > 0:
		return fmt.Sprintf("%d of %d", max(1, a.Permits), a.Limit)
	default:
		return "shared"
	}
}

// tokens finds tokens that occur twice, or in the wrong order.
func (g *game) tokens(t *tally) {
	c := &t.tokens
	for _, name := range g.names {
		var granted []*acquisition
		seen := make(map[uint64]*acquisition)
		for _, a := range g.locks[name] {
			if !a.Granted() {
				continue
			}
			granted = append(granted, a)
			if first, twice := seen[a.Token]; twice || a.Token == 0 {
				text := "a grant without a token"
				if twice {
					text = fmt.Sprintf("the token %d of %q was given twice: to worker %s at %s and to worker %s at %s",
						a.Token, name, first.Worker, g.at(first.Return), a.Worker, g.at(a.Return))
				}
				c.violated(Finding{Lock: name, At: a.Return, Acqs: []string{a.Acq}, Text: text})
			}
			seen[a.Token] = a
		}
		g.tokenOrder(c, name, granted)
	}
	for i := range g.h.Ops {
		o := &g.h.Ops[i]
		if a := g.acqs[o.Acq]; o.Verb == history.VerbReenter && o.Outcome == history.OK && a != nil && a.Token != o.Token {
			c.violated(Finding{
				Lock: o.Lock, At: o.Return, Acqs: []string{o.Acq},
				Text: fmt.Sprintf("re-entry of %q returned token %d; the lock has %d", o.Lock, o.Token, a.Token),
			})
		}
	}
}

// tokenOrder compares each grant with the greatest token of the grants that had returned before
// its call. Grants that were judged before had returned before all of them.
func (g *game) tokenOrder(c *Check, name string, granted []*acquisition) {
	byReturn := slices.SortedFunc(slices.Values(granted), func(x, y *acquisition) int { return cmp.Compare(x.Return, y.Return) })
	var top *acquisition
	next := 0
	for _, a := range granted { // in the order of the calls
		if a.Token <= g.floor {
			c.violated(Finding{
				Lock: name, At: a.Return, Acqs: []string{a.Acq},
				Text: fmt.Sprintf("the token of %q went back: %d had been granted long before, and %d was granted to the call of %s", name, g.floor, a.Token, g.at(a.Call())),
			})
		}
		for ; next < len(byReturn) && byReturn[next].Return < a.Call(); next++ {
			if top == nil || byReturn[next].Token > top.Token {
				top = byReturn[next]
			}
		}
		if top != nil && a.Token < top.Token {
			c.violated(Finding{
				Lock: name, At: a.Return, Acqs: []string{top.Acq, a.Acq},
				Text: fmt.Sprintf("the token of %q went back: %d was granted by %s, and %d was granted to the call of %s",
					name, top.Token, g.at(top.Return), a.Token, g.at(a.Call())),
			})
		}
	}
}
