package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// patience is how long, at least, nodes that have not answered are waited for when a majority
// has answered without deciding. A node that hangs costs this much, until it is taken for down.
const patience = 20 * time.Millisecond

// answer is what a node answered.
type answer struct {
	node int
	list []program.Reply
	err  error
}

// poll is one operation sent to several nodes concurrently. Its results may be read when
// collect has returned; nothing changes them afterwards.
type poll struct {
	b       *Backend
	asked   time.Time     // before the first request was sent
	pending []bool        // by node: it was asked, and has not answered
	left    int           // the number of pending nodes
	errs    []error       // by node: the error instead of an answer
	good    int           // nodes that answered
	over    chan struct{} // closed when enough is known

	mu    sync.Mutex        // guards the fields below, and those above while take is set
	take  func(answer) need // of collect; nil before it, and when enough is known
	hurry bool              // take needs only the nodes that are not slow
	timer *time.Timer       // runs from when take first returned soon
	tired bool              // the timer has fired
	early []answer          // answers that were not taken
	late  func(answer)      // see leave
}

// ask sends the operation to all nodes, or to those named.
func (b *Backend) ask(r request, nodes ...int) *poll {
	p := &poll{b: b, asked: time.Now(), pending: make([]bool, len(b.nodes)), errs: make([]error, len(b.nodes)), over: make(chan struct{})}
	if len(nodes) == 0 {
		nodes = b.all
	}
	for _, i := range nodes {
		p.pending[i] = true
	}
	p.left = len(nodes)
	ops := make([]op, len(nodes))
	for k, i := range nodes {
		ops[k] = op{request: r, reply: func(list []program.Reply, err error) { p.reply(answer{i, list, err}) }}
		b.nodes[i].submit(&ops[k])
	}
	return p
}

// need says which answers are still waited for.
type need uint8

const (
	everyone need = iota // all nodes that are up
	soon                 // those that are not slow: see patience
	nobody               // enough is known
)

// collect passes the answers to take until it needs no more, or all nodes have answered. It
// is called once. take is called for one answer after the other, by the goroutine that
// has it, so that the caller is woken once; it must not block. Later answers go to the
// function passed to leave. The error is nil unless ctx or the backend ended.
func (p *poll) collect(ctx context.Context, take func(answer) need) error {
	p.mu.Lock()
	p.take = take
	early := p.early
	p.early = nil
	for _, a := range early {
		p.handle(a)
	}
	if p.left == 0 {
		p.end()
	}
	p.mu.Unlock()
	select {
	case <-p.over:
		return nil
	case <-ctx.Done():
	case <-p.b.base.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.take == nil:
		return nil // it was decided nevertheless
	case ctx.Err() != nil:
		p.end()
		return context.Cause(ctx)
	default:
		p.end()
		return backend.ErrClosed
	}
}

// handle records an answer. mu is held.
func (p *poll) handle(a answer) {
	if p.take == nil {
		p.early = append(p.early, a)
		return
	}
	p.pending[a.node] = false
	p.left--
	p.errs[a.node] = a.err
	if a.err == nil {
		p.good++
	}
	need := p.take(a)
	p.hurry = need == soon
	switch {
	case need == nobody, p.left == 0, p.hurry && p.tired:
		p.end()
	case p.hurry && p.timer == nil:
		// On a busy machine all of them are slow.
		const times = 3
		p.timer = time.AfterFunc(max(patience, times*time.Since(p.asked)), p.tire)
	}
}

// tire ends the wait for the nodes that are slow.
func (p *poll) tire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tired = true; p.hurry {
		p.end()
	}
}

// end makes collect return. mu is held.
func (p *poll) end() {
	if p.take == nil {
		return
	}
	p.take = nil
	if p.timer != nil {
		p.timer.Stop()
	}
	close(p.over)
}

// leave makes late be called with each answer from now on. Nothing is collected afterwards.
func (p *poll) leave(late func(answer)) {
	p.mu.Lock()
	p.late = late
	early := p.early
	p.early = nil
	p.mu.Unlock()
	for _, a := range early {
		late(a)
	}
}

func (p *poll) reply(a answer) {
	p.mu.Lock()
	late := p.late
	if late == nil {
		p.handle(a)
	}
	p.mu.Unlock()
	if late != nil {
		late(a)
	}
}

// silent returns how many of the nodes asked have not answered, or with an error.
func (p *poll) silent() int {
	n := p.left
	for _, err := range p.errs {
		n += toInt(err != nil)
	}
	return n
}

// failure returns the error for too few answers.
func (p *poll) failure() error {
	errs := make([]error, len(p.errs))
	copy(errs, p.errs)
	for i, pending := range p.pending {
		if pending {
			errs[i] = p.b.noAnswer()
		}
	}
	return p.b.noQuorum(p.good, p.b.majority, errs)
}
