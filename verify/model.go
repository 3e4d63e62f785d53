package verify

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-io/holdfast/verify/history"
)

// The model is one lock whose leases may end at any time from their deadline on, and never
// before. Three things keep the search small. Tokens grow with each grant, so the order of the
// grants is known before the search begins. A lease ends in the model only when another grant
// needs its end: no observation requires an earlier end. And calls with an unknown outcome are
// not part of the sequence: an acquire that may have worked excuses a refusal, and a release
// that may have worked makes the end of its lease possible from its call on.

// lease is an acquisition as the model needs it.
type lease struct {
	*acquisition
	// ends is the earliest time at which the lease may end.
	ends int64
}

// act is one step of the model: a call whose answer is known.
type act struct {
	verb  history.Verb
	lease int
	// until is when the call returned.
	until int64
	// excused is set for a refusal that a call of unknown outcome explains.
	excused bool
	// rank is the place of a grant in the order of the tokens, from 1.
	rank int
	op   *history.Op
}

// lockState is the state of the model. It is comparable.
type lockState struct {
	held  string // the leases that are held, as numbers, each followed by a comma
	token uint64
	rank  int   // of the last grant
	now   int64 // the time is at least this
}

// lockModel is the model of one lock.
type lockModel struct {
	leases []lease
	floor  uint64 // all tokens are above it
	seed   maphash.Seed
}

// model searches for an order of the calls in which a lock would have answered the same.
func (g *game) model(ctx context.Context, t *tally) {
	const limit = 10 * time.Second // for each lock
	c := &t.model
	for _, name := range g.names {
		m, acts := g.lockModel(name)
		t.ordered += len(acts)
		switch result, why := m.search(ctx, acts, limit); result {
		case porcupine.Ok:
		case porcupine.Illegal:
			f := m.explain(g, name, why)
			if few := m.fewest(ctx, acts); len(few) > 0 && len(few) < len(acts) {
				f.Text += ". These alone have no order: " + m.tell(g, few)
				for _, a := range few {
					if !slices.Contains(f.Acqs, a.op.Acq) {
						f.Acqs = append(f.Acqs, a.op.Acq)
					}
				}
			}
			c.violated(f)
		case porcupine.Unknown:
			c.open(Finding{Lock: name, At: g.h.Start, Text: fmt.Sprintf("the search for an order of %d calls of %q came to no end in %s", len(acts), name, limit)})
		}
	}
}

// search returns the acts that could not be ordered, with the longest order of others, when the
// result is Illegal.
func (m *lockModel) search(ctx context.Context, acts []act, limit time.Duration) (porcupine.CheckResult, [][]porcupine.Operation) {
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end))
	}
	if ctx.Err() != nil || limit <= 0 {
		return porcupine.Unknown, nil
	}
	ops := make([]porcupine.Operation, len(acts))
	for i, a := range ranked(acts) {
		ops[i] = porcupine.Operation{ClientId: i, Input: a, Call: a.op.Call(), Return: a.until}
	}
	result := porcupine.CheckOperationsTimeout(m.porcupine(), ops, limit)
	if result != porcupine.Illegal {
		return result, nil
	}
	_, info := porcupine.CheckOperationsVerbose(m.porcupine(), ops, limit) // once more, for the details of the finding
	var orders [][]porcupine.Operation
	for _, p := range info.PartialLinearizationsOperations() {
		orders = append(orders, p...)
	}
	return result, append(orders, ops)
}

// ranked returns a copy of acts in which each grant has its rank.
func ranked(acts []act) []act {
	acts = slices.Clone(acts)
	var grants []*act
	for i := range acts {
		if acts[i].op.Granted() {
			grants = append(grants, &acts[i])
		}
	}
	slices.SortStableFunc(grants, func(a, b *act) int { return cmp.Compare(a.op.Token, b.op.Token) })
	for i, a := range grants {
		a.rank = i + 1
	}
	return acts
}

// lockModel translates the history of a lock into a model and its acts.
func (g *game) lockModel(name string) (*lockModel, []act) {
	m := &lockModel{seed: maphash.MakeSeed(), floor: g.floor}
	var acts []act
	var excuses []interval
	slack := g.h.Header.SessionTTL + g.h.Header.ExpiryLag
	for _, a := range g.locks[name] {
		n := len(m.leases)
		m.leases = append(m.leases, lease{a, a.earliestEnd(g.h.Header.Tied)})
		if t, open := g.unsettled(a); open {
			excuses = append(excuses, interval{a.Call(), g.lives(t, max(slack, a.TTL+slack))})
		}
		if a.Granted() || a.Verb == history.VerbTry && a.Outcome == history.Held {
			acts = append(acts, act{verb: a.Verb, lease: n, until: a.Return, op: a.Op})
		}
		for _, o := range a.ops {
			if o.Outcome == history.OK && o.Verb != history.VerbReenter && o.Verb != history.VerbLeave {
				acts = append(acts, act{verb: o.Verb, lease: n, until: o.Return, op: o})
			}
		}
	}
	for i := range acts {
		span := interval{acts[i].op.Call(), acts[i].until + 1}
		acts[i].excused = slices.ContainsFunc(excuses, span.meets)
	}
	return m, acts
}

// lives returns until when a lease may be held that is not renewed from t on. A store whose
// servers are stopped or restarted, or that has a new leader afterwards, may give all leases
// their whole time again.
func (g *game) lives(t, life int64) int64 {
	end := add(t, life)
	for again := true; again; {
		again = false
		for _, f := range g.all {
			if later := add(min(f.until, g.h.End), life); f.meets(interval{t, end}) && later > end {
				end, again = later, true
			}
		}
	}
	return end
}

// unsettled returns until when an acquisition may have had the lock on the backend without its
// worker's knowledge, not counting the life of the lease itself. It returns false when that is
// impossible. A call that a fault disturbed is retried under another lease, whatever its final
// answer. The first lease is released in the background as soon as the network allows it; the
// next fault, or the death of the worker, may come before that.
func (g *game) unsettled(a *acquisition) (int64, bool) {
	t := min(a.Return, a.proc.gone)
	early := interval{a.Call(), t}
	given := a.Verb == history.VerbAcquire && !a.Granted() || a.Outcome == history.Unknown
	if given {
		early.until = add(t, farewell) // releasing it takes a moment
	}
	faults := g.troubles(a, early)
	if len(faults) == 0 {
		return min(t, g.h.End), given
	}
	for {
		last := t
		for _, f := range faults {
			t = max(t, f.until)
		}
		if a.proc.gone < add(t, grace) {
			t = max(t, min(a.proc.gone, g.h.End))
		}
		if t = min(t, g.h.End); t <= last {
			return t, true
		}
		faults = g.troubles(a, interval{a.Call(), min(add(t, grace), a.proc.gone)})
	}
}

// earliestEnd returns the earliest time at which the lease may have ended on the backend: the
// latest deadline that the worker was told, or the call of any operation that may have released
// it. If tied, the leases of a worker that is killed end with it.
func (a *acquisition) earliestEnd(tied bool) int64 {
	end := a.deadline()
	for _, o := range a.ops {
		switch o.Verb { //nolint:exhaustive // only these can end a lease
		case history.VerbRelease, history.VerbStaleRelease:
			if o.Outcome != history.OK {
				end = min(end, o.Call())
			}
		}
	}
	if !a.proc.killed || tied {
		end = min(end, a.proc.gone) // a client that closes releases everything
	}
	return end
}

func (m *lockModel) porcupine() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{lockState{token: m.floor}} },
		Step: func(state, input, _ any) []any {
			var next []any
			for _, s := range m.step(state.(lockState), input.(act)) {
				next = append(next, s)
			}
			return next
		},
		Equal: func(a, b any) bool { return a.(lockState) == b.(lockState) },
		Hash: func(state any) uint64 {
			s := state.(lockState)
			return maphash.String(m.seed, s.held) ^ s.token*0x9e3779b97f4a7c15 ^ uint64(s.now)*0xff51afd7ed558ccd //nolint:gosec // a hash
		},
	}
	return model.ToModel()
}

// step returns the states that an act may lead to, or none if the act is impossible.
func (m *lockModel) step(s lockState, a act) []lockState {
	if a.until < s.now {
		return nil
	}
	held := s.leases()
	n := slices.Index(held, a.lease)
	switch a.verb { //nolint:exhaustive // the others are not in the sequence
	case history.VerbAcquire, history.VerbTry:
		switch {
		case a.op.Outcome == history.OK && a.rank == s.rank+1 && a.op.Token > s.token:
			return m.grant(nil, s, held, a)
		case a.op.Outcome == history.Held && (len(held) > 0 || a.excused):
			return []lockState{s}
		}
	case history.VerbRelease, history.VerbStaleRelease:
		if n >= 0 {
			s.held = join(slices.Delete(held, n, n+1))
			return []lockState{s}
		}
	default: // a renewal
		if n >= 0 {
			return []lockState{s}
		}
	}
	return nil
}

// grant ends conflicting leases whose time has come, and no more of them than necessary. With
// permits there may be several ways to do so.
func (m *lockModel) grant(out []lockState, s lockState, held []int, a act) []lockState {
	if m.fits(held, a.lease) {
		s.held = join(append(slices.Clone(held), a.lease))
		s.token, s.rank = a.op.Token, a.rank
		return append(out, s)
	}
	for i, n := range held {
		if m.leases[n].ends > a.until {
			continue
		}
		next := s
		next.now = max(s.now, m.leases[n].ends)
		out = m.grant(out, next, slices.Delete(slices.Clone(held), i, i+1), a)
		if !m.leases[a.lease].Shared {
			break // all of them have to end, in any order
		}
	}
	return out
}

// fits reports whether a lease may be held together with the others.
func (m *lockModel) fits(held []int, n int) bool {
	a := m.leases[n]
	taken := max(1, a.Permits)
	for _, i := range held {
		o := m.leases[i]
		if !a.Shared || !o.Shared {
			return false
		}
		taken += max(1, o.Permits)
	}
	return a.Limit == 0 || taken <= a.Limit
}

func (s lockState) leases() []int {
	var out []int
	for n := range strings.SplitSeq(strings.TrimSuffix(s.held, ","), ",") {
		if i, err := strconv.Atoi(n); err == nil {
			out = append(out, i)
		}
	}
	return out
}

func join(leases []int) string {
	slices.Sort(leases)
	var b strings.Builder
	for _, n := range leases {
		b.WriteString(strconv.Itoa(n))
		b.WriteByte(',')
	}
	return b.String()
}

// explain names the call that fits into no order: of the calls that are missing in the longest
// order found, the one that returned first.
func (m *lockModel) explain(g *game, name string, orders [][]porcupine.Operation) Finding {
	all := orders[len(orders)-1]
	var longest []porcupine.Operation
	for _, o := range orders[:len(orders)-1] {
		if len(o) > len(longest) {
			longest = o
		}
	}
	placed := make(map[int]bool)
	s := lockState{token: m.floor}
	for _, o := range longest {
		placed[o.ClientId] = true
		if next := m.step(s, o.Input.(act)); len(next) > 0 {
			s = next[0]
		}
	}
	var odd *act
	for _, o := range all {
		if a := o.Input.(act); !placed[o.ClientId] && (odd == nil || a.until < odd.until) {
			odd = &a
		}
	}
	if odd == nil {
		return Finding{Lock: name, At: g.h.Start, Text: fmt.Sprintf("no order of the calls of %q makes sense", name)}
	}
	f := Finding{Lock: name, At: odd.op.Call(), Until: odd.until, Acqs: []string{odd.op.Acq}}
	var state []string
	for _, n := range s.leases() {
		l := m.leases[n]
		f.Acqs = append(f.Acqs, l.Acq)
		state = append(state, l.tell(g))
	}
	holders := "no worker"
	if len(state) > 0 {
		holders = strings.Join(state, " and ")
	}
	f.Text = fmt.Sprintf("no order explains that %s of %q by worker %s, %s, was answered %q%s: %s held it, and the last token was %d",
		odd.verb, name, odd.op.Worker, g.span(odd.op.Call(), odd.until), odd.op.Outcome, tokenText(odd.op.Token), holders, s.token)
	return f
}

func tokenText(t uint64) string {
	if t == 0 {
		return ""
	}
	return fmt.Sprintf(" with token %d", t)
}
