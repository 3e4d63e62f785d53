package program

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// Client libraries write requests that share a connection in one goroutine and read the answers in another, or keep
// a connection of their pool without noticing the end of a context. So a request of one call wakes other
// goroutines, which costs more than all the rest of it. A lane is a connection for one request at a time: its
// goroutine writes the request and reads the answer.

// ErrNoConnection means that nothing was sent: there was no connection, and none was to be made.
var ErrNoConnection = errors.New("there is no connection")

// OpenLane makes the connection of a lane. The client library makes it through Lane.Dial.
type OpenLane func(ctx context.Context, l *Lane) (Conn, error)

// Lanes are the lanes of one server. There is one for each request that may be in progress.
type Lanes struct {
	open OpenLane
	base context.Context //nolint:containedctx // ends with the lanes
	end  context.CancelFunc
	work sync.WaitGroup

	mu   sync.Mutex
	free []*Lane // the last one is used next, so that one caller needs one connection
	all  []*Lane
}

// NewLanes returns n lanes that are not open yet.
func NewLanes(n int, open OpenLane) *Lanes {
	s := &Lanes{open: open}
	s.base, s.end = context.WithCancel(context.Background())
	for range n {
		s.all = append(s.all, new(Lane))
	}
	s.free = append(s.free, s.all...)
	return s
}

// Do sends a command on a lane, until ctx ends, which must have a deadline. If it has no Done channel, to follow which costs
// more than all else that the client does, the end before the deadline is noticed by Interrupt. Do returns ErrNoConnection if
// no lane is open and free. One that is not open yet is opened in the background.
func (s *Lanes) Do(ctx context.Context, cmd ...string) (Reply, error) {
	l := s.take(ctx)
	if l == nil {
		return Reply{}, ErrNoConnection
	}
	defer s.put(l)
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, s.Interrupt)()
	}
	return l.send(ctx, cmd)
}

// Interrupt ends the requests whose contexts have ended, with their connections, which may still get the answers.
func (s *Lanes) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.all {
		if l.ctx != nil && l.ctx.Err() != nil {
			l.hangUp()
		}
	}
}

func (s *Lanes) take(ctx context.Context) *Lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 || s.base.Err() != nil {
		return nil
	}
	l := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if l.isOpen() {
		l.ctx = ctx
		return l
	}
	s.work.Go(func() {
		l.close()
		conn, err := s.open(s.base, l)
		if err == nil {
			l.conn = conn
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			s.put(l) // else the lane stays away: another connection would not be better
		}
	})
	return nil
}

func (s *Lanes) put(l *Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.ctx = nil
	s.free = append(s.free, l)
}

// HangUp ends the requests in progress. No other begins.
func (s *Lanes) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	for _, l := range s.all {
		l.hangUp()
	}
}

// Close closes the connections. No request is in progress.
func (s *Lanes) Close() {
	s.HangUp()
	s.work.Wait()
	for _, l := range s.all {
		l.close()
	}
}

// Addr returns the local address of the connection that is used next, or "" if none is open, or one is being opened.
func (s *Lanes) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	settled := len(s.free)
	for _, l := range s.all {
		if l.ctx != nil {
			settled++
		}
	}
	if len(s.free) == 0 || settled < len(s.all) {
		return ""
	}
	l := s.free[len(s.free)-1]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.ended {
		return ""
	}
	return l.socket.LocalAddr().String()
}

// Lane is one of them. Only the goroutine that has taken it uses conn and answered.
type Lane struct {
	conn     Conn            // nil: it is not open
	answered time.Time       // the last request
	ctx      context.Context //nolint:containedctx // of the request in progress; guarded by Lanes.mu

	mu     sync.Mutex
	socket socket // nil: there is none
	ended  bool   // the socket was closed
}

// Dial makes the socket of a lane. Only the first call makes one: the request of a caller waits for no other.
func (l *Lane) Dial(dial func() (net.Conn, error)) (net.Conn, error) {
	l.mu.Lock()
	made := l.socket != nil
	l.mu.Unlock()
	if made {
		return nil, ErrNoConnection
	}
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	inner, err := socketOf(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket, l.ended = inner, false
	return conn, nil
}

// isOpen reports whether the lane is open. The request before may have ended its connection, after it had its answer. The
// server may have closed it: nothing is read between two requests.
func (l *Lane) isOpen() bool {
	const busy = time.Millisecond // so soon after an answer nothing is checked
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && !l.ended && (time.Since(l.answered) < busy || !isReadable(l.socket))
}

func (l *Lane) close() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket = nil
}

// send sends a command and reads its answer. When the outcome is unknown it ends the connection, which may still get the
// answer.
func (l *Lane) send(ctx context.Context, cmd []string) (Reply, error) {
	r, err := l.conn.Do(ctx, cmd...)
	l.answered = time.Now()
	if _, answered := errors.AsType[*ServerError](err); err != nil && !answered && !errors.Is(err, ErrUnknown) {
		l.hangUp()
	}
	return r, err
}

// hangUp closes the socket. It does not wait for the last words of TLS.
func (l *Lane) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil && !l.ended {
		l.ended = true
		_ = l.socket.Close() // its user gets the error
	}
}

// socket is a connection of the operating system.
type socket interface {
	net.Conn
	syscall.Conn
}

// socketOf returns the socket of a connection, which may be inside another one, as with TLS.
func socketOf(conn net.Conn) (socket, error) {
	for {
		if inner, ok := conn.(socket); ok {
			return inner, nil
		}
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, fmt.Errorf("redis: a connection without a socket: %w", errors.ErrUnsupported)
		}
		conn = outer.NetConn()
	}
}

func isReadable(s socket) bool {
	raw, err := s.SyscallConn()
	return err != nil || readable(raw)
}
