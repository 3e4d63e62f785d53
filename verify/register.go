package verify

import (
	"fmt"

	"github.com/holdfast-io/holdfast/verify/history"
)

// Writes counts what reached one kind of register.
type Writes struct {
	Sent int `json:"sent"`
	// Stale writes came with a smaller token than one that the resource had seen.
	Stale int `json:"stale"`
	// Stopped are the stale ones that the resource refused.
	Stopped int `json:"stopped"`
	// LostUpdates are values that were overwritten by a worker that had not read them.
	LostUpdates int `json:"lost_updates"`
}

type registerState struct {
	seen  uint64
	value string
}

// registers plays the writes again. The guarded register must have lost nothing; what
// the bare one lost is told and is nobody's fault but that of who leaves the token out.
func (g *game) registers() (Check, map[string]Writes) {
	c := newCheck("register", "a resource that checks tokens loses no update")
	counts := map[string]Writes{history.Bare: {}, history.Guarded: {}}
	states := make(map[string]*registerState)
	for i := range g.h.Events {
		e := &g.h.Events[i]
		if e.Kind != history.KindRead && e.Kind != history.KindWrite {
			continue
		}
		key := e.Register + "\x00" + e.Lock
		s := states[key]
		if s == nil {
			s = &registerState{}
			states[key] = s
		}
		n := counts[e.Register]
		g.play(&c, &n, s, e)
		counts[e.Register] = n
	}
	bare, guarded := counts[history.Bare], counts[history.Guarded]
	c.Summary = fmt.Sprintf("guarded: %d writes, %d stale, %d stopped, %d updates lost; without the token: %d writes, %d stale, %d updates lost",
		guarded.Sent, guarded.Stale, guarded.Stopped, guarded.LostUpdates, bare.Sent, bare.Stale, bare.LostUpdates)
	return c, counts
}

func (g *game) play(c *Check, n *Writes, s *registerState, e *history.Event) {
	guarded := e.Register == history.Guarded
	stale := e.Token < s.seen
	bad := func(format string, args ...any) {
		if guarded {
			c.violated(Finding{Lock: e.Lock, At: e.At, Acqs: []string{e.Acq}, Text: fmt.Sprintf(format, args...) + " at " + g.at(e.At)})
		}
	}
	if e.Kind == history.KindWrite {
		n.Sent++
		if stale {
			n.Stale++
		}
	}
	if e.Outcome == history.Refused {
		if e.Kind == history.KindWrite && stale {
			n.Stopped++
		}
		if !stale {
			bad("the guarded register of %q refused token %d of worker %s, and had seen none greater than %d", e.Lock, e.Token, e.Worker, s.seen)
		}
		return
	}
	if stale {
		bad("the guarded register of %q took token %d of worker %s after %d", e.Lock, e.Token, e.Worker, s.seen)
	}
	s.seen = max(s.seen, e.Token)
	if e.Kind == history.KindRead {
		if e.Value != s.value {
			bad("the guarded register of %q gave %q, and has %q", e.Lock, e.Value, s.value)
		}
		return
	}
	if e.Base != s.value {
		n.LostUpdates++
		bad("the guarded register of %q lost %q: worker %s with token %d had read %q and wrote %q", e.Lock, s.value, e.Worker, e.Token, e.Base, e.Value)
	}
	s.value = e.Value
}
