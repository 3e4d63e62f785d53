package connlease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// session is a session of the contract and its connection.
type session struct {
	b    *Leases
	id   backend.SessionID
	ttl  time.Duration
	lost func(backend.Loss) // may be nil
	conn Conn               // used by run alone, once opened is closed

	opened chan struct{} // closed when it was opened, or could not be
	err    error         // why it could not be opened; read after opened
	over   chan struct{} // closed when the session has ended
	todo   chan struct{} // capacity 1, never closed: there is something to do

	mu        sync.Mutex // guards what follows
	deadline  time.Time  // when it ends unless it is renewed; by the local clock
	ending    bool       // a caller wants it to end
	ended     bool
	leases    map[Key]*lease
	spots     map[string]*spot
	abandoned *lockstate.Ended[Key]
	told      []toldLoss

	// What to send next.
	due    map[string]turn // locks whose requests are to be sent
	freed  []*lease        // held until they are sent
	left   []*lease        // were in the queue
	renews []chan struct{} // closed when the renewal is known to have succeeded
	look   bool

	moved  time.Time // the last change for the waiters
	looked time.Time // when the marks were last read
	again  time.Time // when to try for the waiters in any case
}

// turn is what the requests of a lock are due for. A later one includes those before.
type turn uint8

const (
	toQueue turn = iota + 1 // those that wait are queued in the store
	toPoll                  // the front is tried, because of the timer
	toTry                   // the front is tried, because the lock may be free
)

// toldLoss is a loss that renewals report until until: for one TTL, so that a client that lost
// the reply to one renewal learns it from the next one.
type toldLoss struct {
	loss  backend.Loss
	until time.Time
}

// spot is the session's state of one lock.
type spot struct {
	out   []*lease
	queue []*lease // first come first
}

type state uint8

const (
	inQueue state = iota
	out
	over
)

// lease is an acquisition: first in the queue, then held, then over.
type lease struct {
	req    backend.AcquireRequest
	state  state
	wait   bool // a caller waits, so it stays in the queue when it is refused
	trying bool // it is being tried
	gone   bool // no longer wanted; if it is granted, it is released
	queued bool // it may be in the store's queue
	timer  bool // the newest try was not due to a wake-up

	tried chan struct{} // closed at the first answer
	done  chan struct{} // closed when it leaves the queue
	freed chan struct{} // closed when the store has nothing of it any more
	err   error         // why it ended; read after done

	token  fence.Token
	since  time.Time
	waited bool
}

func newSession(b *Leases, req backend.SessionRequest) *session {
	return &session{
		b: b, id: req.ID, ttl: req.TTL, lost: req.Lost, opened: make(chan struct{}), over: make(chan struct{}), todo: make(chan struct{}, 1),
		leases: make(map[Key]*lease), spots: make(map[string]*spot), abandoned: lockstate.NewEnded[Key](remembered), due: make(map[string]turn),
	}
}

func (s *session) wake() {
	select {
	case s.todo <- struct{}{}:
	default:
	}
}

// hear processes a note of the server.
func (s *session) hear(n Note) {
	s.mu.Lock()
	if n.Wake != "" && !s.ended {
		s.due[n.Wake] = toTry
	}
	s.look = s.look || n.Marked
	s.mu.Unlock()
	s.wake()
}

// finish makes the session end.
func (s *session) finish() {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	s.wake()
}

// renew extends the session. Errors: ErrSessionLost; ctx's cause.
func (s *session) renew(ctx context.Context) error {
	done := make(chan struct{})
	s.mu.Lock()
	s.renews = append(s.renews, done)
	s.mu.Unlock()
	s.wake()
	select {
	case <-done:
		return nil
	case <-s.over:
		return backend.ErrSessionLost
	case <-ctx.Done():
		return connect.Cause(ctx, ctx.Err())
	}
}

// losses returns the losses that a renewal reports.
func (s *session) losses() []backend.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.told = slices.DeleteFunc(s.told, func(t toldLoss) bool { return t.until.Before(now) })
	var all []backend.Loss
	for _, t := range s.told {
		all = append(all, t.loss)
	}
	return all
}

var errExpired = errors.New("the session was not renewed")

// run uses the connection until the session has ended.
func (s *session) run() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// What is in progress when the backend is closed has a moment to end.
	defer context.AfterFunc(s.b.life, func() {
		s.wake()
		time.AfterFunc(hangUpTime, func() { cancel(backend.ErrClosed) })
	})()
	for {
		w := s.gather()
		if w == nil {
			if err := s.rest(ctx); err != nil {
				s.die(err)
				return
			}
			continue
		}
		if err := s.send(ctx, w); w.End || err != nil {
			s.die(err)
			return
		}
		s.settle(w)
	}
}

const (
	// hangUpTime is how long a session has to release everything when the backend is closed, and
	// endTime when it ends otherwise. Then the connection is closed.
	hangUpTime = time.Second
	endTime    = 5 * time.Second
)

// send sends the work. An answer that arrives after the session's end is of no use.
func (s *session) send(ctx context.Context, w *Work) error {
	s.mu.Lock()
	at := s.deadline
	s.mu.Unlock()
	if w.End {
		at = time.Now().Add(endTime)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, at, errExpired)
	defer cancel()
	err := s.conn.Do(ctx, w)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// rest listens until there is something to do.
func (s *session) rest(ctx context.Context) error {
	s.mu.Lock()
	at := s.deadline
	if !s.again.IsZero() && s.again.Before(at) {
		at = s.again
	}
	if look := s.nextLook(); look.Before(at) {
		at = look
	}
	s.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, at)
	defer cancel()
	quit := make(chan struct{})
	var helper sync.WaitGroup
	helper.Go(func() {
		select {
		case <-s.todo:
			cancel()
		case <-quit:
		case <-ctx.Done():
		}
	})
	err := s.conn.Wait(ctx)
	close(quit)
	helper.Wait()
	return err
}

// die ends the session, for the reason err. A nil err means that it was to end.
func (s *session) die(err error) {
	s.conn.Close()
	s.mu.Lock()
	silent := s.ending || s.b.life.Err() != nil
	why := backend.CauseSession
	if errors.Is(err, errExpired) || !time.Now().Before(s.deadline) {
		why = backend.CauseExpired
	}
	s.ended = true
	for k, l := range s.leases {
		s.overWith(k, l, backend.ErrSessionLost)
		signal(l.freed)
	}
	for _, l := range slices.Concat(s.freed, s.left) {
		signal(l.freed)
	}
	s.freed, s.left, s.spots, s.due = nil, nil, nil, nil
	s.mu.Unlock()
	s.b.mu.Lock()
	delete(s.b.sessions, s.id)
	s.b.dead.Add(s.id)
	s.b.mu.Unlock()
	close(s.over)
	if s.lost != nil && !silent && s.b.cfg.Caps.LossPush {
		s.lost(backend.Loss{Session: s.id, Cause: why})
	}
}

// overWith ends a lease for good, and the wait of its callers. The caller holds mu.
func (s *session) overWith(k Key, l *lease, err error) {
	if s.leases[k] == l {
		delete(s.leases, k)
	}
	if l.state == inQueue {
		l.err = err
		close(l.done)
	}
	l.state = over
	signal(l.tried)
}

// signal closes a channel, unless it is closed already.
func signal(c chan struct{}) {
	if !isClosed(c) {
		close(c)
	}
}
