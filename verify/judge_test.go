package verify_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// Handwritten histories: what the referee must find in each, and that it finds nothing else. A
// history without violated checks is legal.
func TestHandWrittenHistories(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		violated string // the IDs of the checks
		says     string
		play     func(*script)
	}{
		{"nothing happened", "", "", func(*script) {}},
		{"one after the other", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(100, 110, "1.1", "x")
			s.got(20, 105, "2.1", "y", 2)
			s.released(200, 210, "2.1", "y")
		}},
		{"a refusal while another holds", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.try(20, 30, "2.1", "y")
		}},
		{"a refusal while the lock is free", "model", "answered \"held\"", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(20, 30, "1.1", "x")
			s.try(40, 50, "2.1", "y")
		}},
		{"a refusal that a cancelled wait explains", "", "", func(s *script) {
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.try(40, 50, "2.1", "y")
		}},
		{"a refusal that a try explains which a fault was in the way of", "", "", func(s *script) {
			s.fault(0, 500, "3.1")
			s.try(100, 600, "3.1", "z") // its first attempt had the lock, under a lease that is still being released
			s.try(700, 710, "2.1", "y")
		}},
		{"a refusal long after a try that a fault was in the way of", "model", "answered \"held\"", func(s *script) {
			s.fault(0, 500, "3.1")
			s.try(100, 600, "3.1", "z")
			s.try(5700, 5710, "2.1", "y")
		}},
		{"a refusal that a cancelled wait explains, of a worker whom the backend did not answer for a while", "", "", func(s *script) {
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.add(900, history.Event{Kind: history.KindSilence, Worker: "3.1", Took: 800 * ms})
			s.add(1600, history.Event{Kind: history.KindSilence, Worker: "3.1", Took: 900 * ms})
			s.try(2300, 2310, "2.1", "y")
		}},
		{"a refusal that the silence of another worker, without a fault, explains", "", "", func(s *script) {
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.add(900, history.Event{Kind: history.KindSilence, Worker: "4.1", Took: 800 * ms})
			s.add(1600, history.Event{Kind: history.KindSilence, Worker: "4.1", Took: 900 * ms})
			s.try(2300, 2310, "2.1", "y")
		}},
		{"a refusal that the silence of another worker, with a fault, does not explain", "model", "answered \"held\"", func(s *script) {
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.fault(40, 60, "4.1")
			s.add(900, history.Event{Kind: history.KindSilence, Worker: "4.1", Took: 800 * ms})
			s.add(1600, history.Event{Kind: history.KindSilence, Worker: "4.1", Took: 900 * ms})
			s.try(2300, 2310, "2.1", "y")
		}},
		{"a refusal that a try without a fault does not explain", "model", "answered \"held\"", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(20, 30, "1.1", "x")
			s.try(31, 35, "3.1", "z")
			s.try(40, 50, "2.1", "y")
		}},
		{"a refusal that a cancelled wait explains: successive faults delayed its release", "", "", func(s *script) {
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.fault(50, 900, "3.1")
			s.fault(1200, 2600, "3.1")
			s.try(3000, 3010, "2.1", "y")
		}},
		{"a refusal that a cancelled wait does not explain: the faults came long after its release", "model", "answered \"held\"", func(s *script) {
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.fault(900, 2600, "3.1")
			s.try(3000, 3010, "2.1", "y")
		}},
		{"a refusal that a worker explains that died before its wait was released", "", "", func(s *script) {
			s.fault(0, 40, "3.1")
			s.call(0, 30, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
			s.proc(history.KindKill, 900, "3.1")
			s.try(1500, 1510, "2.1", "y")
		}},
		{"a refusal that a worker explains that died in the queue, and whose place a new leader extended", "", "", func(s *script) {
			s.call(0, -1, "3.1", history.VerbAcquire, "z", history.Event{})
			s.proc(history.KindKill, 100, "3.1")
			s.fault(600, 1500, "") // a fault of the servers
			s.try(2000, 2010, "2.1", "y")
		}},
		{"a refusal long after that", "model", "answered \"held\"", func(s *script) {
			s.call(0, -1, "3.1", history.VerbAcquire, "z", history.Event{})
			s.proc(history.KindKill, 100, "3.1")
			s.fault(600, 1500, "")
			s.try(2600, 2610, "2.1", "y")
		}},
		{"a loss is told before its time, and the next has the lock", "model", "the backend told its loss before, at 0.5000s", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.add(500, history.Event{Kind: history.KindLost, Worker: "1.1", Acq: "x", Deadline: 1000 * ms, Told: true})
			s.got(510, 520, "2.1", "y", 2)
		}},
		{"a grant to two among many", "overlap model", "These alone have no order: worker 1.1 (exclusive, token 100, may end from 1.6000s on): acquire 0.6000s to 0.6100s; worker 2.1 (", func(s *script) {
			for n := range int64(30) {
				acq := strconv.FormatInt(n, 10)
				s.got(20*n, 20*n+5, "1.1", acq, uint64(n+1))
				s.released(20*n+6, 20*n+10, "1.1", acq)
				s.try(20*n+2, 20*n+4, "3.1", "t"+acq)
			}
			s.got(600, 610, "1.1", "x", 100)
			s.got(620, 630, "2.1", "y", 101)
		}},
		{"a grant to two", "overlap model", "granted twice: worker 1.1 (exclusive, token 1) and worker 2.1", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.got(20, 30, "2.1", "y", 2)
		}},
		{"a grant to two by a hair", "overlap model", "for 1.0 ms", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.call(110, 120, "1.1", history.VerbRelease, "x", history.Event{Outcome: history.Unknown})
			s.got(20, 109, "2.1", "y", 2)
		}},
		{"a grant after the deadline of one who was killed", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.proc(history.KindKill, 100, "1.1")
			s.got(200, 1010, "2.1", "y", 2)
		}},
		{"a grant before the deadline of one who was killed", "model", "may end from 1.0000s on", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.proc(history.KindKill, 100, "1.1")
			s.got(200, 900, "2.1", "y", 2)
		}},
		{"a grant while another is stopped past its deadline", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.proc(history.KindFreeze, 100, "1.1")
			s.got(200, 1100, "2.1", "y", 2)
			s.proc(history.KindThaw, 2000, "1.1")
			s.lost(2001, 1000, "1.1", "x")
			s.released(2050, 2060, "2.1", "y")
		}},
		{"a worker that was stopped checks the lock, and still believes that it holds it", "overlap model", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.proc(history.KindFreeze, 100, "1.1")
			s.got(200, 1100, "2.1", "y", 2)
			s.held(1200, "2.1", "y")
			s.proc(history.KindThaw, 1500, "1.1")
			s.held(1600, "1.1", "x")
		}},
		{"renewed, and granted to another after the first deadline", "overlap model", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.held(900, "1.1", "x")
			s.got(200, 1100, "2.1", "y", 2)
		}},
		{"readers together", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1, shared)
			s.got(20, 30, "2.1", "y", 2, shared)
		}},
		{"a writer among readers", "overlap model", "(shared, token 1)", func(s *script) {
			s.got(0, 10, "1.1", "x", 1, shared)
			s.got(20, 30, "2.1", "y", 2)
		}},
		{"as many permits as there are", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1, permits(1, 3))
			s.got(20, 30, "2.1", "y", 2, permits(2, 3))
		}},
		{"more permits than there are", "overlap model", "more than the limit", func(s *script) {
			s.got(0, 10, "1.1", "x", 1, permits(2, 3))
			s.got(20, 30, "2.1", "y", 2, permits(2, 3))
		}},
		{"of two permits, the one that was never released ends", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1, permits(1, 2))
			s.got(0, 20, "2.1", "y", 2, permits(1, 2))
			s.proc(history.KindKill, 100, "2.1")
			s.got(30, 1001, "3.1", "z", 3, permits(1, 2))
			s.held(900, "1.1", "x")
			s.released(1100, 1110, "1.1", "x")
			s.released(1100, 1110, "3.1", "z")
		}},
		{"a token twice", "tokens model", "given twice", func(s *script) {
			s.got(0, 10, "1.1", "x", 7)
			s.released(20, 30, "1.1", "x")
			s.got(40, 50, "2.1", "y", 7)
		}},
		{"a token that goes back", "tokens model", "went back", func(s *script) {
			s.got(0, 10, "1.1", "x", 7)
			s.released(20, 30, "1.1", "x")
			s.got(40, 50, "2.1", "y", 6)
		}},
		{"tokens of concurrent calls", "", "", func(s *script) {
			s.got(0, 50, "1.1", "x", 7, shared)
			s.got(10, 60, "2.1", "y", 6, shared)
		}},
		{"no token", "tokens model", "without a token", func(s *script) { s.got(0, 10, "1.1", "x", 0) }},
		{"re-entry with another token", "tokens", "re-entry", func(s *script) {
			s.got(0, 10, "1.1", "x", 7)
			s.call(20, 21, "1.1", history.VerbReenter, "x", history.Event{Outcome: history.OK, Token: 8})
		}},
		{"a release of what was released", "model", "release", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(20, 30, "1.1", "x")
			s.call(40, 50, "1.1", history.VerbStaleRelease, "x", history.Event{Outcome: history.OK})
		}},
		{"a renewal brings back what had ended", "model", "stale-renew", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.lost(1001, 1000, "1.1", "x")
			s.got(1100, 1110, "2.1", "y", 2)
			s.released(1200, 1210, "2.1", "y")
			s.call(1300, 1310, "1.1", history.VerbStaleRenew, "x", history.Event{Outcome: history.OK})
		}},
		{"a release whose reply was lost, and the next", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.call(20, -1, "1.1", history.VerbRelease, "x", history.Event{})
			s.got(30, 40, "2.1", "y", 2)
		}},
		{"a stale write is stopped", "", "", func(s *script) {
			s.write(10, history.Guarded, "1.1", 2, "", "b", history.OK)
			s.write(20, history.Guarded, "1.1", 1, "", "a", history.Refused)
		}},
		{"a stale write gets through", "register", "took token 1", func(s *script) {
			s.write(10, history.Guarded, "1.1", 2, "", "b", history.OK)
			s.write(20, history.Guarded, "1.1", 1, "b", "a", history.OK)
		}},
		{"an update is lost", "register", "lost \"b\"", func(s *script) {
			s.write(10, history.Guarded, "1.1", 2, "", "b", history.OK)
			s.write(20, history.Guarded, "1.1", 3, "", "c", history.OK)
		}},
		{"a good write is refused", "register", "refused token 3", func(s *script) {
			s.write(10, history.Guarded, "1.1", 2, "", "b", history.OK)
			s.write(20, history.Guarded, "1.1", 3, "b", "c", history.Refused)
		}},
		{"without the token anything goes", "", "", func(s *script) {
			s.write(10, history.Bare, "1.1", 2, "", "b", history.OK)
			s.write(20, history.Bare, "1.1", 1, "", "a", history.OK)
		}},
		{"told late of the loss", "loss", "900 ms after", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.lost(1900, 1000, "1.1", "x")
		}},
		{"told late because it did not run", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.add(1890, history.Event{Kind: history.KindStall, Worker: "1.1", Took: 900 * ms})
			s.lost(1900, 1000, "1.1", "x")
		}},
		{"told late on a busy machine", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.add(1100, history.Event{Kind: history.KindStall, Worker: "2.1", Took: 40 * ms})
			s.lost(1200, 1000, "1.1", "x")
		}},
		{"no waiter is woken", "liveness", "waited", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(100, 110, "1.1", "x")
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
		}},
		{"two wait, and neither is woken", "liveness", "waited", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(100, 110, "1.1", "x")
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			s.call(60, 9000, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
		}},
		{"no waiter is woken, while other workers arrive and give up", "liveness", "waited", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(100, 110, "1.1", "x")
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			for at := int64(500); at < 9000; at += 500 {
				s.add(at, history.Event{Kind: history.KindStall, Worker: "2.1", Took: 20 * ms})
				s.call(at, at+50, "3.1", history.VerbAcquire, strconv.FormatInt(at, 10), history.Event{Outcome: history.Unknown})
			}
		}},
		{"a long wait while the lock goes round", "", "", func(s *script) {
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			for at := int64(100); at < 9000; at += 500 {
				acq := strconv.FormatInt(at, 10)
				s.got(at, at+10, "3.1", acq, uint64(at))
				s.released(at+20, at+30, "3.1", acq)
			}
		}},
		{"a wait while other workers, whose network is cut, may have held the lock", "", "", func(s *script) {
			s.fault(0, 8000, "3.1")
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			s.call(2000, 8500, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
		}},
		{"a wait in a kept queue, behind a worker whose network is cut", "", "", func(s *script) {
			s.fifo()
			s.fault(0, 8000, "3.1")
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			s.call(40, 8500, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
		}},
		{"a wait in a kept queue, before a worker whose network is cut", "liveness", "worker 2.1 waited", func(s *script) {
			s.fifo()
			s.fault(0, 8000, "3.1")
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			s.call(2000, 8500, "3.1", history.VerbAcquire, "z", history.Event{Outcome: history.Unknown})
		}},
		{"no waiter is woken in a kept queue, while other workers arrive and give up immediately", "liveness", "worker 2.1 waited", func(s *script) {
			s.fifo()
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			for at := int64(100); at < 9000; at += 100 {
				s.call(at, at+4, "3.1", history.VerbAcquire, strconv.FormatInt(at, 10), history.Event{Outcome: history.Unknown})
			}
		}},
		{"no waiter is woken while the network is cut", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.released(100, 110, "1.1", "x")
			s.add(40, history.Event{Kind: history.KindFault, Worker: "2.1", Text: "cut"})
			s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
			s.add(8000, history.Event{Kind: history.KindHeal, Worker: "2.1", Text: "cut"})
		}},
		{"a wait behind one who was killed", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.proc(history.KindKill, 100, "1.1")
			s.got(50, 2900, "2.1", "y", 2)
		}},
		{"a wait behind one who was killed long ago", "liveness", "waited", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.proc(history.KindKill, 100, "1.1")
			s.got(50, 9000, "2.1", "y", 2)
		}},
		{"something is left behind", "rest", "one holder", func(s *script) {
			s.add(10, history.Event{Kind: history.KindLeft, Lock: "a", Text: "one holder"})
		}},
		{"goroutines are left behind", "rest", "began with 5", func(s *script) {
			s.add(10, history.Event{Kind: history.KindEnd, Worker: "1.1", Before: 5, After: 6})
		}},
		{"two locks are two locks", "", "", func(s *script) {
			s.got(0, 10, "1.1", "x", 1)
			s.got(0, 10, "2.1", "y", 1, onLock("b"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			c.play(s)
			r := s.judge()
			ids, texts := violated(r)
			if ids != c.violated || !strings.Contains(texts, c.says) {
				t.Errorf("violated: %q, want %q saying %q\n%s", ids, c.violated, c.says, texts)
			}
			want := verify.Pass
			if c.violated != "" {
				want = verify.Violation
			}
			if r.Verdict != want {
				t.Errorf("the verdict is %q, want %q", r.Verdict, want)
			}
		})
	}
}

func TestTooLittleIsInconclusive(t *testing.T) {
	t.Parallel()
	h, err := history.New([]history.Event{{Kind: history.KindHeader, Header: &history.Header{Version: history.Version, SessionTTL: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	r := verify.Judge(t.Context(), h, verify.Options{})
	if r.Verdict != verify.Inconclusive {
		t.Errorf("the verdict on nothing is %q", r.Verdict)
	}
	if c := r.Checks[len(r.Checks)-1]; c.ID != "traffic" || c.Found != 2 {
		t.Errorf("got %+v", c)
	}
}

// A wait that is too long by the default may be normal on such a machine.
func TestGrace(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	s.got(0, 10, "1.1", "x", 1)
	s.released(100, 110, "1.1", "x")
	s.call(50, 9000, "2.1", history.VerbAcquire, "y", history.Event{Outcome: history.Unknown})
	h, err := history.New(append(s.events, history.Event{Kind: history.KindFooter, At: 10_000 * ms}))
	if err != nil {
		t.Fatal(err)
	}
	for grace, want := range map[time.Duration]string{0: "liveness", 10 * time.Second: ""} {
		if ids, _ := violated(verify.Judge(t.Context(), h, verify.Options{MinGrants: -1, Grace: grace})); ids != want {
			t.Errorf("with a grace of %s: violated %q, want %q", grace, ids, want)
		}
	}
}

// A search that is ended is neither passed nor failed.
func TestAnEndedSearchIsInconclusive(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	s.got(0, 10, "1.1", "x", 1)
	h, err := history.New(append(s.events, history.Event{Kind: history.KindFooter, At: 20}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := verify.Judge(ctx, h, verify.Options{MinGrants: -1})
	if r.Verdict != verify.Inconclusive {
		t.Errorf("the verdict is %q", r.Verdict)
	}
	for _, c := range r.Checks {
		want := verify.Pass
		if c.ID == "model" {
			want = verify.Inconclusive
		}
		if c.Verdict != want {
			t.Errorf("%s is %q, want %q", c.ID, c.Verdict, want)
		}
	}
}
