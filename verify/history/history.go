package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Op is a call with its return.
type Op struct {
	Event        // of the call; Outcome, Token, Deadline, Text and Told are those of the return
	Return int64 // Infinity when the answer never came
}

// Call returns the time of the call.
func (o *Op) Call() int64 { return o.At }

// Acquires reports whether the operation requests the lock.
func (o *Op) Acquires() bool { return o.Verb == VerbAcquire || o.Verb == VerbTry }

// Granted reports whether the worker was told that it has the lock.
func (o *Op) Granted() bool { return o.Acquires() && o.Outcome == OK }

// History is a recorded history. It does not change after New.
type History struct {
	Header Header
	// Complete is false when the recording was cut short.
	Complete bool
	// Ops in the order of their calls.
	Ops []Op
	// Events are all events but calls and returns, in the order of their times.
	Events []Event
	// Start and End are the first and the last time in the history.
	Start, End int64
}

// New returns a history of events. It pairs calls with returns.
//
// Errors: *FormatError, counting events from 1: no header, a return without its call or before
// it, a second return, a call number or an acquisition used twice.
func New(events []Event) (*History, error) {
	if len(events) == 0 || events[0].Kind != KindHeader {
		return nil, &FormatError{Line: 1, Err: errors.New("the first event is not a header")}
	}
	h := &History{Header: *events[0].Header, Start: events[0].At, End: events[0].At}
	p := pairing{calls: make(map[callID]int), acqs: make(map[string]bool)}
	for i, e := range events {
		if err := p.add(h, e, i); err != nil {
			return nil, &FormatError{Line: i + 1, Err: err}
		}
		h.End = max(h.End, e.At)
		h.Start = min(h.Start, e.At)
	}
	slices.SortStableFunc(h.Ops, func(a, b Op) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(h.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return h, nil
}

type callID struct {
	worker string
	op     int64
}

type pairing struct {
	calls map[callID]int // the index in Ops
	acqs  map[string]bool
}

func (p *pairing) add(h *History, e Event, i int) error {
	switch e.Kind { //nolint:exhaustive // the others are events
	case KindHeader:
		if i > 0 {
			return errors.New("a second header")
		}
	case KindFooter:
		h.Complete = true
	case KindCall:
		id := callID{e.Worker, e.Op}
		if _, twice := p.calls[id]; twice {
			return fmt.Errorf("call %d of worker %q is there twice", e.Op, e.Worker)
		}
		if o := (Op{Event: e}); o.Acquires() {
			if p.acqs[e.Acq] {
				return fmt.Errorf("acquisition %q is there twice", e.Acq)
			}
			p.acqs[e.Acq] = true
		}
		p.calls[id] = len(h.Ops)
		h.Ops = append(h.Ops, Op{Event: e, Return: Infinity})
		h.Ops[len(h.Ops)-1].Outcome = Unknown
	case KindReturn:
		n, ok := p.calls[callID{e.Worker, e.Op}]
		if !ok {
			return fmt.Errorf("return %d of worker %q without its call", e.Op, e.Worker)
		}
		o := &h.Ops[n]
		if o.Return != Infinity {
			return fmt.Errorf("return %d of worker %q is there twice", e.Op, e.Worker)
		}
		if e.At < o.At {
			return fmt.Errorf("return %d of worker %q is before its call", e.Op, e.Worker)
		}
		o.Return, o.Outcome, o.Token, o.Deadline, o.Text, o.Told = e.At, e.Outcome, e.Token, e.Deadline, e.Text, e.Told
	default:
		h.Events = append(h.Events, e)
	}
	return nil
}
