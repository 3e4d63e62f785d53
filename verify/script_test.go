package verify_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const ms = int64(time.Millisecond)

// script builds a history by hand. Times are in milliseconds. The TTL of the clients is one
// second, and the backend has no lag.
type script struct {
	t      *testing.T
	events []history.Event
	ops    int64
}

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{t: t}
	s.add(0, history.Event{Kind: history.KindHeader, Header: &history.Header{Version: history.Version, SessionTTL: 1000 * ms}})
	return s
}

// fifo declares that the backend keeps the queue.
func (s *script) fifo() { s.events[0].FIFO = true }

func (s *script) add(at int64, e history.Event) {
	e.At = at * ms
	s.events = append(s.events, e)
}

// call adds a call with its return. A return below 0 means that the call never returned.
func (s *script) call(from, until int64, worker string, verb history.Verb, acq string, out history.Event, more ...func(*history.Event)) {
	s.ops++
	call := history.Event{Kind: history.KindCall, Worker: worker, Op: s.ops, Verb: verb, Lock: "a", Acq: acq}
	for _, f := range more {
		f(&call)
	}
	s.add(from, call)
	if until >= 0 {
		out.Kind, out.Worker, out.Op = history.KindReturn, worker, s.ops
		s.add(until, out)
	}
}

// got adds an acquire that was granted. The deadline is a second after the call.
func (s *script) got(from, until int64, worker, acq string, token uint64, more ...func(*history.Event)) {
	s.call(from, until, worker, history.VerbAcquire, acq, history.Event{Outcome: history.OK, Token: token, Deadline: (from + 1000) * ms}, more...)
}

func (s *script) released(from, until int64, worker, acq string) {
	s.call(from, until, worker, history.VerbRelease, acq, history.Event{Outcome: history.OK})
}

func (s *script) try(from, until int64, worker, acq string) {
	s.call(from, until, worker, history.VerbTry, acq, history.Event{Outcome: history.Held})
}

// held adds a check that confirmed the lock for a second from now.
func (s *script) held(at int64, worker, acq string) {
	s.add(at, history.Event{Kind: history.KindHeld, Worker: worker, Acq: acq, Deadline: (at + 1000) * ms})
}

func (s *script) lost(at, deadline int64, worker, acq string) {
	s.add(at, history.Event{Kind: history.KindLost, Worker: worker, Acq: acq, Deadline: deadline * ms})
}

func (s *script) proc(kind history.Kind, at int64, worker string) {
	s.add(at, history.Event{Kind: kind, Worker: worker})
}

// fault adds a fault of the worker's network.
func (s *script) fault(from, until int64, worker string) {
	s.add(from, history.Event{Kind: history.KindFault, Worker: worker, Text: "cut"})
	s.add(until, history.Event{Kind: history.KindHeal, Worker: worker, Text: "cut"})
}

func (s *script) write(at int64, register, worker string, token uint64, base, value string, o history.Outcome) {
	s.add(at, history.Event{Kind: history.KindWrite, Register: register, Worker: worker, Lock: "a", Token: token, Base: base, Value: value, Outcome: o})
}

func shared(e *history.Event) { e.Shared = true }

func permits(k, limit int) func(*history.Event) {
	return func(e *history.Event) { e.Shared, e.Permits, e.Limit = true, k, limit }
}

func onLock(name string) func(*history.Event) { return func(e *history.Event) { e.Lock = name } }

// violated lists the checks that found a violation, and their findings.
func violated(r *verify.Report) (string, string) {
	var ids, texts []string
	for _, c := range r.Checks {
		if c.Verdict == verify.Violation {
			ids = append(ids, c.ID)
			for _, f := range c.Details {
				texts = append(texts, fmt.Sprintf("%s: %s", c.ID, f.Text))
			}
		}
	}
	return strings.Join(ids, " "), strings.Join(texts, "\n")
}

// judge judges the history as a whole, and while it is recorded; the two must agree.
func (s *script) judge() *verify.Report {
	s.t.Helper()
	end := s.events[len(s.events)-1].At
	events := append(s.events, history.Event{Kind: history.KindFooter, At: end})
	h, err := history.New(events)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	whole := verify.Judge(ctx, h, verify.Options{MinGrants: -1})
	referee := verify.NewReferee(ctx, verify.Options{MinGrants: -1}, nil)
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	for _, e := range events {
		if err := referee.Add(e); err != nil {
			s.t.Fatal(err)
		}
	}
	r := referee.Report()
	ids, texts := violated(whole)
	if now, other := violated(r); now != ids || other != texts || r.Counts != whole.Counts || r.Waits != whole.Waits {
		s.t.Errorf("judged as a whole: %q %s %+v\njudged while recorded: %q %s %+v", ids, texts, whole.Counts, now, other, r.Counts)
	}
	return r
}
