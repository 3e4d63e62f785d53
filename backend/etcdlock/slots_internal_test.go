package etcdlock

import "testing"

// A request whose slot is taken moves to slots that it had not before: leases that this value has
// forgotten, or that other values put there, may be in several.
func TestSlotsMoveOn(t *testing.T) {
	t.Parallel()
	s := newSlots()
	p := s.take(leaseKey{"n", "l"})
	for want := range 4 {
		if p.number != want {
			t.Fatalf("slot %d; want %d", p.number, want)
		}
		s.move(p)
	}
}
