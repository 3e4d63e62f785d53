package connlease_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
)

// server is a database with notifications, as PostgreSQL: a lock is taken and freed immediately, and what a piece of
// work writes is seen, and its notifications are sent, when it commits a while later.
type server struct {
	mu    sync.Mutex
	token fence.Token
	place int
	conns map[string]*link
	rows  map[connlease.Key]*row
	queue map[connlease.Key]waiter // a lease waits on one connection only, here
	wrong []string                 // what should not happen

	silent []string // the calls that have no answer
	taken  bool     // another client has all locks, and sends no wake-up when it has released them
	tries  int      // how often it was asked for a lock
	mute   bool     // it queues no request, and wakes no client
	loses  bool     // the connection ends with the next reply
}

// row is the record of a lease.
type row struct {
	backend.Holder
	name, conn, reason string
	marked             bool
}

// waiter is a place in the queue.
type waiter struct {
	conn  string
	mode  backend.Mode
	place int
}

// link is a connection with locks.
type link struct {
	s     *server
	id    string
	hear  func(connlease.Note)
	locks map[string][]backend.Mode // how often it has each, as the server counts
	notes []connlease.Note
	heard chan struct{} // capacity 1: there is a note
	cut   chan struct{} // closed when the connection is gone
}

func newServer() *server {
	return &server{conns: make(map[string]*link), rows: make(map[connlease.Key]*row), queue: make(map[connlease.Key]waiter)}
}

var errGone = errors.New("the connection is gone")

// ask waits for the answer to a call: for ever, if there is none.
func (s *server) ask(ctx context.Context, call string) error {
	s.mu.Lock()
	silent := slices.Contains(s.silent, call)
	s.mu.Unlock()
	if silent {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	pause()
	return nil
}

// set changes the behaviour of the server.
func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) Setup(ctx context.Context) error { return s.ask(ctx, "setup") }

func (s *server) Connect(ctx context.Context, _ backend.SessionID, _ time.Duration, hear func(connlease.Note)) (connlease.Conn, error) {
	if err := s.ask(ctx, "connect"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place++
	c := &link{
		s: s, id: strconv.Itoa(s.place), hear: hear, locks: make(map[string][]backend.Mode),
		heard: make(chan struct{}, 1), cut: make(chan struct{}),
	}
	s.conns[c.id] = c
	return c, nil
}

func (s *server) Look(ctx context.Context, names []string) (map[string]backend.LockInfo, error) {
	if err := s.ask(ctx, "look"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]backend.LockInfo)
	for _, name := range names {
		info := backend.LockInfo{Name: name}
		if s.taken {
			info.Holders = []backend.Holder{{Lease: "another"}}
		}
		for _, r := range s.rows {
			if r.name == name && s.holds(r) {
				info.Holders = append(info.Holders, r.Holder)
			}
		}
		for k := range s.queue {
			if k.Name == name {
				info.Waiters = append(info.Waiters, backend.Waiter{Lease: k.ID})
			}
		}
		all[name] = info
	}
	return all, nil
}

// holds reports whether the connection that wrote the row has the lock.
func (s *server) holds(r *row) bool {
	c := s.conns[r.conn]
	return c != nil && len(c.locks[r.name]) > 0
}

func (s *server) Names(ctx context.Context, _ backend.ListRequest, _ int) ([]string, error) {
	return nil, s.ask(ctx, "names")
}

func (s *server) Mark(ctx context.Context, m connlease.Mark) (fence.Token, []connlease.Marked, error) {
	if err := s.ask(ctx, "mark"); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	token := m.Below
	if token == 0 {
		s.token++
		token = s.token
	}
	var hit []connlease.Marked
	for _, r := range s.rows {
		if r.name != m.Name || r.Token >= token || !s.holds(r) {
			continue
		}
		hit = append(hit, connlease.Marked{Holder: r.Holder, Conn: r.conn, Before: r.marked})
		r.marked, r.reason = true, m.Reason
		s.conns[r.conn].notify(connlease.Note{Marked: true})
	}
	return token, hit, nil
}

func (s *server) Terminate(ctx context.Context, conns []string) error {
	if err := s.ask(ctx, "terminate"); err != nil {
		return err
	}
	for _, id := range conns {
		s.kill(id)
	}
	return nil
}

func (s *server) Unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: "server", Op: op, MayHold: mayHold, Err: err}
}

// kill ends a connection.
func (s *server) kill(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[id]
	if c == nil {
		return
	}
	delete(s.conns, id)
	close(c.cut)
	maps.DeleteFunc(s.queue, func(_ connlease.Key, w waiter) bool { return w.conn == id })
}

// killOne ends some connection that has locks.
func (s *server) killOne() {
	s.mu.Lock()
	var all []string
	for id, c := range s.conns {
		if len(c.locks) > 0 {
			all = append(all, id)
		}
	}
	s.mu.Unlock()
	if len(all) > 0 {
		s.kill(all[rand.IntN(len(all))])
	}
}

// pause is the time that a part of a request takes.
func pause() { time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) }

func (c *link) notify(n connlease.Note) {
	c.notes = append(c.notes, n)
	select {
	case c.heard <- struct{}{}:
	default:
	}
}

// deliver calls hear with what was sent.
func (c *link) deliver() {
	c.s.mu.Lock()
	notes := c.notes
	c.notes = nil
	c.s.mu.Unlock()
	for _, n := range notes {
		c.hear(n)
	}
}

func (c *link) Wait(ctx context.Context) error {
	select {
	case <-c.heard:
		c.deliver()
	case <-ctx.Done():
	case <-c.cut:
		return errGone
	}
	return nil
}

func (c *link) Close() { c.s.kill(c.id) }

func (c *link) Do(ctx context.Context, w *connlease.Work) error {
	if err := c.s.ask(ctx, "work"); err != nil {
		return err
	}
	commit, err := c.execute(w)
	pause()
	if err == nil {
		err = commit()
	}
	pause()
	if c.s.loses {
		c.Close()
	}
	if isOver(c.cut) { // the reply is lost with the connection
		return errGone
	}
	c.deliver()
	return err
}

// execute changes the locks, and returns what is to be done with the commit.
func (c *link) execute(w *connlease.Work) (func() error, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c.id] == nil {
		return nil, errGone
	}
	var wake []connlease.Note
	var to []string
	note := func(name string, but connlease.Key) {
		for _, id := range s.next(name, but) {
			wake, to = append(wake, connlease.Note{Wake: name}), append(to, id)
		}
	}
	for _, l := range w.Free {
		if !c.unlock(l) {
			s.wrong = append(s.wrong, "a lock was released that the connection does not have: "+l.Name)
		}
	}
	for _, l := range w.Free {
		note(l.Name, connlease.Key{})
	}
	for _, k := range w.Leave {
		note(k.Name, k)
	}
	had := maps.Clone(c.locks)
	if w.End {
		clear(c.locks)
		for name := range had {
			note(name, connlease.Key{})
		}
	}
	tried := make(map[connlease.Key]bool)
	for _, t := range w.Try {
		k := connlease.Key{Name: t.Req.Name, ID: t.Req.Lease}
		if tried[k] {
			s.wrong = append(s.wrong, "a request is in a piece of work twice: "+k.Name)
		}
		tried[k] = true
		s.tries++
		switch r := s.rows[k]; {
		case t.Behind:
		case r != nil:
			t.Foreign = true
		case s.free(c, t.Req):
			s.token++
			t.Granted, t.Token, t.Since = true, s.token, time.Now()
			c.locks[k.Name] = append(c.locks[k.Name], t.Req.Mode)
		}
	}
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.conns[c.id] == nil {
			return errGone
		}
		c.write(w)
		for i, id := range to {
			if other := s.conns[id]; other != nil {
				other.notify(wake[i])
			}
		}
		return nil
	}, nil
}

// write writes the rows.
func (c *link) write(w *connlease.Work) {
	s := c.s
	for _, l := range w.Free {
		delete(s.rows, connlease.Key{Name: l.Name, ID: l.Lease})
	}
	for _, k := range w.Leave {
		if s.queue[k].conn != c.id {
			s.wrong = append(s.wrong, "a place in the queue was given up that is not there: "+k.Name)
		}
		delete(s.queue, k)
	}
	if w.End {
		maps.DeleteFunc(s.rows, func(_ connlease.Key, r *row) bool { return r.conn == c.id })
		maps.DeleteFunc(s.queue, func(_ connlease.Key, q waiter) bool { return q.conn == c.id })
	}
	for _, r := range s.rows {
		if (w.Look || w.Renew) && r.conn == c.id && r.marked {
			w.Marked = append(w.Marked, connlease.Told{Key: connlease.Key{Name: r.name, ID: r.Lease}, Reason: r.reason})
		}
	}
	for _, t := range w.Try {
		k := connlease.Key{Name: t.Req.Name, ID: t.Req.Lease}
		_, queued := s.queue[k]
		switch {
		case t.Granted:
			delete(s.queue, k)
			s.rows[k] = &row{Holder: backend.Holder{Lease: k.ID, Mode: t.Req.Mode, Token: t.Token}, name: k.Name, conn: c.id}
		case t.Behind && queued:
			s.wrong = append(s.wrong, "a request was queued twice: "+k.Name)
		case t.Queue && !t.Foreign && !queued && !s.mute:
			s.place++
			s.queue[k] = waiter{c.id, t.Req.Mode, s.place}
		}
	}
}

// next returns the connections to wake for a lock: of the first waiter, or of all readers before the first
// writer, without one that leaves.
func (s *server) next(name string, but connlease.Key) []string {
	var all []waiter
	for k, w := range s.queue {
		if k.Name == name && k != but {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(x, y waiter) int { return cmp.Compare(x.place, y.place) })
	var to []string
	for i, w := range all {
		if i > 0 && w.mode == backend.Exclusive {
			break
		}
		to = append(to, w.conn)
		if w.mode == backend.Exclusive {
			break
		}
	}
	return to
}

// free reports whether the server grants a lock to a connection, which has it as often as it likes.
func (s *server) free(c *link, r *backend.AcquireRequest) bool {
	if s.taken {
		return false
	}
	for _, other := range s.conns {
		for _, mode := range other.locks[r.Name] {
			if other != c && (mode == backend.Exclusive || r.Mode == backend.Exclusive) {
				return false
			}
		}
	}
	return true
}

func (c *link) unlock(r *backend.AcquireRequest) bool {
	i := slices.Index(c.locks[r.Name], r.Mode)
	if i < 0 {
		return false
	}
	c.locks[r.Name] = slices.Delete(c.locks[r.Name], i, i+1)
	if len(c.locks[r.Name]) == 0 {
		delete(c.locks, r.Name)
	}
	return true
}
