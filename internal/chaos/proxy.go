package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	dialTimeout   = 5 * time.Second
	listenTimeout = 5 * time.Second
	retryPause    = 10 * time.Millisecond
)

// Direction says which way bytes go. Directions combine with |.
type Direction uint8

const (
	// Requests go from the client to the server.
	Requests Direction = 1 << iota
	// Replies go from the server to the client.
	Replies
	// Both is Requests and Replies.
	Both = Requests | Replies
)

// Proxy is a relay from a loopback port to one upstream. Its methods are safe for concurrent
// use.
type Proxy struct {
	addr        string
	stop        context.CancelFunc
	dial        func() (net.Conn, error)
	listen      func(at string) (net.Listener, error)
	unreserve   func()
	wg          sync.WaitGroup
	mu          sync.Mutex   // guards the fields below, and all of conn and pipe
	listener    net.Listener // nil while connections are refused
	conns       map[*conn]struct{}
	faults      [2]faults
	blackHole   bool
	traps       []*trap
	stats       Stats
	changed     chan struct{} // closed when the counters move; nil when no goroutine waits
	closed      bool
	listenError error
}

// faults of one direction.
type faults struct {
	delay, jitter time.Duration
	held, cut     bool
	resets        bool // whatever is sent resets its connection
}

// trap waits for one request.
type trap struct {
	match  func([]byte) bool
	close  bool
	sprung chan struct{}
}

// NewProxy starts a relay from a free port of the loopback to upstream, "host:port". It runs until
// Close, or until ctx ends. A server that is unavailable is not an error: its clients are reset.
func NewProxy(ctx context.Context, upstream string) (*Proxy, error) {
	ctx, stop := context.WithCancel(ctx)
	address, unreserve, err := reserve()
	if err != nil {
		stop()
		return nil, fmt.Errorf("reserving a port of the loopback: %w", err)
	}
	p := &Proxy{
		stop:      stop,
		unreserve: unreserve,
		conns:     make(map[*conn]struct{}),
	}
	p.dial = func() (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "tcp", upstream)
	}
	p.listen = func(at string) (net.Listener, error) {
		var lc net.ListenConfig
		return lc.Listen(ctx, "tcp4", at)
	}
	l, err := p.listen(address)
	if err != nil {
		stop()
		unreserve()
		return nil, fmt.Errorf("listening on the loopback: %w", err)
	}
	p.addr, p.listener = l.Addr().String(), l
	p.wg.Go(func() { p.accept(l) })
	context.AfterFunc(ctx, p.shut)
	return p, nil
}

// Addr is the address for clients: "127.0.0.1:port". It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Close resets every connection, ends every goroutine and frees the port. Closing again does
// nothing. The error says that another process took the port while connections were refused.
func (p *Proxy) Close() error {
	p.stop()
	p.shut()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listenError
}

// shut ends what Close ends, without waiting for the goroutines.
func (p *Proxy) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.refuse()
	p.unreserve()
	for c := range p.conns {
		p.kill(c)
	}
	p.tell()
}

// accept serves one listener until it is closed.
func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors left, or a client that is gone already
			<-time.After(retryPause)
			continue
		}
		p.mu.Lock()
		if p.closed || p.listener != l { // came in while Refuse was called
			reset(client)
		} else {
			p.admit(client)
		}
		p.mu.Unlock()
	}
}

// refuse closes the listener: the kernel refuses from here on.
func (p *Proxy) refuse() {
	if p.listener == nil {
		return
	}
	if err := p.listener.Close(); err != nil && p.listenError == nil {
		p.listenError = fmt.Errorf("closing the listener: %w", err)
	}
	p.listener = nil
}

// relisten undoes refuse. No other process gets a reserved port, so that one attempt is enough
// there; elsewhere it retries for a while.
func (p *Proxy) relisten() {
	if p.listener != nil || p.closed {
		return
	}
	var l net.Listener
	var err error
	for begun := time.Now(); time.Since(begun) < listenTimeout; {
		if l, err = p.listen(p.addr); err == nil {
			p.listener = l
			p.wg.Go(func() { p.accept(l) })
			return
		}
		<-time.After(retryPause)
	}
	p.listenError = fmt.Errorf("listening again on %s: %w", p.addr, err)
}
