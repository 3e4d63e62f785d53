package chaos

import "time"

// each calls f for every direction in dir, with its index.
func (dir Direction) each(f func(i int)) {
	if dir&Requests != 0 {
		f(0)
	}
	if dir&Replies != 0 {
		f(1)
	}
}

// Delay makes everything arrive d later, and up to jitter more, chosen at random
// for each piece. The order is kept. Zero ends the delay for what is
// sent afterwards.
func (p *Proxy) Delay(dir Direction, d, jitter time.Duration) {
	p.change(dir, func(f *faults) { f.delay, f.jitter = d, jitter })
}

// Hold keeps everything that is sent, to be delivered in order after Release or Heal. Up to 4
// MiB are kept for each direction of a connection; then its sender has to wait.
func (p *Proxy) Hold(dir Direction) { p.change(dir, func(f *faults) { f.held = true }) }

// Release delivers what Hold kept.
func (p *Proxy) Release(dir Direction) { p.change(dir, func(f *faults) { f.held = false }) }

// Cut drops everything that is sent, in silence, until Heal. New connections are
// still made.
func (p *Proxy) Cut(dir Direction) { p.change(dir, func(f *faults) { f.cut = true }) }

// BlackHole drops everything both ways until Heal. New connections are accepted,
// but the server never sees them.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackHole = true
	p.poke()
}

// ResetSenders resets each connection, new ones included, on which anything more is sent, until Heal.
func (p *Proxy) ResetSenders(dir Direction) { p.change(dir, func(f *faults) { f.resets = true }) }

// Refuse makes the kernel refuse new connections until Heal. Open ones stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse()
}

// Reset resets every open connection, on both sides. Data on the way is
// lost. New connections are not touched.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.kill(c)
	}
}

// DropServerHalf makes every open connection half-open: the server's end is
// reset, as if it forgot the connection, and the client is not told. What the
// client sends is dropped. Heal resets the client's end.
func (p *Proxy) DropServerHalf() { p.orphan(1) }

// DropClientHalf makes every open connection half-open: the client's end is
// reset, as if the client lost its power, and the server is not told. What the
// server sends is dropped. Heal resets the server's end.
func (p *Proxy) DropClientHalf() { p.orphan(0) }

// LoseReply lets the next piece of a request that match accepts through to the server, and
// drops everything that its connection brings back from then on, also replies to earlier
// requests. A nil match accepts any piece. It works once. match must not block, nor call the
// Proxy. The channel is closed when the first reply was dropped: the server has answered
// something since. Call Reset to let the client know.
func (p *Proxy) LoseReply(match func(piece []byte) bool) <-chan struct{} {
	return p.arm(&trap{match: match, sprung: make(chan struct{})})
}

// CloseAfterRequest lets the next piece of a request that match accepts through to the server,
// then ends the connection: the server sees its end after the request, and the client is reset
// immediately, without a reply. A nil match accepts any piece. It works once. match must not
// block, nor call the Proxy. The channel is closed when the request was sent on.
func (p *Proxy) CloseAfterRequest(match func(piece []byte) bool) <-chan struct{} {
	return p.arm(&trap{match: match, close: true, sprung: make(chan struct{})})
}

// Heal ends every fault. It delivers the bytes that were held or delayed, and resets connections
// that lost something, that were made in a black hole or that are half-open. It removes traps that
// did not spring.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = [2]faults{}
	p.blackHole = false
	p.traps = nil
	p.relisten()
	for c := range p.conns {
		if c.lost {
			p.kill(c)
			continue
		}
		for _, l := range c.pipes {
			for i := range l.queue {
				l.queue[i].due = time.Time{}
			}
		}
	}
	p.poke()
}

func (p *Proxy) change(dir Direction, set func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir.each(func(i int) { set(&p.faults[i]) })
	p.poke()
}

func (p *Proxy) arm(t *trap) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t.sprung
}

// orphan resets one end of every connection: 0 the client's, 1 the server's.
func (p *Proxy) orphan(end int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.lost, c.gone[end] = true, true
		if c.gone[1-end] {
			p.kill(c)
			continue
		}
		if c.ends[end] != nil {
			reset(c.ends[end])
		}
	}
	p.poke()
}
