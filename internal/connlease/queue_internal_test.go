package connlease

import (
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// pushing returns a session whose store queues requests and wakes them, and which is not connected.
func pushing() *session {
	b := New(Config{Caps: backend.Capabilities{Push: true}, Rest: retry.Rest{Least: time.Hour, Longest: time.Hour}})
	s := newSession(b, backend.SessionRequest{ID: "s", TTL: time.Hour})
	s.deadline = time.Now().Add(time.Hour)
	return s
}

// asks has a caller ask for an exclusive lock.
func asks(s *session, name string, id backend.LeaseID, wait bool) *caller {
	c := &caller{wait: wait, answer: make(chan answer, 1)}
	s.post(func() { s.ask(backend.AcquireRequest{Name: name, Lease: id, Wait: wait, Session: "s"}, c) })
	return c
}

// gives has a lease given up.
func gives(s *session, name string, id backend.LeaseID, abandon bool) {
	s.post(func() { s.giveUp(Key{Name: name, ID: id}, abandon, make(chan error, 1)) })
}

// A request is in a piece of work once, also where others behind it are refused while the work is gathered. It may be given
// up while the work is on its way.
func TestQueuedOnce(t *testing.T) {
	t.Parallel()
	s := pushing()
	const rounds, most = 2000, 12
	for round := range rounds {
		var names []string
		for i := range 1 + round%most {
			names = append(names, strconv.Itoa(round)+"-"+strconv.Itoa(i))
			asks(s, names[i], "first", false)
		}
		w := s.gather()
		for i, name := range names { // the first is on its way
			w.Try[i].Granted = true
			asks(s, name, "waits", true)
			asks(s, name, "tries", false)
		}
		s.settle(w)
		w = s.gather()
		if len(w.Try) != len(names) || !w.Try[0].Behind || w.Try[0].Req.Lease != "waits" {
			t.Fatalf("%d of %d requests are to be queued", len(w.Try), len(names))
		}
		for _, name := range names {
			gives(s, name, "first", false)
			gives(s, name, "waits", true)
		}
		s.settle(w)
		for w = s.gather(); w != nil; w = s.gather() {
			s.settle(w)
		}
	}
	if n := len(s.leases) + len(s.held) + len(s.queues) + len(s.due); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// C6, C8: a caller that waits for a lease that another one only tries, and which is refused meanwhile, is woken like any other.
func TestWaitsForWhatIsTried(t *testing.T) {
	t.Parallel()
	s := pushing()
	tries := asks(s, "name", "lease", false)
	w := s.gather()
	waits := asks(s, "name", "lease", true)
	s.settle(w) // refused
	if a := <-tries.answer; a.err == nil {
		t.Errorf("the one that tries: %+v", a)
	}
	if w = s.gather(); w == nil || len(w.Try) != 1 || !w.Try[0].Queue {
		t.Fatalf("the store is not asked to queue it: %+v", w)
	}
	s.settle(w)
	if l := s.leases[Key{Name: "name", ID: "lease"}]; l == nil || !l.queued || !waits.waits.Load() || len(waits.answer) != 0 {
		t.Error("it does not wait in the store")
	}
}

// C8: the lock may be freed after the try and before the store has queued those that wait. So the first of them is tried
// once more, also where the one that was tried does not wait and has gone.
func TestFirstInTheQueueIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		s := pushing()
		if gone {
			asks(s, "name", "tries", false)
		}
		asks(s, "name", "waits", true)
		s.settle(s.gather()) // refused
		w := s.gather()
		if w == nil || len(w.Try) != 1 || w.Try[0].Behind || w.Try[0].Req.Lease != "waits" {
			t.Fatalf("behind one that has gone %v: %+v", gone, w)
		}
		s.settle(w)
		if w = s.gather(); w != nil {
			t.Errorf("behind one that has gone %v: a third try: %+v", gone, w)
		}
	}
}
