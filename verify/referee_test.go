package verify_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// stream feeds a referee. Times are in milliseconds; the TTL is a second.
type stream struct {
	t   *testing.T
	r   *verify.Referee
	ops int64
}

func newStream(t *testing.T, found func(string, verify.Finding)) *stream {
	t.Helper()
	s := &stream{t: t, r: verify.NewReferee(t.Context(), verify.Options{MinGrants: -1}, found)}
	s.add(0, history.Event{Kind: history.KindHeader, Header: &history.Header{Version: history.Version, SessionTTL: 1000 * ms}})
	return s
}

func (s *stream) add(at int64, e history.Event) {
	s.t.Helper()
	e.At = at * ms
	if err := s.r.Add(e); err != nil {
		s.t.Fatal(err)
	}
}

// turn adds an acquire, granted at from, and a release that returns at until.
func (s *stream) turn(from, until int64, worker, lock string, token uint64) {
	s.t.Helper()
	acq := fmt.Sprintf("%s-%d", worker, s.ops)
	for _, c := range []struct {
		at   int64
		verb history.Verb
	}{{from, history.VerbAcquire}, {until, history.VerbRelease}} {
		s.ops++
		s.add(c.at, history.Event{Kind: history.KindCall, Worker: worker, Op: s.ops, Verb: c.verb, Lock: lock, Acq: acq})
		ret := history.Event{Kind: history.KindReturn, Worker: worker, Op: s.ops, Outcome: history.OK}
		if c.verb == history.VerbAcquire {
			ret.Token, ret.Deadline = token, (from+1000)*ms
		}
		s.add(c.at, ret)
	}
}

func (s *stream) report() *verify.Report {
	s.t.Helper()
	return s.r.Report()
}

// The referee's memory does not grow with the history: locks that are not used any more are
// judged and dropped.
func TestRefereeKeepsAWindow(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, nil)
		size := func() int64 {
			synctest.Wait() // until the judge has judged what it was given
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		var early int64
		const turns = 80_000
		for n := range int64(turns) {
			at := n * 5
			s.turn(at, at+1, "1.1", fmt.Sprintf("lock-%d", at/1000), uint64(n+1))
			if n == turns/4 {
				early = size()
			}
		}
		late := size()
		if grown := late - early; grown > 16<<20 {
			t.Errorf("%d bytes were kept after a quarter, and %d more in the end", early, grown)
		}
		r := s.report()
		if r.Counts.Grants != turns || r.Counts.Locks != turns/200 {
			t.Errorf("judged: %+v", r.Counts)
		}
		if ids, texts := violated(r); ids != "" {
			t.Errorf("violated: %s", texts)
		}
	})
}

// A finding is reported while the history continues, and its evidence is kept.
func TestRefereeReportsEarly(t *testing.T) {
	t.Parallel()
	found := make(chan string, 100)
	s := newStream(t, func(check string, _ verify.Finding) { found <- check })
	s.turn(0, 20, "1.1", "bad", 1)
	s.turn(10, 30, "2.1", "bad", 2)
	for at := int64(100); at < 10_000; at += 10 {
		s.turn(at, at+1, "1.1", "good", uint64(at))
		s.add(at, history.Event{Kind: history.KindTick, Worker: "2.1"})
	}
	if got := <-found; got != "overlap" {
		t.Errorf("found by %q first", got)
	}
	if ids, _ := violated(s.report()); ids != "overlap model" {
		t.Errorf("violated: %q", ids)
	}
	h := s.r.Evidence()
	if len(h.Ops) != 4 || h.Ops[0].Lock != "bad" {
		t.Errorf("the evidence has %d calls: %+v", len(h.Ops), h.Ops)
	}
	if ids, _ := violated(verify.Judge(t.Context(), h, verify.Options{MinGrants: -1})); ids != "overlap model" {
		t.Errorf("the evidence shows %q", ids)
	}
}

// A lock that is used again after its part was judged has tokens above the earlier ones.
func TestRefereeRemembersTokens(t *testing.T) {
	t.Parallel()
	for token, want := range map[uint64]string{7: "", 6: "tokens model", 3: "tokens model"} {
		s := newStream(t, nil)
		s.turn(0, 1, "1.1", "a", 6)
		for at := int64(10); at < 20_000; at += 10 {
			s.add(at, history.Event{Kind: history.KindTick, Worker: "1.1"})
		}
		s.turn(20_000, 20_001, "1.1", "a", token)
		if ids, texts := violated(s.report()); ids != want {
			t.Errorf("token %d: violated %q, want %q: %s", token, ids, want, texts)
		}
	}
}

// The window begins where the slowest worker is: the referee waits for events that a worker has
// not reported, however late, but not for those of a worker that was killed.
func TestRefereeWaitsForTheSlowest(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		found := make(chan string, 10)
		s := newStream(t, func(check string, _ verify.Finding) { found <- check })
		s.add(0, history.Event{Kind: history.KindStart, Worker: "2.1"})
		s.turn(0, 50, "1.1", "a", 1)
		if killed {
			s.add(60, history.Event{Kind: history.KindKill, Worker: "2.1"})
			s.add(55, history.Event{Kind: history.KindStart, Worker: "2.1.m1", In: "2.1"}) // its last event
			s.turn(70, 90, "1.1", "b", 1)
			s.turn(80, 95, "3.1", "b", 2)
			s.add(96, history.Event{Kind: history.KindEnd, Worker: "3.1"})
		}
		for at := int64(100); at < 30_000; at += 10 {
			s.add(at, history.Event{Kind: history.KindTick, Worker: "1.1"})
		}
		if !killed {
			s.turn(10, 20, "2.1", "a", 2) // and now it reports
		}
		if killed {
			<-found // long before the end
		}
		if ids, texts := violated(s.report()); ids != "overlap model" {
			t.Errorf("killed %v: violated %q: %s", killed, ids, texts)
		}
	}
}

// An event that arrives after its part was judged leaves the verdict open.
func TestRefereeSaysWhatCameTooLate(t *testing.T) {
	t.Parallel()
	s := newStream(t, nil)
	s.turn(0, 1, "1.1", "a", 1)
	for at := int64(10); at < 20_000; at += 10 {
		s.add(at, history.Event{Kind: history.KindTick, Worker: "1.1"})
	}
	s.add(2, history.Event{Kind: history.KindHeld, Worker: "1.1", Acq: "1.1-0", Deadline: 900 * ms})
	s.add(20_000, history.Event{Kind: history.KindFooter})
	r := s.report()
	if c := r.Checks[len(r.Checks)-1]; r.Verdict != verify.Inconclusive || c.Found != 1 || !strings.Contains(c.Details[0].Text, "1 events came after") {
		t.Errorf("%s: %+v", r.Verdict, c)
	}
}

// A fault of a process is a fault of the workers in it.
func TestWorkersInAProcess(t *testing.T) {
	t.Parallel()
	for _, kind := range []history.Kind{history.KindKill, history.KindFreeze} {
		s := newScript(t)
		s.add(0, history.Event{Kind: history.KindStart, Worker: "1.1.m1", In: "1.1"})
		s.got(10, 20, "1.1.m1", "x", 1)
		s.proc(kind, 500, "1.1")
		s.got(600, 1100, "2.1", "y", 2)
		s.held(1110, "2.1", "y")
		s.released(2000, 2001, "2.1", "y")
		if kind == history.KindFreeze {
			s.proc(history.KindThaw, 3000, "1.1")
			s.lost(3001, 1010, "1.1.m1", "x")
		}
		if ids, texts := violated(s.judge()); ids != "" {
			t.Errorf("%s: violated %s", kind, texts)
		}
	}
}

// A worker that is short of processors may be told late of a loss, by as much as it is short of
// them.
func TestAStarvedMachineHasTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		late, stall int64
		want        string
	}{{40, 0, ""}, {60, 0, "loss"}, {480, 30, ""}, {800, 30, "loss"}, {900, 300, ""}} {
		s := newScript(t)
		s.got(0, 10, "1.1", "x", 1)
		s.add(1000-c.stall, history.Event{Kind: history.KindTick, Worker: "2.1"})
		if c.stall > 0 {
			s.add(990, history.Event{Kind: history.KindStall, Worker: "2.1", Took: c.stall * ms})
		}
		s.lost(1000+c.late, 1000, "1.1", "x")
		if ids, texts := violated(s.judge()); ids != c.want {
			t.Errorf("%d ms late, %d ms short: violated %q, want %q: %s", c.late, c.stall, ids, c.want, texts)
		}
	}
}

func TestRefereeRefuses(t *testing.T) {
	t.Parallel()
	r := verify.NewReferee(t.Context(), verify.Options{}, nil)
	if err := r.Add(history.Event{Kind: history.KindTick, Worker: "1.1"}); !errors.Is(err, history.ErrFormat) {
		t.Errorf("no header: %v", err)
	}
	header := history.Event{Kind: history.KindHeader, Header: &history.Header{Version: history.Version, SessionTTL: ms}}
	call := history.Event{Kind: history.KindCall, Worker: "1.1", Op: 1, Verb: history.VerbTry, Lock: "a", Acq: "x", At: 5}
	for _, e := range []history.Event{header, call} {
		if err := r.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	again := call
	again.Op = 2
	for name, e := range map[string]history.Event{
		"a second header": header, "a call twice": call, "an acquisition twice": again,
		"a return without its call": {Kind: history.KindReturn, Worker: "1.1", Op: 9, At: 6}, "a return before its call": {Kind: history.KindReturn, Worker: "1.1", Op: 1, At: 4},
	} {
		if err := r.Add(e); !errors.Is(err, history.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.Report()
	if err := r.Add(call); err == nil {
		t.Error("an event after the report was taken")
	}
}
