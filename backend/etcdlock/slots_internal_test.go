package etcdlock

import (
	"testing"
	"time"
)

// A request whose slot is taken moves to slots that it had not before: leases that this value has
// forgotten, or that other values put there, may be in several.
func TestSlotsMoveOn(t *testing.T) {
	t.Parallel()
	s := newSlots()
	p := s.take(leaseKey{"n", "l"}, nil)
	for want := range 4 {
		if p.number != want {
			t.Fatalf("slot %d; want %d", p.number, want)
		}
		s.move(p)
	}
}

// What a session left behind is forgotten when it has ended, also where its caller gave up waiting. A timed lease
// that is held stays.
func TestSlotsForgetASession(t *testing.T) {
	t.Parallel()
	s, sess, other := newSlots(), new(session), new(session)
	for name, of := range map[string]*session{"held": sess, "gave up": sess, "timed": sess, "calls": sess, "other": other} {
		p := s.take(leaseKey{name, "l"}, of)
		s.stand(p, name, 1)
		if name != "calls" {
			s.leave(p, false, false)
		}
	}
	s.held(s.placed[leaseKey{"held", "l"}], sess)
	s.timed(leaseKey{"timed", "l"}, time.Minute, 0)
	s.ended(sess)
	for name, there := range map[string]bool{"held": false, "gave up": false, "timed": true, "calls": true, "other": true} {
		if _, ok := s.find(leaseKey{name, "l"}); ok != there {
			t.Errorf("%s: known %t, want %t", name, ok, there)
		}
	}
}
