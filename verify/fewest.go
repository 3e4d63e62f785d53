package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-io/holdfast/verify/history"
)

// fewestTime bounds the search for the smallest set of acquisitions that have no order.
const fewestTime = 2 * time.Second

// fewest returns the smallest set that it finds of the acquisitions that have no order by
// themselves, or none if the call without an order is a refusal. Leaving out an acquisition,
// with all calls on its lease, cannot make a correct history incorrect, except for a refusal:
// refusals are left out first.
func (m *lockModel) fewest(ctx context.Context, acts []act) []act {
	ctx, cancel := context.WithTimeout(ctx, fewestTime)
	defer cancel()
	wrong := func(some []act) bool {
		result, _ := m.search(ctx, some, fewestTime)
		return result == porcupine.Illegal
	}
	rest := slices.DeleteFunc(slices.Clone(acts), func(a act) bool { return a.op.Outcome == history.Held })
	if !wrong(rest) {
		return nil
	}
	for size := len(m.leases); size > 0; size /= 2 {
		for from := 0; from < len(m.leases); from += size {
			less := slices.DeleteFunc(slices.Clone(rest), func(a act) bool { return from <= a.lease && a.lease < from+size })
			if len(less) < len(rest) && wrong(less) {
				rest = less
			}
		}
	}
	return rest
}

// tell describes the acts, grouped by lease, in the order of the tokens.
func (m *lockModel) tell(g *game, acts []act) string {
	byLease := make(map[int][]string)
	var leases []int
	for _, a := range acts {
		if _, there := byLease[a.lease]; !there {
			leases = append(leases, a.lease)
		}
		byLease[a.lease] = append(byLease[a.lease], fmt.Sprintf("%s %s", a.verb, g.span(a.op.Call(), a.until)))
	}
	slices.SortFunc(leases, func(x, y int) int { return cmp.Compare(m.leases[x].Token, m.leases[y].Token) })
	out := make([]string, len(leases))
	for i, n := range leases {
		out[i] = m.leases[n].tell(g) + ": " + strings.Join(byLease[n], ", ")
	}
	return strings.Join(out, "; ")
}

// tell describes the owner of a lease, and when it may end.
func (l lease) tell(g *game) string {
	told := ""
	if l.lost != nil && l.lost.Told && l.lost.At < l.ends {
		told = "; the backend told its loss before, at " + g.at(l.lost.At)
	}
	return fmt.Sprintf("worker %s (%s, token %d, may end from %s on%s)", l.Worker, mode(l.acquisition), l.Token, g.at(l.ends), told)
}
