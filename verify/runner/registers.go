package runner

import (
	"sync"

	"github.com/holdfast-io/holdfast/verify/history"
)

// registers are the resource that the locks protect: for each lock a register that accepts
// every write and one that checks the token. They are here, not in the workers, so that a write
// can arrive late.
type registers struct {
	mu     sync.Mutex
	states map[string]*register
}

type register struct {
	seen  uint64
	value string
}

func newRegisters() *registers { return &registers{states: make(map[string]*register)} }

// serve executes a read or a write, passes the event to record, and returns the answer. record
// is called before the next call is served, so the order of the calls is the order of the
// record.
func (r *registers) serve(e history.Event, record func(history.Event)) order {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := e.Register + "\x00" + e.Lock
	s := r.states[key]
	if s == nil {
		s = &register{}
		r.states[key] = s
	}
	e.At, e.Outcome = now(), history.OK
	switch {
	case e.Register == history.Guarded && e.Token < s.seen:
		e.Outcome = history.Refused // a read, too: a worker that reads with an old token would write with it
	case e.Kind == history.KindRead:
		e.Value = s.value
	default:
		s.value = e.Value
	}
	s.seen = max(s.seen, e.Token)
	record(e)
	return order{Op: e.Op, Outcome: e.Outcome, Value: e.Value}
}
