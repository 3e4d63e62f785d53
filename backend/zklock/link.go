package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// link is a connection to the ensemble with one ZooKeeper session. The client library reconnects
// within the session by itself. When the session has expired it would make a new one, so it may not dial
// any more then.
type link struct {
	conn       *zk.Conn
	life       context.Context //nolint:containedctx // ends when the session has expired, or the link is closed
	end        context.CancelFunc
	ready      chan struct{}             // closed when there is a session, and the ensemble knows who the user is
	identifies bool                      // there is a user
	connected  atomic.Int64              // how often: see waking
	expired    atomic.Bool               // the ensemble has ended the session
	given      atomic.Int64              // the session time-out that the ensemble gave, in nanoseconds; until then, the one that was asked for
	silence    time.Duration             // how long a server may send nothing at all
	away       atomic.Pointer[time.Time] // since when it has been disconnected; nil: it is not
	loop       chan struct{}             // closed when the library's goroutine has ended
	hosts      hosts
	refusals   connect.Endpoints // by address
	watches    *watches

	mu         sync.Mutex
	wire       *wire // the newest connection; nil: there was none
	unanswered int   // connections since the last one that was answered
}

// sendBuffer is the size of the library's send buffer, and bounds a request. After a connection
// broke, the library sends the list of its watches in requests of up to 128 KiB: one that does not
// fit is not sent, and nothing is watched any more.
const sendBuffer = 192 << 10

var (
	errOver = errors.New("the session has ended")
	errLess = errors.New("the server granted a shorter session timeout than the one the session began with")
)

// newLink connects in the background; Connect of the library sends nothing by itself. silence is how long
// a server may send nothing at all: a firewall may have forgotten the connection, or the server hangs.
func newLink(cfg *Config, timeout, silence time.Duration) (*link, error) {
	l := &link{
		silence: silence, identifies: cfg.User != "", watches: newWatches(), ready: make(chan struct{}), loop: make(chan struct{}),
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.given.Store(int64(timeout))
	l.hosts.lookup, l.hosts.life = cfg.lookup, l.life
	conn, events, err := zk.Connect(cfg.Servers, timeout,
		zk.WithHostProvider(&l.hosts),
		zk.WithDialer(l.dial(cfg, timeout)), zk.WithEventCallback(l.event), zk.WithMaxConnBufferSize(sendBuffer),
		zk.WithLogInfo(false), zk.WithLogger(logger{cfg.Logger}))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	l.conn = conn
	go func() { // the library closes its events when its goroutine ends
		defer close(l.loop)
		for range events { // they also come by the callback
		}
	}()
	if l.identifies {
		go l.identify([]byte(cfg.User + ":" + cfg.Password))
	}
	return l, nil
}

// identify sends the user's credentials. Once they were accepted, the library repeats them on each
// later connection. While no server is reachable it gives up, and when the connection breaks at
// that moment the next one may not know them.
func (l *link) identify(digest []byte) {
	for {
		connected := l.connected.Load()
		err := l.conn.AddAuth("digest", digest) // it waits for the connection
		if err == nil && connected == l.connected.Load() {
			close(l.ready)
			return
		}
		if !retry.Pause(l.life, retryPause) {
			return
		}
	}
}

// event is called by the library, and must not block.
func (l *link) event(e zk.Event) {
	switch {
	case e.Type != zk.EventSession:
		l.watches.event(e)
	case e.State == zk.StateHasSession:
		l.away.Store(nil)
		if l.connected.Add(1) == 1 && !l.identifies {
			close(l.ready)
		}
	case e.State == zk.StateDisconnected:
		l.away.CompareAndSwap(nil, new(time.Now()))
	case e.State == zk.StateExpired:
		l.expired.Store(true)
		l.end()
	}
}

// close ends the session on the ensemble, if that can be reached within two seconds. It reports
// whether the session has ended there.
func (l *link) close() bool {
	l.reach()
	l.end()
	l.conn.Close()
	l.mu.Lock()
	last := l.wire
	l.mu.Unlock()
	if last != nil {
		_ = last.Close() // the library would wait for a server that hangs, for most of the session's time
	}
	<-l.loop
	return l.expired.Load() || last == nil || last.hasEnded()
}

// reach waits until the ensemble answers: the library sends the end of a session on the connection
// that it has, and if that has just broken, the end reaches no server.
func (l *link) reach() {
	ctx, cancel := context.WithTimeout(context.Background(), reachPatience)
	defer cancel()
	for isClosed(l.ready) && l.life.Err() == nil && ctx.Err() == nil {
		if _, err := l.stat(ctx, "/"); err == nil {
			return
		}
		retry.Pause(ctx, retryPause)
	}
}

const (
	// reachPatience is more than the second that the library waits before it connects again.
	reachPatience = 2 * time.Second
	// retryPause is the time between two attempts to reach the ensemble.
	retryPause = 20 * time.Millisecond
)

// dial makes connections that inspect their traffic: see wire.
func (l *link) dial(cfg *Config, timeout time.Duration) zk.Dialer {
	return func(network, address string, patience time.Duration) (net.Conn, error) {
		if l.life.Err() != nil {
			return nil, errOver // otherwise it would make another session, and answer for it
		}
		conn, err := cfg.dial(network, address, l.hosts.server(address), patience)
		if err != nil {
			l.refusals.Tried(address, err)
			return nil, err
		}
		conn = connect.FirstRead(conn, func(err error) error {
			l.refusals.Tried(address, err)
			return err
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.life.Err() != nil { // close may not have seen this connection
			_ = conn.Close()
			return nil, errOver
		}
		l.wire = &wire{
			Conn: conn, link: l, addr: address, asked: timeout, patience: l.patience(patience, timeout), again: isClosed(l.ready), watches: make(chan struct{}),
		}
		return l.wire, nil
	}
}

// patience is how long a new connection waits for its first answer: a second, and twice as long for each connection that had
// none. A server that has just started may never answer a client that came too early, and one that is slow gets its time.
func (l *link) patience(least, timeout time.Duration) time.Duration {
	l.unanswered++
	return max(least, min(timeout/4, mostPatience, time.Second<<min(l.unanswered-1, 8)))
}

// mostPatience is the longest wait for the first answer of a server.
const mostPatience = 5 * time.Second

// hasEnded reports whether the ZooKeeper session has ended, or the link was without a connection for longer than it
// lives. Only the ensemble reports that a session has ended, and a server that has fewer changes than the client has
// seen, because it was restored or emptied, closes the connection instead. Callers may await a link that was never ready.
func (l *link) hasEnded() bool {
	away := l.away.Load()
	return l.life.Err() != nil || isClosed(l.ready) && away != nil && between(*away, time.Now()) > time.Duration(l.given.Load())
}

// wire is a connection that reads its first answer along: that has the session time-out, which the
// library does not expose. Until then it does not wait for as long as the library would, which is
// many times the time-out, and afterwards for half of it, where the library would take two thirds:
// a server that hangs while others live must not cost the session. The library lets the server
// answer every third of it, and a session of the contract more often: see link.silence.
//
// When the library has connected again it sends the ensemble its watches, and the last transaction
// that it knows of. It reads the latter while other requests are answered already, which makes it
// later (and is a data race): a change of the queue in between would never be reported. So answers
// are held back until the watches have left.
//
// A server reports on each connection how much time it gives, and that is what the ensemble counts
// from then on. If that is less than the session was made with, because the server is configured
// differently, the session has ended: it could end before its TTL.
type wire struct {
	net.Conn
	link     *link
	addr     string
	asked    time.Duration // the session time-out
	patience time.Duration
	head     []byte        // of the first answer
	size     int           // of the first answer; 0 while it is not known
	read     int           // bytes so far
	again    bool          // there was a session before, and so there may be watches
	watches  chan struct{} // closed when the watches have left, and when the connection is closed
	once     sync.Once     // closes watches
	closing  atomic.Bool   // the request that ends the session was sent
	broken   atomic.Bool   // a read has failed
}

// hasEnded reports whether the request that ends the session was answered, which the library does not report.
// It reads no further then. Otherwise it reads until that fails. The library's goroutine has ended.
func (w *wire) hasEnded() bool { return w.closing.Load() && !w.broken.Load() }

// The first answer: its length, the protocol version, the time-out in milliseconds, the session,
// the password.
const lengthSize, timeoutAt, headSize = 4, 8, 12

// The first four bytes after the length of a request are its number, the second its type; 101 sets
// watches, and -11 ends the session.
const kindAt, kindEnd, kindSetWatches, kindClose = 8, 12, 101, 1<<32 - 11

// watchesLate is how long answers are held back if no watches leave, because there are none.
const watchesLate = 250 * time.Millisecond

func (w *wire) SetReadDeadline(t time.Time) error {
	patience, answered := w.patience, w.size > 0
	if answered {
		patience = min(time.Duration(w.link.given.Load())/2, w.link.silence)
	}
	if latest := time.Now().Add(patience); t.After(latest) || t.IsZero() && !answered {
		t = latest
	}
	return w.Conn.SetReadDeadline(t) //nolint:wrapcheck // the library compares what a connection returns
}

func (w *wire) Read(p []byte) (int, error) {
	if w.again && w.size > 0 && w.read >= w.size {
		w.again = false
		retry.Until(watchesLate, w.watches, nil)
	}
	n, err := w.Conn.Read(p)
	if err != nil {
		w.broken.Store(true)
	}
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		w.link.hosts.silent(w.addr, w.asked/4)
	}
	w.read += n
	if w.size == 0 {
		w.head = append(w.head, p[:min(n, headSize)]...)
		if len(w.head) >= headSize {
			w.size = lengthSize + int(binary.BigEndian.Uint32(w.head))
			ms := int32(binary.BigEndian.Uint32(w.head[timeoutAt:headSize])) //nolint:gosec // it is an int32
			given := time.Duration(ms) * time.Millisecond
			w.link.given.Store(int64(given))
			w.link.mu.Lock()
			w.link.unanswered = 0
			w.link.mu.Unlock()
			w.head = nil
			if w.again && given < w.asked {
				w.link.end()
				return 0, errLess
			}
			_ = w.Conn.SetReadDeadline(time.Time{})
		}
	}
	return n, err //nolint:wrapcheck // as above
}

// Write sends one request, as the library does. The very first has another form. When it fails, the connection is closed,
// and the library learns of that from Read alone. It would otherwise answer the request twice. When it repeats
// credentials on a new connection, it does not read the first answer, and would wait forever (its issue 163).
func (w *wire) Write(p []byte) (int, error) {
	if w.size > 0 && len(p) >= kindEnd {
		switch binary.BigEndian.Uint32(p[kindAt:kindEnd]) {
		case kindSetWatches:
			defer w.once.Do(func() { close(w.watches) })
		case kindClose:
			w.closing.Store(true)
		}
	}
	if _, err := w.Conn.Write(p); err != nil {
		_ = w.Close()
	}
	return len(p), nil
}

// Close also releases a Read that waits for the watches.
func (w *wire) Close() error {
	w.once.Do(func() { close(w.watches) })
	return w.Conn.Close() //nolint:wrapcheck // as above
}

// call runs f, which takes no context, and stops waiting for it when ctx ends or the link has ended.
// The outcome of f is then unknown.
func call[T any](ctx context.Context, l *link, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if ctx.Err() != nil {
		return none, &unsent{context.Cause(ctx)}
	}
	done := make(chan answer, 1)
	go func() {
		v, err := f()
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		if l.life.Err() != nil { // the library may have failed it because of that
			return none, zk.ErrSessionExpired
		}
		return a.value, a.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-l.life.Done():
		return none, zk.ErrSessionExpired
	}
}

// children lists the nodes below a node, which may not exist. catchUp lets the server catch up with its leader first.
func (l *link) children(ctx context.Context, path string, catchUp bool) ([]string, error) {
	nodes, err := call(ctx, l, func() ([]string, error) {
		if catchUp {
			if _, err := l.conn.Sync(path); err != nil {
				return nil, err
			}
		}
		nodes, _, err := l.conn.Children(path)
		return nodes, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return nodes, err
}

// node is a node as it was read.
type node struct {
	data []byte
	stat *zk.Stat
}

// get reads a node. zk.ErrNoNode: it does not exist.
func (l *link) get(ctx context.Context, path string) (node, error) {
	return call(ctx, l, func() (node, error) {
		data, stat, err := l.conn.Get(path)
		return node{data, stat}, err
	})
}

// stat returns the state of a node; nil: it does not exist.
func (l *link) stat(ctx context.Context, path string) (*zk.Stat, error) {
	return call(ctx, l, func() (*zk.Stat, error) {
		there, stat, err := l.conn.Exists(path)
		if !there {
			return nil, err
		}
		return stat, err
	})
}

// touch writes to a node, and returns its state. The leader executes writes, so the server has caught up with it then.
func (l *link) touch(ctx context.Context, path string) (*zk.Stat, error) {
	return call(ctx, l, func() (*zk.Stat, error) { return l.conn.Set(path, nil, -1) })
}

// unsent is an error of a request that was never sent.
type unsent struct{ err error }

func (e *unsent) Error() string { return e.err.Error() }
func (e *unsent) Unwrap() error { return e.err }

// await waits until there is a session, with the user authenticated. It returns the error of a server if every
// server refuses this client.
func (l *link) await(ctx context.Context) error {
	for !isClosed(l.ready) {
		another, refusal := l.refusals.Refusal(max(1, l.hosts.count()))
		if refusal != nil {
			return refusal
		}
		select {
		case <-l.ready:
		case <-another:
		case <-l.life.Done():
			return zk.ErrSessionExpired
		case <-ctx.Done():
			return l.refusals.Unconnected(ctx)
		}
	}
	return nil
}

// logger passes on what the library logs.
type logger struct{ *slog.Logger }

func (l logger) Printf(format string, args ...any) {
	l.Debug("zookeeper: " + fmt.Sprintf(format, args...)) //nolint:sloglint // the library's own words
}
