package connlease

import (
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// A request is in a piece of work once, also where others behind it are refused while the work is gathered. It may be given
// up while the work is on its way.
func TestQueuedOnce(t *testing.T) {
	t.Parallel()
	s := newSession(New(Config{Wakes: true, Pause: func(time.Duration) time.Duration { return time.Hour }}),
		backend.SessionRequest{ID: "s", TTL: time.Hour})
	s.deadline = time.Now().Add(time.Hour)
	ask := func(name string, id backend.LeaseID, wait bool) {
		req := backend.AcquireRequest{Name: name, Lease: id, Mode: backend.Exclusive, Permits: 1, Limit: 1, Wait: wait, Session: "s"}
		if _, err := s.join(req); err != nil {
			t.Fatal(err)
		}
	}
	const rounds, most = 2000, 12
	for round := range rounds {
		var names []string
		for i := range 1 + round%most {
			names = append(names, strconv.Itoa(round)+"-"+strconv.Itoa(i))
			ask(names[i], "first", false)
		}
		w := s.gather()
		for i, name := range names { // the first is on its way
			w.Try[i].Granted = true
			ask(name, "waits", true)
			ask(name, "tries", false)
		}
		s.settle(w)
		w = s.gather()
		if len(w.Join) != len(names) {
			t.Fatalf("%d of %d requests are to be queued", len(w.Join), len(names))
		}
		for _, name := range names {
			s.leave(Key{Name: name, ID: "first"}, false)
			s.leave(Key{Name: name, ID: "waits"}, true)
		}
		s.settle(w)
		for w = s.gather(); w != nil; w = s.gather() {
			s.settle(w)
		}
	}
}

// C6, C8: a caller that waits for a lease that another one only tries, and which is refused meanwhile, is woken like any other.
func TestWaitsForWhatIsTried(t *testing.T) {
	t.Parallel()
	s := newSession(New(Config{Wakes: true, Pause: func(time.Duration) time.Duration { return time.Hour }}),
		backend.SessionRequest{ID: "s", TTL: time.Hour})
	s.deadline = time.Now().Add(time.Hour)
	req := backend.AcquireRequest{Name: "name", Lease: "lease", Session: "s"}
	if _, err := s.join(req); err != nil {
		t.Fatal(err)
	}
	w := s.gather()
	req.Wait = true
	l, err := s.join(req)
	if err != nil {
		t.Fatal(err)
	}
	s.settle(w) // refused
	if w = s.gather(); w == nil || len(w.Try) != 1 || !w.Try[0].Queue {
		t.Fatalf("the store is not asked to queue it: %+v", w)
	}
	s.settle(w)
	if !l.queued || isClosed(l.done) {
		t.Error("it does not wait in the store")
	}
}
