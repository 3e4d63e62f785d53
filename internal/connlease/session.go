package connlease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// session is a session of the contract and its connection. One goroutine, which runs run, owns both
// and all that the session has. Callers post to it what they want. It does that between two pieces of
// work, so nothing changes while an answer is on its way.
type session struct {
	b      *Leases
	id     backend.SessionID
	ttl    time.Duration
	lost   func(backend.Loss) // may be nil
	opened chan struct{}      // closed when the connection is there
	over   chan struct{}      // closed when the session has ended, or could not be opened
	failed error              // why it could not be opened; read after over

	mu        sync.Mutex         // guards what follows
	posted    []func()           // what callers want, in the order of arrival
	interrupt context.CancelFunc // ends the rest of the goroutine; nil: it does not rest

	// Only the goroutine uses what follows.
	conn      Conn
	deadline  time.Time // when the session ends unless it is renewed; by the local clock
	ending    bool      // a caller wants it to end
	leases    map[Key]*lease
	held      map[string][]*lease // by lock
	queues    map[string][]*lease // by lock; first come first
	due       map[string]turn     // locks whose requests are to be sent
	next      *Work               // what else is to be sent
	abandoned *lockstate.Ended[Key]
	losses    lockstate.Reports
	moved     time.Time // the last change for the waiters
	looked    time.Time // when the marks were last read
	again     time.Time // when to try for the waiters in any case; zero: there are none
}

func newSession(b *Leases, req backend.SessionRequest) *session {
	return &session{
		b: b, id: req.ID, ttl: req.TTL, lost: req.Lost, opened: make(chan struct{}), over: make(chan struct{}),
		leases: make(map[Key]*lease), held: make(map[string][]*lease), queues: make(map[string][]*lease), due: make(map[string]turn),
		next: new(Work), abandoned: lockstate.NewEnded[Key](remembered),
	}
}

// post has the goroutine call f. It never does when the session has ended.
func (s *session) post(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posted = append(s.posted, f)
	if s.interrupt != nil {
		s.interrupt()
	}
}

// await waits for the answer to what was posted. Errors: ErrSessionLost; ctx's cause.
func await[T any](ctx context.Context, s *session, answer <-chan T) (T, error) {
	var none T
	select {
	case a := <-answer:
		return a, nil
	case <-s.over:
	case <-ctx.Done():
		return none, connect.Cause(ctx, ctx.Err())
	}
	select {
	case a := <-answer: // the last that it did
		return a, nil
	default:
		return none, backend.ErrSessionLost
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// renew extends the session, and returns the losses to report. Errors: ErrSessionLost; ctx's cause.
func (s *session) renew(ctx context.Context) ([]backend.Loss, error) {
	renewed := make(chan []backend.Loss, 1)
	s.post(func() {
		s.next.Renew = true
		s.next.done = append(s.next.done, func() { renewed <- s.losses.Losses() })
	})
	return await(ctx, s, renewed)
}

func (s *session) finish() { s.ending = true }

// hear processes a note of the server.
func (s *session) hear(n Note) {
	if n.Wake != "" {
		s.due[n.Wake] = toTry
	}
	s.next.Look = s.next.Look || n.Marked
}

var errExpired = errors.New("the session was not renewed")

const (
	// hangUpTime is how long a session has to release everything when the backend is closed, and
	// endTime when it ends otherwise. Then the connection is closed.
	hangUpTime = time.Second
	endTime    = 5 * time.Second
)

// run connects within ctx, and uses the connection until the session has ended. A session that could
// not connect leaves nothing behind, and may be opened again.
func (s *session) run(ctx context.Context) {
	b := s.b
	err := b.ask(ctx, func(ctx context.Context) error {
		conn, err := b.store.Connect(ctx, s.id, s.ttl, s.hear)
		s.conn = conn
		return err
	})
	if err == nil {
		s.deadline = time.Now().Add(s.ttl)
		close(s.opened)
		err = s.serve()
		s.conn.Close()
		b.dead.Add(s.id)
	} else {
		s.failed = b.fail(ctx, opOpen, true, err)
	}
	b.mu.Lock()
	delete(b.sessions, s.id)
	b.mu.Unlock()
	close(s.over)
	if s.lost == nil || s.failed != nil || s.ending || b.life.Err() != nil {
		return
	}
	cause := backend.CauseSession
	if errors.Is(err, errExpired) || !time.Now().Before(s.deadline) {
		cause = backend.CauseExpired
	}
	s.lost(backend.Loss{Session: s.id, Cause: cause})
}

// serve does what callers want, and what is due, until the session has ended. The error is why the
// connection is gone; nil: the session was to end.
func (s *session) serve() error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// What is in progress when the backend is closed has a moment to end.
	defer context.AfterFunc(s.b.life, func() {
		s.post(s.finish)
		time.AfterFunc(hangUpTime, func() { cancel(backend.ErrClosed) })
	})()
	for {
		w := s.gather()
		if w == nil {
			if err := s.rest(ctx); err != nil {
				return err
			}
			continue
		}
		if err := s.send(ctx, w); w.End || err != nil {
			return err
		}
		s.settle(w)
	}
}

// send sends the work. An answer that arrives after the session's end is of no use.
func (s *session) send(ctx context.Context, w *Work) error {
	at := s.deadline
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

// rest listens to the server until there is something to do.
func (s *session) rest(ctx context.Context) error {
	at := s.deadline
	for _, other := range []time.Time{s.again, s.nextLook()} {
		if !other.IsZero() && other.Before(at) {
			at = other
		}
	}
	ctx, cancel := context.WithDeadline(ctx, at)
	defer cancel()
	if !s.interruptBy(cancel) || len(s.due) > 0 || !s.next.isEmpty() {
		return nil
	}
	defer s.interruptBy(nil)
	return s.conn.Wait(ctx)
}

// interruptBy sets what a caller calls that posts something, and reports whether nothing was posted
// before.
func (s *session) interruptBy(f context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt = f
	return len(s.posted) == 0
}

// nextLook returns when to read the marks; zero: not at a certain time.
func (s *session) nextLook() time.Time {
	if s.b.cfg.LookEvery == 0 || len(s.held) == 0 {
		return time.Time{}
	}
	return s.looked.Add(s.b.cfg.LookEvery)
}
