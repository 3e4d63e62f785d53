package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// Requests that share a connection are written by one goroutine of rueidis and read by another, so a
// request that is alone wakes three goroutines, which costs more than all the rest of it. A lane is a
// connection for one request at a time: its goroutine writes the request and reads the answer.

// lanes are the lanes of one server. There is one for each request that may be in progress.
type lanes struct {
	option rueidis.ClientOption
	base   context.Context //nolint:containedctx // ends with the lanes
	end    context.CancelFunc
	work   sync.WaitGroup

	mu   sync.Mutex
	free []*lane // the last one is used next, so that one caller needs one connection
	all  [maxRequests]*lane
}

func newLanes(option rueidis.ClientOption) *lanes {
	s := new(lanes)
	s.base, s.end = context.WithCancel(context.Background())
	s.option = option
	s.option.AlwaysPipelining = false // else the goroutines of rueidis write and read
	s.option.PipelineMultiplex = -1   // one connection
	s.option.Dialer.KeepAlive = -1    // a ping in between would start these goroutines
	for i := range s.all {
		s.all[i] = new(lane)
		s.free = append(s.free, s.all[i])
	}
	return s
}

// take returns a lane that is open and free, or nil. One that is not open yet is opened in the
// background.
func (s *lanes) take() *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 || s.base.Err() != nil {
		return nil
	}
	l := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if l.begin() {
		return l
	}
	s.work.Go(func() {
		l.close()
		l.open(s.base, s.option)
		s.put(l)
	})
	return nil
}

func (s *lanes) put(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, l)
}

// hangUp ends the requests in progress. No other begins.
func (s *lanes) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	for _, l := range s.all {
		l.hangUp()
	}
}

// close closes the connections. No request is in progress.
func (s *lanes) close() {
	s.hangUp()
	s.work.Wait()
	for _, l := range s.all {
		l.close()
	}
}

// lane is one of them. Only the goroutine that has taken it uses client.
type lane struct {
	client rueidis.Client // nil: it is not open

	mu       sync.Mutex
	line     *line     // the connection; nil: there was none yet
	turn     uint64    // counts the requests
	answered time.Time // the last one
}

// begin begins the turn of a request. It reports whether the lane is open. The request before may have
// ended its connection, after it had its answer. The server may have closed it: nothing is read between
// two requests.
func (l *lane) begin() bool {
	const busy = time.Millisecond // so soon after an answer nothing is checked
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn++
	return l.client != nil && !l.line.ended() && (time.Since(l.answered) < busy || !readable(l.line.raw))
}

func (l *lane) close() {
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
}

// open opens the lane. If that fails it stays as it is, and the next request tries again.
func (l *lane) open(ctx context.Context, option rueidis.ClientOption) {
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		dialer := *d
		dialer.KeepAlive = tcpKeepAlive
		conn, err := dial(ctx, addr, &dialer, secure)
		if err != nil {
			return nil, err
		}
		raw, err := rawOf(conn)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.line = &line{Conn: conn, raw: raw}
		return l.line, nil
	}
	client, err := newClient(ctx, option)
	if err == nil {
		l.client = client
	}
}

// send sends a command and reads its answer, until ctx ends. It ends the connection then, which may
// still get the answer. ctx must have a deadline: without one, rueidis starts goroutines for the
// connection, for good, and begin would wait for the one that reads.
func (l *lane) send(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisMessage, error) {
	if ctx.Done() != nil {
		turn := l.turn
		defer context.AfterFunc(ctx, func() { l.interrupt(turn) })()
	}
	msg, err := l.client.Do(ctx, cmd).ToMessage()
	l.answered = time.Now()
	return msg, err //nolint:wrapcheck // the link does
}

// interrupt ends the request of that turn, if it is still in progress.
func (l *lane) interrupt(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn == turn && l.line != nil {
		l.line.hangUp()
	}
}

func (l *lane) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.line != nil {
		l.line.hangUp()
	}
}

// line is a connection whose reads and writes can be ended for good.
type line struct {
	net.Conn

	raw  syscall.RawConn
	mu   sync.Mutex
	over bool
}

// rawOf returns the socket of a connection.
func rawOf(conn net.Conn) (syscall.RawConn, error) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("redis: a connection without a socket: %w", errors.ErrUnsupported)
	}
	return socket.SyscallConn() //nolint:wrapcheck // the lane stays closed
}

func (l *line) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// SetDeadline sets the deadline of a request. It does not revive a connection that was ended.
func (l *line) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		t = longAgo()
	}
	return l.Conn.SetDeadline(t) //nolint:wrapcheck // rueidis looks at it
}

func (l *line) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	_ = l.Conn.SetDeadline(longAgo()) // it may be closed
}

func longAgo() time.Time { return time.Unix(1, 0) }
