package verify

import (
	"fmt"

	"github.com/holdfast-io/holdfast/verify/history"
)

// Writes counts the writes to one kind of register.
type Writes struct {
	Sent int `json:"sent"`
	// Stale writes had a smaller token than one that the resource had seen.
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

// registers replays the writes. The guarded register must not have lost an update. Lost updates
// of the bare one are counted, and are no violation: its writers left the token out.
func (g *game) registers(t *tally) {
	for i := range g.h.Events {
		e := &g.h.Events[i]
		if e.Kind != history.KindRead && e.Kind != history.KindWrite {
			continue
		}
		key := e.Register + "\x00" + e.Lock
		s := t.registers[key]
		if s == nil {
			s = &registerState{}
			t.registers[key] = s
		}
		n := t.writes[e.Register]
		g.play(&t.register, &n, s, e)
		t.writes[e.Register] = n
	}
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
