package chaos

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

const (
	pieceSize = 32 << 10
	queueSize = 4 << 20 // bytes kept for one direction of a connection
)

// conn is one connection of a client, with its connection to the server.
type conn struct {
	ends   [2]net.Conn // the client's and the server's; no server in a black hole
	pipes  [2]*pipe    // by the index of their direction; pipe i reads from end i
	done   chan struct{}
	gone   [2]bool       // this end is gone, and the other one is not told
	lost   bool          // something was dropped: it cannot continue after Heal
	muted  bool          // replies are dropped
	sprung chan struct{} // closed, and nil, when the first reply was dropped
	ended  int           // pipes that came to their end in order
}

// pipe is one direction of a connection.
type pipe struct {
	queue []piece
	kept  int           // bytes in queue
	wake  chan struct{} // capacity 1: the queue or a fault has changed
	room  chan struct{} // capacity 1: the queue has become shorter
}

// piece is bytes on their way, or the end of the stream.
type piece struct {
	data []byte
	due  time.Time
	end  bool
	err  bool // the stream ended with an error, not in order
}

// verdict is what becomes of a piece.
type verdict struct {
	pass  []byte
	end   bool // tell the other side that the stream ended
	kill  bool // then reset the connection
	close *trap
}

func newPipe() *pipe { return &pipe{wake: make(chan struct{}, 1), room: make(chan struct{}, 1)} }

// admit starts to serve a client. The caller holds mu.
func (p *Proxy) admit(client net.Conn) {
	c := &conn{
		ends:  [2]net.Conn{client, nil},
		pipes: [2]*pipe{newPipe(), newPipe()},
		done:  make(chan struct{}),
	}
	p.conns[c] = struct{}{}
	p.stats.Accepted++
	p.stats.Open++
	p.tell()
	if p.blackHole {
		c.gone[1], c.lost = true, true
		p.wg.Go(func() { p.read(c, 0) })
		p.wg.Go(func() { p.write(c, 0) })
		return
	}
	p.wg.Go(func() { p.connect(c) })
}

// connect makes the connection to the server and starts both directions.
func (p *Proxy) connect(c *conn) {
	server, err := p.dial()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.stats.DialErrors++
		p.kill(c)
		p.tell()
		return
	}
	if c.over() {
		reset(server)
		return
	}
	c.ends[1] = server
	if c.gone[1] { // became half-open before it was whole
		reset(server)
	}
	for i := range c.pipes {
		p.wg.Go(func() { p.read(c, i) })
		p.wg.Go(func() { p.write(c, i) })
	}
}

// read takes in what one end sends until it ends.
func (p *Proxy) read(c *conn, i int) {
	buf := make([]byte, pieceSize)
	for {
		n, err := c.ends[i].Read(buf)
		if n > 0 && !p.push(c, i, piece{data: bytes.Clone(buf[:n])}) {
			return
		}
		if err != nil {
			p.push(c, i, piece{end: true, err: !errors.Is(err, io.EOF)})
			return
		}
	}
}

// push appends a piece to the queue, and waits while that is full. It reports whether the
// connection is still alive.
func (p *Proxy) push(c *conn, i int, next piece) bool {
	l := c.pipes[i]
	for {
		p.mu.Lock()
		if c.over() {
			p.mu.Unlock()
			return false
		}
		if l.kept+len(next.data) <= queueSize {
			break
		}
		p.mu.Unlock()
		select {
		case <-l.room:
		case <-c.done:
		}
	}
	defer p.mu.Unlock()
	if late := p.faults[i].lateness(); late > 0 {
		next.due = time.Now().Add(late)
	}
	l.queue = append(l.queue, next)
	l.kept += len(next.data)
	p.stats.flow(i).Kept += int64(len(next.data))
	p.tell()
	signal(l.wake)
	return true
}

// lateness returns how much later a piece arrives, at random.
func (f faults) lateness() time.Duration {
	if f.jitter <= 0 {
		return f.delay
	}
	return f.delay + rand.N(f.jitter+1)
}

// write sends on what read has read, as far as the faults allow.
func (p *Proxy) write(c *conn, i int) {
	for {
		v, wait, ok := p.next(c, i)
		if !ok {
			if !c.sleep(c.pipes[i].wake, wait) {
				return
			}
			continue
		}
		if !p.deliver(c, i, v) {
			return
		}
	}
}

// sleep waits for wake, for d unless that is zero, or for the end of the connection. It reports
// whether the connection is still alive.
func (c *conn) sleep(wake <-chan struct{}, d time.Duration) bool {
	var timer <-chan time.Time
	if d > 0 {
		timer = time.After(d)
	}
	select {
	case <-wake:
	case <-timer:
	case <-c.done:
		return false
	}
	return true
}

// next takes the head of the queue and decides what becomes of it. It returns false when there
// is nothing to do yet, and for how long when that is known.
func (p *Proxy) next(c *conn, i int) (verdict, time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := c.pipes[i]
	dropping := p.blackHole || p.faults[i].cut
	if len(l.queue) == 0 || p.faults[i].held && !dropping {
		return verdict{}, 0, false
	}
	head := l.queue[0]
	if !head.due.IsZero() {
		if wait := time.Until(head.due); wait > 0 {
			return verdict{}, wait, false
		}
	}
	l.queue = l.queue[1:]
	l.kept -= len(head.data)
	signal(l.room)
	return p.judge(c, i, head), 0, true
}

// judge applies the faults to a piece whose time has come.
func (p *Proxy) judge(c *conn, i int, head piece) verdict {
	flow := p.stats.flow(i)
	drop := func(n int) {
		flow.Kept -= int64(n)
		flow.Dropped += int64(n)
		c.lost = true
		p.tell()
	}
	away := c.gone[0] || c.gone[1]
	if p.blackHole || p.faults[i].cut || away || i == 1 && c.muted {
		drop(len(head.data))
		if i == 1 && c.sprung != nil {
			close(c.sprung)
			c.sprung = nil
		}
		// The other end has gone already: when this one ends too, none remains.
		return verdict{kill: head.end && c.gone[1-i]}
	}
	if head.end {
		return verdict{end: !head.err, kill: head.err}
	}
	if p.faults[i].resets {
		drop(len(head.data))
		return verdict{kill: true}
	}
	v := verdict{pass: head.data}
	if i == 0 {
		v.close = p.spring(c, v.pass)
	}
	return v
}

// spring looks for the trap that a request triggers. It returns one that closes the connection
// once the request was sent on.
func (p *Proxy) spring(c *conn, request []byte) *trap {
	for n, t := range p.traps {
		if t.match != nil && !t.match(request) {
			continue
		}
		p.traps = append(p.traps[:n:n], p.traps[n+1:]...)
		// This is set before the request leaves: the reply must not win a race.
		c.muted, c.lost = true, true
		if t.close {
			return t
		}
		c.sprung = t.sprung
		return nil
	}
	return nil
}

// deliver does what was decided. It reports whether the direction continues.
func (p *Proxy) deliver(c *conn, i int, v verdict) bool {
	var n int
	var err error
	if len(v.pass) > 0 {
		n, err = c.ends[1-i].Write(v.pass)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	flow := p.stats.flow(i)
	flow.Kept -= int64(len(v.pass))
	flow.Passed += int64(n)
	flow.Dropped += int64(len(v.pass) - n)
	p.tell()
	if c.gone[1-i] { // it ended while this was on the way
		err = nil
	}
	switch {
	case c.over():
		return false
	case v.kill || err != nil:
		p.kill(c)
		return false
	case v.close != nil:
		// The server reads the request, then hears of the end; a reset could come
		// before the request is read. Its own end is the end of the connection.
		c.gone[0] = true
		reset(c.ends[0])
		closeWrite(c.ends[1])
		close(v.close.sprung)
	case v.end:
		p.endOf(c, i)
	}
	return !v.end
}

// endOf tells the other side that the stream ended in order.
func (p *Proxy) endOf(c *conn, i int) {
	closeWrite(c.ends[1-i])
	if c.ended++; c.ended == len(c.pipes) {
		p.kill(c)
	}
}

// kill resets both ends, which after an end in order changes nothing. The caller
// holds mu.
func (p *Proxy) kill(c *conn) {
	if c.over() {
		return
	}
	close(c.done)
	for _, end := range c.ends {
		if end != nil {
			reset(end)
		}
	}
	for i, l := range c.pipes {
		p.stats.flow(i).Kept -= int64(l.kept)
		p.stats.flow(i).Dropped += int64(l.kept)
		l.queue, l.kept = nil, 0
	}
	delete(p.conns, c)
	p.stats.Open--
	p.tell()
}

// over reports whether kill was called. The caller holds mu.
func (c *conn) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// poke makes every direction check the faults again. The caller holds mu.
func (p *Proxy) poke() {
	for c := range p.conns {
		for _, l := range c.pipes {
			signal(l.wake)
		}
	}
}

// reset ends a connection so that its peer gets an error, not an end in order.
func reset(end net.Conn) {
	if t, ok := end.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails on a connection that has ended already
	}
	_ = end.Close()
}

// closeWrite tells the peer that nothing more will be sent.
func closeWrite(end net.Conn) {
	if h, ok := end.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // fails on a connection that has ended already
	}
}

// signal puts a mark into a channel of capacity 1.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
