package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// link is a connection to the ensemble with one ZooKeeper session. The client library reconnects
// within the session by itself, and makes a new session when it has expired. A link for one session
// only does not let it dial then.
type link struct {
	conn      *zk.Conn
	single    bool // for one session only
	over      chan struct{}
	once      sync.Once     // closes over: the session has expired, or the link is closed
	ready     chan struct{} // closed when there is a session for the first time
	first     sync.Once
	connected atomic.Int64              // how often: see waking
	expired   atomic.Bool               // the ensemble has ended the session
	given     atomic.Int64              // the session time-out that the ensemble gave, in nanoseconds
	away      atomic.Pointer[time.Time] // since when it has been disconnected; nil: it is not
	loop      chan struct{}             // closed when the library's goroutine has ended
	known     chan struct{}             // closed when the ensemble knows who the user is
	hosts     hosts
	refusals  connect.Endpoints // by address
	watches   *watches

	mu         sync.Mutex
	shut       bool  // no connection is made any more
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

// newLink connects in the background; Connect of the library sends nothing by itself.
func newLink(cfg *Config, timeout time.Duration, single bool) (*link, error) {
	l := &link{
		single: single, watches: newWatches(), over: make(chan struct{}), ready: make(chan struct{}), loop: make(chan struct{}), known: make(chan struct{}),
	}
	l.hosts.lookup, l.hosts.over = cfg.lookup, l.over
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
	if cfg.User == "" {
		close(l.known)
	} else {
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
			close(l.known)
			return
		}
		if !retry.Until(retryPause, l.over, nil) {
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
		l.connected.Add(1)
		l.first.Do(func() { close(l.ready) })
	case e.State == zk.StateDisconnected:
		l.away.CompareAndSwap(nil, new(time.Now()))
	case e.State == zk.StateExpired && l.single:
		l.expired.Store(true)
		l.end()
	}
}

func (l *link) end() { l.once.Do(func() { close(l.over) }) }

// close ends the session on the ensemble, if that can be reached within two seconds. It reports
// whether the session has ended there.
func (l *link) close() bool {
	if l.single {
		l.reach()
	}
	l.end()
	l.mu.Lock()
	l.shut = true
	l.mu.Unlock()
	l.conn.Close()
	l.mu.Lock()
	last := l.wire
	l.mu.Unlock()
	if last != nil {
		_ = last.Close() // the library would wait for a server that hangs, for most of the session's time
	}
	<-l.loop
	return l.expired.Load() || last == nil || last.answers.ended.Load()
}

// reach waits until the ensemble answers: the library sends the end of a session on the connection
// that it has, and if that has just broken, the end reaches no server.
func (l *link) reach() {
	ctx, cancel := context.WithTimeout(context.Background(), reachPatience)
	defer cancel()
	for isClosed(l.ready) && !isClosed(l.over) && ctx.Err() == nil {
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
		select {
		case <-l.over:
			return nil, errOver // otherwise it would make another session, and answer for it
		default:
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
		if l.shut {
			_ = conn.Close()
			return nil, errOver
		}
		l.wire = &wire{
			Conn: conn, link: l, addr: address, asked: timeout, patience: l.patience(patience, timeout), again: isClosed(l.ready), watches: make(chan struct{}), made: time.Now(),
			forgets: l.hasEnded(timeout),
		}
		return l.wire, nil
	}
}

// patience is how long a new connection waits for its first answer: a second, and twice as long for each connection that had
// none. A server that has just started may never answer a client that came too early, and one that is slow gets its time.
func (l *link) patience(least, timeout time.Duration) time.Duration {
	l.unanswered++
	return max(least, min(timeout/4, silence/2, time.Second<<min(l.unanswered-1, 8)))
}

// hasEnded reports whether a link of no session has been without a connection for longer than its ZooKeeper session
// lives. Only the ensemble reports that the session has ended, and a server that has fewer changes than the client has
// seen, because it was restored or emptied, closes the connection instead. So what was seen counts no longer: see
// wire.forgets. The link of one session is closed when the session has ended.
func (l *link) hasEnded(asked time.Duration) bool {
	away := l.away.Load()
	return !l.single && away != nil && between(*away, time.Now()) > max(asked, time.Duration(l.given.Load()))
}

// wire is a connection that reads its first answer along: that has the session time-out, which the
// library does not expose. Until then it does not wait for as long as the library would, which is
// many times the time-out, and afterwards for half of it, where the library would take two thirds:
// a server that hangs while others live must not cost the session. The library lets the server
// answer every third of it.
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
	head     []byte // of the first answer
	size     int    // of the first answer; 0 while it is not known
	read     int    // bytes so far
	made     time.Time
	heard    atomic.Int64 // when the server last sent something, in nanoseconds since it was made
	closed   atomic.Bool
	again    bool          // there was a session before, and so there may be watches
	forgets  bool          // the request for a session does not say which change was seen last
	watches  chan struct{} // closed when the watches have left, and when the connection is closed
	once     sync.Once     // closes watches
	answers  answers
}

// answers follows the answers of a connection, to find the one to the request that ends the session.
// The library does not report it. Of each answer, it reads the length and the number of the request.
type answers struct {
	closing atomic.Int64 // the number of that request, and numbered; 0: it was not sent
	ended   atomic.Bool  // it was answered
	head    []byte
	rest    int // of the present answer
}

// numbered is set for a request that was sent.
const numbered = 1 << 32

// follow reads the next part of the stream.
func (a *answers) follow(p []byte) {
	for len(p) > 0 {
		if a.rest > 0 {
			n := min(a.rest, len(p))
			a.rest, p = a.rest-n, p[n:]
			continue
		}
		n := min(kindAt-len(a.head), len(p))
		a.head, p = append(a.head, p[:n]...), p[n:]
		if len(a.head) < kindAt {
			continue
		}
		if a.closing.Load() == numbered|int64(binary.BigEndian.Uint32(a.head[lengthSize:])) {
			a.ended.Store(true)
		}
		a.rest = int(binary.BigEndian.Uint32(a.head)) - (kindAt - lengthSize)
		a.head = a.head[:0]
	}
}

// The first answer: its length, the protocol version, the time-out in milliseconds, the session,
// the password.
const lengthSize, timeoutAt, headSize = 4, 8, 12

// The first four bytes after the length of a request are its number, the second its type; 101 sets
// watches, and -11 ends the session.
const kindAt, kindEnd, kindSetWatches, kindClose = 8, 12, 101, 1<<32 - 11

// The first request: its length, the protocol version, the newest change that the client has seen.
const seenAt, seenEnd = 8, 16

// watchesLate is how long answers are held back if no watches leave, because there are none.
const watchesLate = 250 * time.Millisecond

func (w *wire) SetReadDeadline(t time.Time) error {
	patience, answered := w.patience, w.size > 0
	if answered {
		patience = time.Duration(w.link.given.Load()) / 2
	}
	if latest := time.Now().Add(patience); t.After(latest) || t.IsZero() && !answered {
		t = latest
	}
	return w.Conn.SetReadDeadline(t) //nolint:wrapcheck // the library compares what a connection returns
}

func (w *wire) Read(p []byte) (int, error) {
	if w.again && w.size > 0 && w.read >= w.size {
		w.again = false
		patience := time.NewTimer(watchesLate)
		defer patience.Stop()
		select {
		case <-w.watches:
		case <-patience.C:
		}
	}
	n, err := w.Conn.Read(p)
	w.answers.follow(p[:n])
	if n > 0 {
		w.heard.Store(int64(time.Since(w.made)))
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
			if w.link.single && w.again && given < w.asked {
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
	if w.size == 0 && w.forgets && len(p) >= seenEnd {
		p = slices.Clone(p)
		clear(p[seenAt:seenEnd])
	}
	if w.size > 0 && len(p) >= kindEnd {
		switch binary.BigEndian.Uint32(p[kindAt:kindEnd]) {
		case kindSetWatches:
			defer w.once.Do(func() { close(w.watches) })
		case kindClose:
			w.answers.closing.Store(numbered | int64(binary.BigEndian.Uint32(p[lengthSize:kindAt])))
		}
	}
	if _, err := w.Conn.Write(p); err != nil {
		_ = w.Close()
	}
	return len(p), nil
}

// Close also releases a Read that waits for the watches.
func (w *wire) Close() error {
	w.closed.Store(true)
	w.once.Do(func() { close(w.watches) })
	return w.Conn.Close() //nolint:wrapcheck // as above
}

// silence is how long a server may send nothing at all while a caller waits for it. For its first
// answer it has half of that at the most: see link.patience.
const silence = 10 * time.Second

// hangUp closes the connection if it was silent for too long, and a caller has waited since: a
// firewall may have forgotten it, or the server hangs. The library would notice that after half of
// the session's time-out, which can be hours, and connects again within the session.
func (l *link) hangUp(since time.Time) {
	l.mu.Lock()
	w := l.wire
	l.mu.Unlock()
	if w == nil || w.closed.Load() || min(time.Since(since), time.Since(w.made)-time.Duration(w.heard.Load())) < silence {
		return
	}
	l.hosts.silent(w.addr, w.asked/4)
	_ = w.Close()
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
	from, silent := time.Now(), time.NewTicker(silence/2)
	defer silent.Stop()
	for {
		select {
		case a := <-done:
			select {
			case <-l.over: // it may have been answered by another session
				return none, zk.ErrSessionExpired
			default:
				return a.value, a.err
			}
		case <-silent.C:
			l.hangUp(from)
		case <-ctx.Done():
			return none, context.Cause(ctx)
		case <-l.over:
			return none, zk.ErrSessionExpired
		}
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
	for _, done := range []<-chan struct{}{l.ready, l.known} {
		for !isClosed(done) {
			another, refusal := l.refusals.Refusal(max(1, l.hosts.count()))
			if refusal != nil {
				return refusal
			}
			select {
			case <-done:
			case <-another:
			case <-l.over:
				return backend.ErrClosed
			case <-ctx.Done():
				return l.refusals.Unconnected(ctx)
			}
		}
	}
	return nil
}

// logger passes on what the library logs.
type logger struct{ *slog.Logger }

func (l logger) Printf(format string, args ...any) {
	l.Debug("zookeeper: " + fmt.Sprintf(format, args...)) //nolint:sloglint // the library's own words
}
