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
// a connection of their pool without noticing the end of a context. So a request that is alone wakes other
// goroutines, which costs more than all the rest of it. A lane is a connection for one request at a time: its
// goroutine writes the request and reads the answer.

// ErrNoConnection means that nothing was sent: there was no connection, and none was to be made.
var ErrNoConnection = errors.New("there is no connection")

// ErrTaken means that nothing was sent: another request has the lane.
var ErrTaken = errors.New("another request has the connection")

// OpenLane makes the connection of a lane. The client library makes it through Lane.Dial.
type OpenLane func(ctx context.Context, l *Lane) (Conn, error)

// Lane is such a connection to one server.
type Lane struct {
	open OpenLane
	base context.Context //nolint:containedctx // ends with the lane
	end  context.CancelFunc
	work sync.WaitGroup
	conn Conn // of who has taken the lane; nil: it is not open

	mu       sync.Mutex
	taken    bool
	opening  bool      // what has taken it is no request
	socket   socket    // nil: there is none
	ended    bool      // the socket was closed
	turn     uint64    // counts the requests
	answered time.Time // the last one
}

// NewLane returns a lane that is not open yet.
func NewLane(open OpenLane) *Lane {
	l := &Lane{open: open}
	l.base, l.end = context.WithCancel(context.Background())
	return l
}

// Do sends a command on the lane, until ctx ends, which must have a deadline. It is ErrTaken if another request has it,
// and ErrNoConnection if it is not open. Then it is opened in the background.
func (l *Lane) Do(ctx context.Context, cmd ...string) (Reply, error) {
	if err := l.take(); err != nil {
		return Reply{}, err
	}
	defer l.leave()
	return l.send(ctx, cmd)
}

// take takes the lane for a request. The one before may have ended its connection, after it had its answer. The server
// may have closed it: nothing is read between two requests.
func (l *Lane) take() error {
	const busy = time.Millisecond // so soon after an answer nothing is checked
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opening || l.base.Err() != nil {
		return ErrNoConnection
	}
	if l.taken {
		return ErrTaken
	}
	l.taken = true
	l.turn++
	if l.conn != nil && !l.ended && (time.Since(l.answered) < busy || !isReadable(l.socket)) {
		return nil
	}
	l.opening = true
	l.work.Go(func() {
		l.close()
		conn, err := l.open(l.base, l)
		if err == nil {
			l.conn = conn
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			l.leave() // else nothing opens it again: another connection would not be better
		}
	})
	return ErrNoConnection
}

func (l *Lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken, l.opening = false, false
}

// HangUp ends the request in progress. No other begins.
func (l *Lane) HangUp() {
	l.end()
	l.hangUp()
}

// Close closes the connection. No request is in progress.
func (l *Lane) Close() {
	l.HangUp()
	l.work.Wait()
	l.close()
}

// Addr returns the local address of the connection, or "" if it is not open, or taken.
func (l *Lane) Addr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken || l.conn == nil || l.ended {
		return ""
	}
	return l.socket.LocalAddr().String()
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

func (l *Lane) close() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket = nil
}

// send sends a command and reads its answer, until ctx ends. It ends the connection then, which may
// still get the answer, and when the outcome is unknown.
func (l *Lane) send(ctx context.Context, cmd []string) (Reply, error) {
	turn := l.turn
	defer afterFunc(ctx, func() { l.interrupt(turn) })()
	r, err := l.conn.Do(ctx, cmd...)
	l.answered = time.Now()
	if _, answered := errors.AsType[*ServerError](err); err != nil && !answered && !errors.Is(err, ErrUnknown) {
		l.hangUp()
	}
	return r, err
}

// afterFunc is context.AfterFunc, without another context for one that does it itself.
func afterFunc(ctx context.Context, f func()) func() bool {
	if own, ok := ctx.(interface{ AfterFunc(f func()) func() bool }); ok {
		return own.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// interrupt ends the request of that turn, if it is still in progress.
func (l *Lane) interrupt(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn == turn {
		l.endSocket()
	}
}

func (l *Lane) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endSocket()
}

// endSocket closes the socket. It does not wait for the last words of TLS. mu is held.
func (l *Lane) endSocket() {
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
