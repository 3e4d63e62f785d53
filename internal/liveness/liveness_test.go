package liveness_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

const (
	ttl = 9 * time.Second
	// late is after the end on this side, and before the end on the backend, of what was renewed 9 s
	// earlier.
	late = ttl - 50*time.Millisecond
)

var errAway = errors.New("away")

// world has a machine, and writes down what it reports.
type world struct {
	m        *liveness.Machine
	now      clock.Instant
	log      []string
	session  *liveness.Session
	leases   map[string]*liveness.Lease
	due      liveness.Due                 // of the last step that asked for something
	renewals map[string]*liveness.Renewal // that the holder asked for, by their names
}

func newWorld() *world {
	w := &world{leases: make(map[string]*liveness.Lease), renewals: make(map[string]*liveness.Renewal)}
	w.m = liveness.New(w, ttl)
	w.m.SetPhase(0)
	w.session = liveness.NewSession(ttl)
	return w
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) Wake()                   {}
func (w *world) Ended(*liveness.Session) { w.note("session over") }
func (w *world) Renewed(leases int, margin, _ time.Duration, err error) {
	w.note("renewed %d with %s left: %v", leases, margin.Round(time.Second), err)
}

func (w *world) AtRisk(leases int, left time.Duration, err error) {
	w.note("%d at risk for %s: %v", leases, left.Round(time.Second), err)
}

// holder is the holder of one lease of a world.
type holder struct {
	w    *world
	name string
}

func (h holder) Lost(cause backend.Cause, reason string, err error) {
	h.w.note("%s lost: %s%s %v, held: %t", h.name, cause, reason, err, h.w.leases[h.name].Held())
}
func (h holder) Moved()   { h.w.note("%s moved", h.name) }
func (h holder) Abandon() { h.w.note("%s abandoned", h.name) }

// An input is what happens to a world.
type input func(*world)

func open(w *world) { w.m.Opened(w.session, w.now) }

// expect begins to acquire a lease: one of the session, or, with a TTL, a timed one that waits in the
// session.
func expect(name string, ttl time.Duration) input {
	return func(w *world) {
		l := &liveness.Lease{
			Holder: holder{w, name}, Name: name, ID: backend.LeaseID(name), Session: w.session, Timed: ttl > 0, TTL: ttl, Life: ttl,
		}
		w.leases[name] = l
		if !w.m.Expect(l) {
			w.note("%s is not expected", name)
		}
	}
}

// granted ends it: the request left now.
func granted(name string, left, most time.Duration) input {
	return func(w *world) {
		l := w.leases[name]
		if !w.m.Granted(l, w.now, w.now, left, most) {
			w.note("%s has no time left", name)
			return
		}
		w.m.Hold(l)
		w.log = nil
	}
}

func hold(name string, ttl time.Duration) input {
	return func(w *world) {
		expect(name, ttl)(w)
		granted(name, ttl, 0)(w)
	}
}

func holdFor(name string, most time.Duration) input {
	return func(w *world) {
		expect(name, 0)(w)
		granted(name, 0, most)(w)
	}
}

// reserve holds a timed lease that is not renewed.
func reserve(name string, ttl time.Duration) input {
	return func(w *world) {
		expect(name, ttl)(w)
		w.leases[name].TTL = 0
		granted(name, ttl, 0)(w)
	}
}

func step(w *world) {
	due, _ := w.m.Step(w.now, time.Hour)
	if len(due.Sessions) > 0 {
		w.note("renew session")
	}
	for _, f := range due.Renewals {
		w.note("renew %s for %s", f.Lease.Name, f.TTL)
	}
	if len(due.Sessions) > 0 || len(due.Renewals) > 0 {
		w.due = due
	}
}

// answer is that to the request of the last step, which left so long ago.
func answer(took time.Duration, res backend.RenewResult, err error) input {
	return func(w *world) {
		if len(res.Leases) == 0 && err == nil {
			for _, f := range w.due.Renewals {
				res.Leases = append(res.Leases, backend.Renewal{Left: f.TTL})
			}
		}
		w.m.Answered(w.due, w.now-clock.Instant(took), w.now, res, err)
	}
}

func ok(took time.Duration) input      { return answer(took, backend.RenewResult{}, nil) }
func fails(took time.Duration) input   { return answer(took, backend.RenewResult{}, errAway) }
func report(loss backend.Loss) input   { return func(w *world) { w.m.Report(w.session, loss) } }
func check(name string) input          { return func(w *world) { w.m.Check(w.leases[name], w.now) } }
func release(name string) input        { return func(w *world) { w.m.Release(w.leases[name]) } }
func watch(name string) input          { return func(w *world) { w.m.Watch(w.leases[name]) } }
func cutShort(name string) input       { return func(w *world) { w.leases[name].Late = true } }
func endSession(c backend.Cause) input { return func(w *world) { w.m.EndSession(w.session, c, nil) } }

// extend sends a renewal that the holder asked for, and extended is its answer.
func extend(renewal, name string, ttl time.Duration) input {
	return func(w *world) { w.renewals[renewal] = w.m.StartRenewal(w.leases[name], w.now, ttl) }
}

func extended(renewal string, sent time.Duration, r backend.Renewal) input {
	return func(w *world) { w.m.AnsweredOne(w.renewals[renewal], clock.Instant(sent), w.now, r, nil) }
}

func unanswered(renewal string) input { return func(w *world) { w.m.GiveUp(w.renewals[renewal]) } }

// deadline notes when a lease ends.
func deadline(name string) input {
	return func(w *world) {
		w.note("%s until %s", name, time.Duration(w.leases[name].Deadline()).Round(100*time.Millisecond))
	}
}

// risk notes whether the last renewal of a lease failed.
func risk(name string) input {
	return func(w *world) { w.note("%s at risk: %t", name, w.leases[name].AtRisk()) }
}

// TestTransitions has a row for each thing that can happen to a session or a lease in each state. The
// numbers are seconds.
func TestTransitions(t *testing.T) {
	t.Parallel()
	const sec = time.Second
	left := func(d time.Duration) backend.Renewal { return backend.Renewal{Left: d} }
	type at struct {
		when time.Duration
		do   input
		want string
	}
	for name, script := range map[string][]at{
		"a session is renewed after a third of its TTL, and counts from when the request left": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{0, deadline("a"), "a until 8.9s"},
			{3*sec - 1, step, ""},
			{3 * sec, step, "renew session"},
			{4 * sec, step, ""},
			{4 * sec, ok(sec), "renewed 1 with 5s left: <nil>"},
			{4 * sec, deadline("a"), "a until 11.9s"},
			{6*sec - 1, step, ""},
			{6 * sec, step, "renew session"},
		},
		"a renewal that fails is tried again until the deadline": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{3 * sec, step, "renew session"},
			{4 * sec, fails(sec), "renewed 1 with 5s left: away; 1 at risk for 5s: away"},
			{4 * sec, risk("a"), "a at risk: true"},
			{5 * sec, step, "renew session"},
			{6 * sec, fails(sec), "renewed 1 with 3s left: away"},
			{7 * sec, step, "renew session"},
			{8 * sec, ok(sec), "renewed 1 with 1s left: <nil>"},
			{8 * sec, risk("a"), "a at risk: false"},
			{8 * sec, deadline("a"), "a until 15.9s"},
		},
		"a session without an answer ends at its deadline, with its leases": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{0, hold("b", 30*sec), ""},
			{3 * sec, step, "renew session"},
			{4 * sec, fails(sec), "renewed 1 with 5s left: away; 1 at risk for 5s: away"},
			{late, step, "session over; a lost: deadline away, held: true"},
			{late, check("a"), ""},
			{late, ok(sec), ""}, // too late
		},
		"an answer after the deadline does not revive a session": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{3 * sec, step, "renew session"},
			{late, ok(sec), "renewed 1 with 0s left: <nil>; session over; a lost: deadline <nil>, held: true"},
		},
		"whoever looks at a lease need not wait for a step": {
			{0, open, ""}, {0, hold("a", 0), ""}, {late, check("a"), "session over; a lost: deadline <nil>, held: true"}, {late, step, ""},
		},
		"a session that the backend lost": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{3 * sec, step, "renew session"},
			{3 * sec, answer(0, backend.RenewResult{SessionLost: true}, nil), "renewed 1 with 6s left: <nil>; session over; a lost: session <nil>, held: true"},
			{4 * sec, expect("b", 0), "b is not expected"},
			{12 * sec, step, ""},
		},
		"a session that is closed": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{0, endSession(backend.CauseClosed), "session over; a lost: closed <nil>, held: true"},
			{0, endSession(backend.CauseClosed), ""},
		},
		"a lease that is broken": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{0, hold("b", 0), ""},
			{sec, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken, Reason: "!"}), "a lost: broken! <nil>, held: true"},
			{sec, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken}), ""},
			{3 * sec, step, "renew session"},
			{3 * sec, ok(0), "renewed 1 with 6s left: <nil>"},
		},
		"the answer to a renewal names a lease that is lost": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{3 * sec, step, "renew session"},
			{3 * sec, answer(0, backend.RenewResult{Lost: []backend.Loss{{Lease: "a", Cause: backend.CauseGone}}}, nil), "renewed 1 with 6s left: <nil>; a lost: gone <nil>, held: true"},
		},
		"a lease that is lost while it is being acquired": {
			{0, open, ""},
			{0, expect("a", 0), ""},
			{0, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken}), "a lost: broken <nil>, held: false"},
			{sec, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken}), ""},
		},
		"a lease whose earlier attempt may have been granted is released when it is lost": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{0, cutShort("a"), ""},
			{sec, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken}), "a lost: broken <nil>, held: true; a abandoned"},
		},
		"a lease that was released is not lost": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{sec, release("a"), ""},
			{sec, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken}), ""},
			{late, step, "session over"},
		},
		"a lease that is held for a limited time": {
			{0, open, ""},
			{0, holdFor("a", 2*sec), ""},
			{0, deadline("a"), "a until 2s"},
			{2*sec - 1, step, ""},
			{2 * sec, step, "a lost: at_most <nil>, held: true; a abandoned"},
		},
		"a grant without time left": {
			{0, open, ""}, {0, expect("a", sec), ""}, {0, granted("a", time.Millisecond, 0), "a moved; a has no time left"},
		},
		"a lease that is watched moves with its session": {
			{0, open, ""},
			{0, hold("a", 0), ""},
			{0, watch("a"), ""},
			{3 * sec, step, "renew session"},
			{3 * sec, ok(0), "renewed 1 with 6s left: <nil>; a moved"},
			{4 * sec, release("a"), ""},
			{6 * sec, step, "renew session"},
			{6 * sec, ok(0), "renewed 0 with 6s left: <nil>"},
		},
		"a timed lease is renewed by itself, and outlives its session": {
			{0, open, ""},
			{0, hold("a", ttl), ""},
			{0, endSession(backend.CauseSession), "session over"},
			{3 * sec, step, "renew a for 9s"},
			{4 * sec, ok(sec), "renewed 1 with 5s left: <nil>; a moved"},
			{4 * sec, deadline("a"), "a until 11.9s"},
		},
		"a timed lease does not end with the session that it waits in": {
			{0, open, ""}, {0, expect("a", ttl), ""}, {0, endSession(backend.CauseSession), "session over"},
		},
		"the backend grants less than was asked for": {
			{0, hold("a", ttl), ""},
			{3 * sec, step, "renew a for 9s"},
			{3 * sec, answer(0, backend.RenewResult{Leases: []backend.Renewal{left(sec)}}, nil), "renewed 1 with 6s left: <nil>; a moved"},
			{3 * sec, deadline("a"), "a until 4s"},
		},
		"a timed lease whose renewal fails": {
			{0, hold("a", ttl), ""},
			{3 * sec, step, "renew a for 9s"},
			{4 * sec, fails(sec), "renewed 1 with 5s left: away; 1 at risk for 5s: away"},
			{4 * sec, risk("a"), "a at risk: true"},
			{6 * sec, step, "renew a for 9s"},
			{7 * sec, fails(sec), "renewed 1 with 2s left: away"},
			{late, step, "a lost: deadline away, held: true"},
		},
		"a timed lease whose renewal comes too late": {
			{0, hold("a", ttl), ""}, {3 * sec, step, "renew a for 9s"}, {late, ok(sec), "renewed 1 with 0s left: <nil>; a lost: deadline <nil>, held: true"},
		},
		"a timed lease that the backend does not have": {
			{0, hold("a", ttl), ""},
			{3 * sec, step, "renew a for 9s"},
			{3 * sec, answer(0, backend.RenewResult{Leases: []backend.Renewal{{Err: backend.ErrLost}}}, nil), "renewed 1 with 6s left: lease is lost; a lost: gone <nil>, held: true"},
		},
		"a timed lease that is broken": {
			{0, open, ""}, {0, hold("a", ttl), ""}, {sec, report(backend.Loss{Lease: "a", Cause: backend.CauseBroken}), "a lost: broken <nil>, held: true"},
		},
		"a reservation is not renewed, and ends": {
			{0, reserve("a", ttl), ""}, {3 * sec, step, ""}, {late, step, "a lost: ended <nil>, held: true"},
		},
		"an extension to a shorter TTL may shorten the lease before it is answered": {
			{0, hold("a", ttl), ""}, {0, extend("x", "a", 2*sec), ""}, {0, deadline("a"), "a until 2s"}, {0, unanswered("x"), ""}, {0, deadline("a"), "a until 2s"},
		},
		"an extension that overtakes a shorter one is worth no more than that": {
			{0, hold("a", ttl), ""},
			{0, extend("short", "a", 2*sec), ""},
			{0, extend("long", "a", 8*sec), ""},
			{sec, extended("long", 0, left(8*sec)), "renewed 1 with 1s left: <nil>; a moved"},
			{sec, deadline("a"), "a until 2s"},
		},
		"an extension that got no answer may arrive after all later ones": {
			{0, hold("a", ttl), ""},
			{0, extend("short", "a", 2*sec), ""},
			{0, unanswered("short"), ""},
			{sec, extend("long", "a", 8*sec), ""},
			{sec, extended("long", sec, left(8*sec)), "renewed 1 with 1s left: <nil>; a moved"},
			{sec, deadline("a"), "a until 3s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for i, x := range script {
				w.now, w.log = clock.Instant(x.when), nil
				x.do(w)
				if got := strings.Join(w.log, "; "); got != x.want {
					t.Fatalf("step %d, at %s:\n%s\nwant\n%s", i+1, x.when, got, x.want)
				}
			}
		})
	}
}

// What is due goes into as few requests as the backend allows, and none waits for its answer so long
// that nothing can be tried after it.
func TestDue(t *testing.T) {
	t.Parallel()
	w := newWorld()
	open(w)
	for i := range 5 {
		hold(strconv.Itoa(i), ttl)(w)
	}
	w.now = clock.Instant(3 * time.Second)
	step(w)
	for most, want := range map[int][]int{0: {5}, 1: {1, 1, 1, 1, 1}, 2: {2, 2, 1}, 5: {5}, 9: {5}} {
		if sizes, named := parts(w.due, most); fmt.Sprint(sizes) != fmt.Sprint(want) || named != 1 {
			t.Errorf("with at most %d: %v, %d of them with the session; want %v", most, sizes, named, want)
		}
	}
	if sizes, _ := parts(liveness.Due{}, 1); len(sizes) != 0 {
		t.Errorf("nothing is due, and %d requests are sent", len(sizes))
	}
	for now, want := range map[time.Duration]time.Duration{3 * time.Second: ttl / 5, 8 * time.Second: 454 * time.Millisecond, ttl: 10 * time.Millisecond} {
		if d := w.due.Patience(clock.Instant(now)); d != want {
			t.Errorf("at %s it waits %s for the answer, want %s", now, d, want)
		}
	}
}

// parts returns how many leases each request of what is due names, and how many requests name a session.
func parts(due liveness.Due, most int) ([]int, int) {
	var sizes []int
	named := 0
	for _, p := range due.Parts(most) {
		req := p.Request()
		sizes = append(sizes, len(req.Leases))
		if req.Session != "" {
			named++
		}
	}
	return sizes, named
}

// Each session has a request of its own, and ends for itself.
func TestSessions(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var all []*liveness.Session
	for range 3 {
		w.session = liveness.NewSession(ttl)
		open(w)
		all = append(all, w.session)
	}
	hold("a", ttl)(w)
	hold("b", 0)(w) // of the last session
	w.now = clock.Instant(3 * time.Second)
	step(w)
	if sizes, named := parts(w.due, 0); fmt.Sprint(sizes) != "[1 0 0]" || named != 3 {
		t.Fatalf("%d requests name a session; they have so many leases: %v", named, sizes)
	}
	for _, p := range w.due.Parts(0) {
		res := backend.RenewResult{SessionLost: p.Sessions[0] == all[1], Leases: make([]backend.Renewal, len(p.Renewals))}
		for n := range p.Renewals {
			res.Leases[n].Left = ttl
		}
		w.m.Answered(p, w.now, w.now, res, nil)
	}
	if all[0].Ended() || !all[1].Ended() || all[2].Ended() || !w.leases["b"].Held() {
		t.Errorf("only the second session is lost; ended: %t %t %t; the lease of the third is held: %t",
			all[0].Ended(), all[1].Ended(), all[2].Ended(), w.leases["b"].Held())
	}
}

// The sessions of one machine are not renewed all at the same time. Only the first one shares the times
// of timed leases.
func TestSessionsAreNotRenewedInStep(t *testing.T) {
	t.Parallel()
	const many = 24
	w := newWorld()
	for range many {
		w.session = liveness.NewSession(ttl)
		open(w)
	}
	hold("a", ttl)(w)
	most, all := 0, 0
	for w.now = clock.Instant(2 * time.Second); w.now <= clock.Instant(3*time.Second); w.now += clock.Instant(10 * time.Millisecond) {
		due, _ := w.m.Step(w.now, time.Hour)
		most = max(most, len(due.Sessions))
		all += len(due.Sessions)
		if len(due.Renewals) > 0 && len(due.Sessions) == 0 {
			t.Errorf("at %s a timed lease is renewed apart from the first session", time.Duration(w.now))
		}
	}
	if all != many || most > many/2 {
		t.Errorf("of %d sessions %d were renewed, %d of them at the same time", many, all, most)
	}
}
