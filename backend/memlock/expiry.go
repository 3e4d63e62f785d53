package memlock

import (
	"container/heap"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// deadline is the end of a session or of a timed lease that is held: of the one that is not
// nil.
type deadline struct {
	ofSession *session
	ofLease   *lease
	ends      instant
	// due is its key in the schedule. It may be before ends: a renewal, which is the most
	// frequent operation, only moves ends, and the key follows when it comes up.
	due   instant
	index int // in the schedule, plus 1; 0: it is not there
}

// schedule is a heap of deadlines.
type schedule []*deadline

// Len implements heap.Interface.
func (s *schedule) Len() int { return len(*s) }

// Less implements heap.Interface.
func (s *schedule) Less(i, j int) bool { return (*s)[i].due < (*s)[j].due }

// Swap implements heap.Interface.
func (s *schedule) Swap(i, j int) {
	q := *s
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	d := x.(*deadline) //nolint:forcetypeassert // only deadlines are pushed
	*s = append(*s, d)
	d.index = len(*s)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	d := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	d.index = 0
	return d
}

// schedule sets, or moves, the end of d.
func (s *Store) schedule(d *deadline, ends instant) {
	d.ends = ends
	switch {
	case d.index == 0:
		d.due = ends
		heap.Push(&s.due, d)
	case ends < d.due:
		d.due = ends
		heap.Fix(&s.due, d.index-1)
	}
}

func (s *Store) unschedule(d *deadline) {
	if d.index > 0 {
		heap.Remove(&s.due, d.index-1)
	}
}

// expire ends what has expired. It hands nothing over: a waiter whose session expires at the
// same moment must not be granted.
func (s *Store) expire() {
	for len(s.due) > 0 && s.due[0].due <= s.now {
		switch d := s.due[0]; {
		case d.ends > s.now:
			d.due = d.ends
			heap.Fix(&s.due, 0)
		case d.ofSession != nil:
			s.endSession(d.ofSession, nil, backend.EventExpired, backend.CauseExpired)
		default:
			lockstate.Lose(s.rules(), d.ofLease, backend.EventExpired, backend.CauseExpired, "")
		}
	}
}

// arm sets the timer to the next end. A timer that fires too early is set again.
func (s *Store) arm() {
	if s.opened == 0 || len(s.due) == 0 || s.timerAt <= s.due[0].due {
		return
	}
	s.timerAt = s.due[0].due
	d := max(0, time.Duration(s.timerAt-s.now))
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.tick)
	} else {
		s.timer.Reset(d)
	}
}

// tick runs when the timer fires: enter and leave do all the work.
func (s *Store) tick() {
	s.enter()
	s.timerAt = never
	s.leave()
}

// disarm stops the timer.
func (s *Store) disarm() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timerAt = never
}
