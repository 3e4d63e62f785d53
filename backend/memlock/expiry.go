package memlock

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/schedule"
)

// end is the end of a session, or of a timed lease that is held, which is its owner.
type end = schedule.Entry[instant, any]

// expire ends what has expired. It hands nothing over: a waiter whose session expires at the
// same moment must not be granted.
func (s *Store) expire() {
	for s.due.Len() > 0 && s.due.First().At() <= s.now {
		switch x := s.due.First().Owner.(type) {
		case *session:
			s.endSession(x, nil, backend.EventExpired, backend.CauseExpired)
		case *lease:
			lockstate.Lose(s.rules(), x, backend.EventExpired, backend.CauseExpired, "")
		}
	}
}

// arm sets the timer to the next end. A timer that fires too early is set again.
func (s *Store) arm() {
	if s.opened == 0 || s.due.Len() == 0 || s.timerAt <= s.due.First().At() {
		return
	}
	s.timerAt = s.due.First().At()
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
